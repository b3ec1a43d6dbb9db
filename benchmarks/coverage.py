"""Coverage and width of 90 % intervals on six UCI data sets: `python -m benchmarks.coverage`. See README.md.

A fifth of the training rows of each split calibrates the intervals of a network that was fitted to the other rows.
MAPIE calibrates the same network with the same rows. Each split adds a line for each kind of interval to
FOLDER/coverage.jsonl; existing lines are not computed again.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from pyro_bnn import BNNRegressor, calibration
from pyro_bnn.data import UCI_SETS, load_uci

from ._regression import held_out
from ._results import Row, add_row, by_cell, cell_of, line_of, read_rows

LEVEL = 0.9
SCORES: tuple[calibration.IntervalScore, ...] = ("absolute", "scaled", "quantile")
MAPIE = "MAPIE, absolute"


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
    yield line_of(["data set", "intervals", "splits", "coverage", "width / sd of targets", "by predicted sd, thirds"])
    yield "|---|---|--:|--:|--:|--:|"
    for (name, kind), some in by_cell(rows, "intervals").items():
        found = [cell_of([100 * row["coverage"] for row in some], 1), cell_of([row["width"] for row in some], 3)]
        thirds = ", ".join(f"{100 * part:.0f}" for part in np.mean([row["thirds"] for row in some], 0))
        yield line_of([name, kind, str(len(some)), *found, thirds])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that contains uci/NAME; default $PYRO_BNN_DATA")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=UCI_SETS, metavar="NAME")
    parser.add_argument("--splits", type=int, default=20, help="number of splits, from the first")
    parser.add_argument("--method", default="svi", help="method of BNNRegressor; default: %(default)s")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # calibration works for any fit
    torch.set_num_threads(1)
    file = options.out / "coverage.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    done = {(row["dataset"], row["split"]) for row in read_rows(file)}
    for split in range(options.splits):
        for name in options.datasets:
            if (name, split) not in done:
                for row in list(split_rows(name, split, options.method, options.data)):
                    add_row(file, row)
                print(f"# {name} {split}", flush=True)
    print(*table(read_rows(file)), sep="\n")


if __name__ == "__main__":
    main()
