"""Latency and throughput of predictions: `python -m benchmarks.serving`.

The plain network at the mean weights, `predict`, and exported predictions answer one row and 256 rows, in turn.
Everything runs on one thread.
"""

import argparse
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.ticker import StrMethodFormatter

from pyro_bnn import plotting

from ._measure import Cell
from ._results import head_of, line_of, save_small
from ._serving import CASES, PLAIN, Served, served

COUNTS = (1, 256)

NUM_WEIGHTS = {"10-50-50-1": 3_151, "784-400-400-10": 478_410, "LeNet-5": 61_706}


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


Times = Mapping[tuple[str, str], Sequence[float]]
"""Latencies in milliseconds for each number of rows, by network and way."""


def picture(times: Times, path: Path, lines: Iterable[str]) -> None:
    """Latencies of one row and of many, a panel for each number of rows; the name of a way says who has none.

    The ways are in the order of the mean logarithm of their latency for one row, divided by that of the plain network.
    """
    cases = sorted({case for case, _ in times}, key=lambda case: NUM_WEIGHTS.get(case, 0))
    ratios: dict[str, list[float]] = {}
    for (case, way), (of_one, *_) in times.items():
        ratios.setdefault(way, []).append(math.log(of_one / times[case, PLAIN][0]))
    ways = sorted(ratios, key=lambda way: fmean(ratios[way]))
    with plotting.style():
        axes = plotting.new_axes(1, len(COUNTS), size=("page", 3.0))[0]
        for number, (ax, count) in enumerate(zip(axes, COUNTS, strict=True)):
            for style, case in zip(("o", "s", "D"), cases, strict=False):
                some = {ways.index(way): found[number] for (of, way), found in times.items() if of == case}
                label = f"{case} ({NUM_WEIGHTS[case]:,} weights)" if case in NUM_WEIGHTS else case
                ax.plot([*some.values()], [*some], style, markersize=4.5, label=label)
            ax.set(xscale="log", title=f"{count} row{'s' if count > 1 else ''}")
            ax.set_xlabel("latency, ms (log scale; smaller is better)")
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.minorticks_off()
            ax.set(ylim=(len(ways) - 0.5, -0.5))
            ax.axhspan(-0.5, 0.5, color="0.93", linewidth=0, zorder=0)
            ax.set_yticks(range(len(ways)), labels=[""] * len(ways))
        limits = [limit for ax in axes for limit in ax.get_xlim()]
        for ax in axes:  # so that places can be compared
            ax.set_xlim(min(limits), 1.3 * max(limits))  # the last number is within the axis
        labels = [way + "".join(f"\n(not {case})" for case in cases if (case, way) not in times) for way in ways]
        axes[0].set_yticklabels(labels)
        axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, handlelength=1)
        save_small(axes[0], path, lines)


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
        times: dict[tuple[str, str], list[float]] = {}
        for one in found:
            times.setdefault((one.case, one.way), []).append(1e3 * one.median)
        picture(times, options.picture, table(found))


if __name__ == "__main__":
    main()
