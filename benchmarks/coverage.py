"""Coverage and width of 90 % intervals on six UCI data sets: `python -m benchmarks.coverage`.

A fifth of the training rows of each split calibrates the intervals of a network that was fitted to the other rows.
MAPIE calibrates the same network with the same rows. Each split adds a line for each kind of interval to
FOLDER/coverage.jsonl; existing lines are not computed again. The table is printed, and FOLDER/coverage.png shows the
coverage of all test rows, and in the thirds of these rows by predicted standard deviation.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from pyro_bnn import BNNRegressor, calibration, plotting
from pyro_bnn.data import UCI_SETS, load_uci
from pyro_bnn.results.calibration import rank_of

from ._regression import held_out
from ._results import (
    Row,
    add_row,
    by_cell,
    cell_of,
    head_of,
    line_of,
    mean_and_error,
    parser_of,
    read_rows,
    save_small,
)

Pair = tuple[float, float | None]
"""Mean and standard error, in per cent."""

LEVEL = 0.9
SCORES: tuple[calibration.IntervalScore, ...] = ("absolute", "scaled", "quantile")
MAPIE = "MAPIE, absolute"
KINDS = ("network", *SCORES, MAPIE)

PANELS = ("all test rows", "third with the\nsmallest sd", "middle third", "third with the\nlargest sd")
"""Titles of the picture's panels, in the order of the numbers in a cell."""

LOOKS = {
    "network": {"marker": "o", "color": plotting.PALETTE[0], "label": "intervals of the network"},
    "scaled": {"marker": "D", "color": plotting.PALETTE[1], "label": 'conformal intervals, "scaled"'},
}
"""Marks of the kinds of intervals in the picture. Of the three conformal kinds it has one: they hardly differ."""


def measured(low: Tensor, high: Tensor, y: Tensor, sd: Tensor) -> Row:
    """Width, and coverage of all rows and of the thirds with the smallest, middle and largest predicted deviations.

    The width is divided by the standard deviation of the targets.
    """
    inside = ((low <= y) & (y <= high)).double().flatten()
    thirds = [float(inside[rows].mean()) for rows in sd.flatten().argsort().tensor_split(3)]
    return {"coverage": float(inside.mean()), "width": float((high - low).mean() / y.std()), "thirds": thirds}


