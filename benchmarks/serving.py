"""Latency and throughput of predictions: `python -m benchmarks.serving`. See README.md.

The plain network at the mean weights, `predict`, and exported predictions answer one row and 256 rows, in turn.
Everything runs on one thread.
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.ticker import StrMethodFormatter

from pyro_bnn import plotting

from ._measure import Cell
from ._results import head_of, line_of, page_style, save_small
from ._serving import CASES, PLAIN, Served, served

COUNTS = (1, 256)

IN_WORDS = {
    "10-50-50-1": "small network, 3,151 weights",
    "784-400-400-10": "dense network, 478,410 weights",
    "LeNet-5": "LeNet-5, 61,706 weights",
}
"""What the legend calls the networks of the table."""


def table(found: list[Served]) -> Iterator[str]:
    """Latencies and throughputs, a line for each network and way."""
    times = [title for count in ("1 row", "256 rows") for title in (f"{count}, ms: median, 99 %", f"times the {PLAIN}")]
    yield from head_of(["network", "way", *times, "rows / s"], 2)
    for name, way in dict.fromkeys((one.case, one.way) for one in found):
        cells = []
        for one in found:
            if (one.case, one.way) == (name, way):
                ratio = "1" if way == PLAIN else in_words(one.ratio)
                cells += [f"{1e3 * one.median:.3g}, {1e3 * one.high:.3g}", ratio]
        largest = [one for one in found if (one.case, one.way) == (name, way)][-1]
        yield line_of([name, way, *cells, f"{largest.rows / largest.median:,.0f}"])


def in_words(ratio: Cell) -> str:
    """Median and quartiles of a ratio."""
    median, low, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (ratio.median, *ratio.quartiles)
    )
    return f"{median} ({low} to {high})"


def picture(found: list[Served], path: Path) -> None:
    """Latencies of one row and of many, a panel for each number of rows; the name of a way says who has none."""
    names, cases = (list(dict.fromkeys(parts)) for parts in zip(*((one.way, one.case) for one in found), strict=True))
    with page_style():
        axes = plotting.new_axes(1, len(COUNTS), size=("page", 3.0))
        for ax, count in zip(axes[0], COUNTS, strict=True):
            for style, case in zip(("o", "s", "D"), cases, strict=False):
                some = [one for one in found if one.case == case and one.rows == count]
                times, places = [1e3 * one.median for one in some], [names.index(one.way) for one in some]
                ax.plot(times, places, style, label=IN_WORDS.get(case, case))
            ax.set(xscale="log", xlabel="latency, ms (log scale)", title=f"{count} row{'s' if count > 1 else ''}")
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.set(ylim=(len(names) - 0.5, -0.5))
            ax.set_yticks(range(len(names)), labels=[""] * len(names))
        limits = [limit for ax in axes[0] for limit in ax.get_xlim()]
        for ax in axes[0]:  # so that places can be compared
            ax.set_xlim(min(limits), max(limits))
        measured = {(one.way, one.case) for one in found}
        labels = [way + "".join(f"\n(not {case})" for case in cases if (way, case) not in measured) for way in names]
        axes[0, 0].set_yticklabels(labels)
        axes[0, 0].figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        save_small(axes[0, 0], path, table(found))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times here; with --draw-only read them")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write a picture here")
    parser.add_argument("--draw-only", action="store_true", help="measure nothing; table and picture of --json FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.draw_only:
        if options.json is None:
            parser.error("--draw-only needs --json: the file of an earlier run.")
        found = [Served(**{**row, "ratio": Cell(**row["ratio"])}) for row in json.loads(options.json.read_text())]
    else:
        found = [one for name in options.networks for one in served(name, options.draws, list(COUNTS), options.rounds)]
        loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"\ntorch {torch.__version__}, 1 thread, {options.draws} draws; load of the machine {loads}\n")
    print(*table(found), sep="\n")
    if options.json and not options.draw_only:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in found]))
    if options.picture:
        picture(found, options.picture)


if __name__ == "__main__":
    main()
