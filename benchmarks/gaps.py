"""Regression where no training row is near: `python -m benchmarks.gaps`.

For each input there is one split. Its test rows are those in the middle third of that input's distinct values, its
training rows the others. Each fit adds one line to FOLDER/gaps.jsonl; existing lines are not computed again.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields

import numpy as np
import torch

from pyro_bnn.data import UCI_SETS, Regression, load_uci

from ._regression import LEVEL, Budget, Method, Problem, Score, Setting, timed
from ._results import Row, add_row, by_cell, cell_of, head_of, line_of, parser_of, read_rows
from ._yardsticks import Defaults, GaussianProcess

SETS = ("yacht", "energy", "concrete", "power-plant")
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Defaults("BNNRegressor()", "auto"),
        Defaults("mean field", "svi"),
        Defaults("ensemble", "ensemble"),
        Defaults("NUTS", "nuts"),
        GaussianProcess(),
    )
}


def gap(values: np.ndarray) -> np.ndarray:
    """For each row, whether its value is in the middle third of the distinct values."""
    low, high = np.quantile(np.unique(values), [1 / 3, 2 / 3])
    return (values > low) & (values <= high)


def gaps_of(data: Regression) -> Iterator[tuple[int, Regression]]:
    """The splits of all rows, each with the index of its input; inputs with two values have no split."""
    x, y = torch.cat([data.x_train, data.x_test]), torch.cat([data.y_train, data.y_test])
    for column in range(x.shape[1]):
        is_test = torch.from_numpy(gap(x[:, column].numpy()))
        if is_test.any():
            yield column, Regression(x[~is_test], y[~is_test], x[is_test], y[is_test])


def table(rows: list[Row]) -> Iterator[str]:
    """Means over the inputs of a data set with their standard errors, and the worst input's NLL."""
    columns = ["NLL", "worst input", "RMSE", f"in the {LEVEL:.0%} intervals", "CPU s"]
    yield from head_of(["data set", "method", "gaps", *columns], 2)
    for (name, method), some in by_cell(rows).items():
        of = {key: [float(row[key]) for row in some] for key in ("rmse", "coverage", "seconds")}
        nll = [-float(row["log_likelihood"]) for row in some]
        found = [cell_of(nll, 3), f"{max(nll):.2f}", cell_of(of["rmse"], 3)]
        yield line_of([name, method, str(len(some)), *found, cell_of(of["coverage"], 3), cell_of(of["seconds"], 0)])


def main() -> None:
    parser = parser_of("gaps", __doc__, data="uci/NAME")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=SETS, metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], metavar="NAME")
    parser.add_argument("--inputs", type=int, help="number of inputs of each data set, from the first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.out / "gaps.jsonl"
    done = {(row["dataset"], row["method"], row["input"]) for row in read_rows(file)}
    for name in options.datasets:
        for column, data in list(gaps_of(load_uci(name, 0, root=options.data)))[: options.inputs]:
            for method in options.methods:
                if (name, method, column) in done:
                    continue
                result, seconds = timed(METHODS[method], Problem.of(data), Setting(), Budget(), column)
                scores = asdict(result) if result else dict.fromkeys(field.name for field in fields(Score))
                key: Row = {"dataset": name, "method": method, "input": column, "rows": len(data.x_test)}
                add_row(file, {**key, **scores, "seconds": seconds})
                print(f"# {name} {column} {method}: {scores['rmse']} {scores['log_likelihood']}", flush=True)
    print(*table(read_rows(file)), sep="\n")


if __name__ == "__main__":
    main()