def by_mapie(regressor: BNNRegressor, x: Tensor, y: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of MAPIE's intervals for the same network, each of shape (N, 1)."""
    from mapie.regression import SplitConformalRegressor

    mapie = SplitConformalRegressor(regressor, confidence_level=LEVEL, prefit=True)
    _, ends = mapie.conformalize(x.numpy(), y[:, 0].numpy()).predict_interval(x_test.numpy())
    low, high = np.moveaxis(ends, 1, 0)
    return torch.from_numpy(low), torch.from_numpy(high)


def split_rows(name: str, split: int, method: str, data: Path | None) -> Iterator[Row]:
    """The rows of one split, one for each kind of interval."""
    whole = load_uci(name, split, root=data)
    parts = held_out(whole, split)
    x, y, x_held, y_held, x_test, y_test = (
        part.double() for part in (parts.x_train, parts.y_train, parts.x_test, parts.y_test, whole.x_test, whole.y_test)
    )
    regressor = BNNRegressor(method=method, random_state=split).fit(x.numpy(), y[:, 0].numpy())
    calibrating, new = (regressor.predict_distribution(rows.numpy()) for rows in (x_held, x_test))
    tail = (1 - LEVEL) / 2
    ends = {"network": tuple(new.quantile([tail, 1 - tail]))}
    for score in SCORES:
        ends[score] = tuple(calibration.ConformalIntervals(calibrating, y_held, score=score).interval(new, LEVEL))
    ends[MAPIE] = by_mapie(regressor, x_held, y_held, x_test)
    for kind, (low, high) in ends.items():
        yield {"dataset": name, "split": split, "intervals": kind, **measured(low, high, y_test, new.total.sqrt())}


def table(rows: list[Row]) -> Iterator[str]:
    """Means over the splits with their standard errors, a line for each data set and kind of interval."""
    titles = ["data set", "intervals", "splits", "coverage", "width / sd of targets", "by predicted sd, thirds"]
    yield from head_of(titles, 2)
    for (name, kind), some in by_cell(rows, "intervals").items():
        found = [cell_of([100 * row["coverage"] for row in some], 1), cell_of([row["width"] for row in some], 3)]
        thirds = ", ".join(f"{100 * part:.0f}" for part in np.mean([row["thirds"] for row in some], 0))
        yield line_of([name, kind, str(len(some)), *found, thirds])


def pairs_of(rows: list[Row]) -> dict[tuple[str, str], list[Pair]]:
    """Coverage of all rows and of each third, by data set and kind of intervals."""
    shares = {
        key: zip(*([row["coverage"], *row["thirds"]] for row in some), strict=True)
        for key, some in by_cell(rows, "intervals").items()
    }
    return {key: [mean_and_error([100 * share for share in part]) for part in parts] for key, parts in shares.items()}


def expected_coverage(name: str, data: Path | None) -> float:
    """Coverage that the theory gives for the number of calibration rows of a data set."""
    num_rows = len(held_out(load_uci(name, 0, root=data), 0).x_test)
    return rank_of(LEVEL, num_rows) / (num_rows + 1)


def picture(
    cells: Mapping[tuple[str, str], Sequence[Pair]], path: Path, expected: Mapping[str, float], lines: Iterable[str]
) -> None:
    """Coverage of all test rows and of their thirds, with a line for each data set.

    Args:
        cells: Coverage of all rows and of each third, by data set and kind of intervals.
        path: The file to write.
        expected: The coverage that the theory gives, in per cent, for each data set in the order of the axis.
        lines: The table beside the picture.
    """
    names = [name.replace("wine-quality-red", "red wine") for name in expected]
    with plotting.style():
        axes = plotting.new_axes(1, len(PANELS), size=("page", 2.9))[0]
        for number, (ax, title) in enumerate(zip(axes, PANELS, strict=True)):
            _panel(ax, number, cells, expected)
            ax.set(title=title, xlabel="coverage, %", ylim=(len(names) - 0.5, -0.5))
            ax.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
            ax.tick_params(axis="y", length=0)
        low = min(74, *(ax.get_xlim()[0] for ax in axes))  # a number below all marks: they do not end there
        for ax in axes:
            ax.set(xlim=(low, 101.5), xticks=range(10 * math.ceil(low / 10), 101, 10))
        title = {"title": "Coverage of 90 % intervals of BNNRegressor, mean of 20 splits", "alignment": "left"}
        entries = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(*entries, loc="outside upper left", ncols=3, labelspacing=0.8, **title)
        save_small(axes[0], path, lines, num_colors=40)


def _panel(
    ax: Axes, number: int, cells: Mapping[tuple[str, str], Sequence[Pair]], expected: Mapping[str, float]
) -> None:
    """Points with error bars, and the expected coverage; `number` is the place of the coverage in its cell."""
    for place, percent in enumerate(expected.values()):
        label = "expected" if place == 0 else None
        ax.vlines(percent, place - 0.4, place + 0.4, color="0.4", linewidth=1.3, label=label, zorder=1.5)
    for beside, (kind, look) in zip((-0.16, 0.16), LOOKS.items(), strict=True):
        places = [place for place, name in enumerate(expected) if (name, kind) in cells]
        found = [cells[[*expected][place], kind][number] for place in places]
        ax.errorbar(
            [mean for mean, _ in found],
            [place + beside for place in places],
            xerr=[error or 0.0 for _, error in found],
            linestyle="",
            markersize=4,
            elinewidth=1.2,
            capsize=0,
            **look,
        )


def main() -> None:
    parser = parser_of("coverage", __doc__, data="uci/NAME")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=UCI_SETS, metavar="NAME")
    parser.add_argument("--splits", type=int, default=20, help="number of splits, from the first")
    parser.add_argument("--method", default="svi", help="method of BNNRegressor; default: %(default)s")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # calibration works for any fit
    torch.set_num_threads(1)
    file = options.out / "coverage.jsonl"
    done = {(row["dataset"], row["split"]) for row in read_rows(file)}
    for split in range(options.splits):
        for name in options.datasets:
            if (name, split) not in done:
                for row in list(split_rows(name, split, options.method, options.data)):
                    add_row(file, row)
                print(f"# {name} {split}", flush=True)
    rows = read_rows(file)
    print(*table(rows), sep="\n")
    names = dict.fromkeys(row["dataset"] for row in rows)
    expected = {name: 100 * expected_coverage(name, options.data) for name in names}
    picture(pairs_of(rows), options.out / "coverage.png", expected, table(rows))


if __name__ == "__main__":
    main()
