"""BNNRegressor with its defaults beside scikit-learn's Gaussian process and ridge: `python -m benchmarks.tables`.

Each data set, split and method leaves one line in FOLDER/results.jsonl; what is there already is not run again. The
tables are also written to FOLDER/tables.md.
"""

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pyro_bnn import BNNRegressor
from pyro_bnn import ConvergenceWarning as ChainsWarning
from pyro_bnn.data import UCI_SETS, Regression, load_uci

from .uci import METRICS, Row, cell, digits, read

DATASETS = ("yacht", "energy", "concrete")

Score = tuple[float, float, str]
"""RMSE and mean log-density in the units of the target, and a status."""


def of_bnn(method: str) -> Callable[[Regression, int], Score]:
    def run(data: Regression, seed: int) -> Score:
        regressor = BNNRegressor(method=method, random_state=seed).fit(data.x_train, data.y_train)
        prediction = regressor.predict_distribution(data.x_test)
        y = data.y_test.to(prediction.mean)
        error = float((prediction.mean - y).square().mean().sqrt())
        return error, float(prediction.log_prob(y).mean()), regressor.status_

    return run


def gaussian_process(data: Regression, seed: int) -> Score:
    """A length scale for each input, and a noise level, all by marginal likelihood."""
    num_inputs = data.x_train.shape[1]
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(np.ones(num_inputs), (1e-2, 1e3)) + WhiteKernel(0.1, (1e-6, 10.0))
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return of_sklearn(model, data)


def bayesian_ridge(data: Regression, seed: int) -> Score:
    return of_sklearn(BayesianRidge(), data)


def of_sklearn(regressor: object, data: Regression) -> Score:
    pipeline = make_pipeline(StandardScaler(), regressor).fit(data.x_train.numpy(), data.y_train.numpy().ravel())
    mean, scale = pipeline.predict(data.x_test.numpy(), return_std=True)
    y = data.y_test.numpy().ravel()
    return float(np.sqrt(np.mean((mean - y) ** 2))), float(norm.logpdf(y, mean, scale).mean()), ""


METHODS: dict[str, Callable[[Regression, int], Score]] = {
    "svi": of_bnn("svi"),
    "nuts": of_bnn("nuts"),
    "ensemble": of_bnn("ensemble"),
    "laplace": of_bnn("laplace"),
    "Gaussian process": gaussian_process,
    "Bayesian ridge": bayesian_ridge,
}


def table(rows: Sequence[Row], metric: str) -> str:
    """Means over the splits, with their standard errors; the number of splits where it is not the largest."""
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    found = [name for name in UCI_SETS if any(row["dataset"] == name for row in rows)]
    values: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row["dataset"], row["method"]), []).append(row[metric])
    most = max(map(len, values.values()), default=0)
    better = min if metric == "rmse" else max
    lines = [f"| data set | {' | '.join(methods)} |", "|---" + "|--:" * len(methods) + "|"]
    for name in found:
        means = {method: statistics.fmean(values[name, method]) for method in methods if (name, method) in values}
        best = better(means, key=means.__getitem__)
        cells = [cell(values.get((name, method), ()), most, digits(name), method == best) for method in methods]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(rows: Sequence[Row]) -> str:
    """Both tables, and the median time of a fit with its predictions."""
    lines = ["Seconds for a split (median):\n"]
    for method in METHODS:
        seconds = {
            name: [row["seconds"] for row in rows if (row["method"], row["dataset"]) == (method, name)]
            for name in UCI_SETS
        }
        said = ", ".join(f"{name} {statistics.median(some):.0f}" for name, some in seconds.items() if some)
        if said:
            lines.append(f"- {method}: {said}")
    return "\n\n".join([*(f"{title}:\n\n{table(rows, m)}" for m, title in METRICS.items()), "\n".join(lines)]) + "\n"


def run(name: str, split: int, method: str, seed: int, root: Path | None) -> Row:
    begin = time.perf_counter()
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, ChainsWarning):  # the row has the status
            warnings.simplefilter("ignore", kind)
        rmse, log_likelihood, status = METHODS[method](load_uci(name, split, root=root), 1000 * seed + split)
    seconds = round(time.perf_counter() - begin, 2)
    assert math.isfinite(log_likelihood)
    row: Row = {"dataset": name, "split": split, "method": method, "seed": seed, "rmse": rmse}
    return {**row, "log_likelihood": log_likelihood, "seconds": seconds, "status": status}


def main() -> None:
    names = list(METHODS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds uci/NAME; default $PYRO_BNN_DATA")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results and tables go")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=DATASETS, metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--splits", type=int, default=5, help="the first so many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.jsonl"
    done = {(row["dataset"], row["split"], row["method"]): row for row in read(file, seed=options.seed)}
    for split in range(options.splits):
        for name in options.datasets:
            for method in options.methods:
                if (name, split, method) in done:
                    continue
                row = done[name, split, method] = run(name, split, method, options.seed, options.data)
                with file.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(f"# {name} {split} {method}: {row['rmse']:.4f} {row['log_likelihood']:.4f}", flush=True)
    text = report(list(done.values()))
    (options.out / "tables.md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
