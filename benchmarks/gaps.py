"""Regression where no training row is near: `python -m benchmarks.gaps`. See README.md.

For each input there is one split. Its test rows are those in the middle third of that input's distinct values, its
training rows the others. Each fit leaves one line in FOLDER/gaps.jsonl; what is there already is not run again.
"""

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.distributions import Normal

from pyro_bnn import BNNRegressor
from pyro_bnn.data import UCI_SETS, load_uci

from ._regression import processor_seconds
from ._results import Row, add_row, cell_of, line_of, read_rows

SETS = ("yacht", "energy", "concrete", "power-plant")
LEVEL = 0.95
Rows = np.ndarray
Predicted = tuple[Tensor, Tensor, Tensor]
"""Log-density of each test target, its mean, and whether its interval holds it; each of shape (N,)."""


def by_network(method: str, x: Rows, y: Rows, x_test: Rows, y_test: Rows, seed: int) -> Predicted:
    """Predictions by an estimator of this library."""
    prediction = BNNRegressor(method=method, random_state=seed).fit(x, y).predict_distribution(x_test)
    target = torch.from_numpy(y_test)[:, None]
    low, high = prediction.quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return prediction.log_prob(target), prediction.mean[:, 0], ((low <= target) & (target <= high))[:, 0]


def by_process(x: Rows, y: Rows, x_test: Rows, y_test: Rows, seed: int) -> Predicted:
    """Predictions by scikit-learn's Gaussian process with a scale for each input."""
    inputs = StandardScaler().fit(x)
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed)
    mean, scale = process.fit(inputs.transform(x), y).predict(inputs.transform(x_test), return_std=True)
    normal, target = Normal(torch.from_numpy(mean), torch.from_numpy(scale)), torch.from_numpy(y_test)
    return normal.log_prob(target), normal.mean, (normal.cdf(target) - 0.5).abs() <= LEVEL / 2


METHODS: dict[str, Callable[..., Predicted]] = {
    "BNNRegressor()": lambda *rows: by_network("auto", *rows),
    "mean field": lambda *rows: by_network("svi", *rows),
    "ensemble": lambda *rows: by_network("ensemble", *rows),
    "NUTS": lambda *rows: by_network("nuts", *rows),
    "Gaussian process": by_process,
}

MOST_PROCESS = 2000
"""Largest number of training rows for the Gaussian process, whose time grows with their cube."""


def gap(values: Rows) -> Rows:
    """Whether each row is in the middle third of the distinct values, of which there may be few."""
    low, high = np.quantile(np.unique(values), [1 / 3, 2 / 3])
    return (values > low) & (values <= high)


def scores(method: str, x: Rows, y: Rows, is_test: Rows, seed: int) -> Row:
    """Scores of one fit, on the rows in the gap."""
    begin = processor_seconds()
    density, mean, is_held = METHODS[method](x[~is_test], y[~is_test], x[is_test], y[is_test], seed)
    return {
        "log_likelihood": float(density.mean()),
        "rmse": float((mean - torch.from_numpy(y[is_test])).square().mean().sqrt()),
        "coverage": float(is_held.double().mean()),
        "seconds": round(processor_seconds() - begin, 1),
    }


def table(rows: list[Row]) -> Iterator[str]:
    """Means over the inputs of a data set with their standard errors, and the worst input's log-likelihood."""
    columns = ["log-likelihood", "worst input", "RMSE", f"in the {LEVEL:.0%} intervals", "CPU s"]
    yield line_of(["data set", "method", "gaps", *columns])
    yield "|---|---" + "|--:" * (len(columns) + 1) + "|"
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["dataset"], row["method"]), []).append(row)
    for (name, method), some in sorted(cells.items(), key=lambda cell: SETS.index(cell[0][0])):
        of = {key: [float(row[key]) for row in some] for key in ("log_likelihood", "rmse", "coverage", "seconds")}
        found = [cell_of(of["log_likelihood"], 3), f"{min(of['log_likelihood']):.2f}", cell_of(of["rmse"], 3)]
        yield line_of([name, method, str(len(some)), *found, cell_of(of["coverage"], 3), cell_of(of["seconds"], 0)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gaps", description=__doc__)
    data = os.environ.get("PYRO_BNN_DATA", "data")
    parser.add_argument("--data", type=Path, default=data, help="folder that holds uci/NAME; default $PYRO_BNN_DATA")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=SETS, metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], metavar="NAME")
    parser.add_argument("--inputs", type=int, help="the first so many of each data set")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    file = options.out / "gaps.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.datasets:
        split = load_uci(name, 0, root=options.data)
        x, y = (torch.cat(parts).numpy() for parts in ((split.x_train, split.x_test), (split.y_train, split.y_test)))
        y = y.reshape(len(x))
        for column in range(x.shape[1])[: options.inputs]:
            is_test = gap(x[:, column])
            for method in options.methods:
                done = {(row["dataset"], row["method"], row["input"]) for row in read_rows(file)}
                is_large = method == "Gaussian process" and (~is_test).sum() > MOST_PROCESS
                if (name, method, column) in done or is_large or not is_test.any() or is_test.all():
                    continue
                found = scores(method, x, y, is_test, column)
                row: dict[str, Any] = {"dataset": name, "method": method, "input": column, "rows": int(is_test.sum())}
                add_row(file, {**row, **found})
                print(f"# {name} {column} {method}: {found}", flush=True)
    print(*table(read_rows(file)), sep="\n")


if __name__ == "__main__":
    main()
