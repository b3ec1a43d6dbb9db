"""A vision transformer, and a convolutional network on an hourly series: `python -m benchmarks.small_networks`.

The transformer has 24,000 weights and learns FashionMNIST from 10,000 images. The convolutional network has 21,000
weights and forecasts the number of bicycles that are hired in the next hour. Settings of each method are compared on
validation data, with seed 0; then each method is fitted with each seed and measured on the test data. Each fit adds one
line to FOLDER/PROBLEM/results.jsonl, or in the search to search.jsonl, and is not repeated later.
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from . import _small_baselines, _small_series, _small_tables, _small_vision
from ._results import add_row, machine, parser_of
from .methods import Table

PROBLEMS: dict[str, Any] = {"vision": _small_vision, "series": _small_series}
WRITERS = {"vision": _small_tables.vision, "series": _small_tables.series}


def run(name: str, given: Any) -> str:
    """Fill the tables of a problem; returns them."""
    problem, out = PROBLEMS[name], given.out / name
    out.mkdir(exist_ok=True)
    changed = {key: value for key in ("epochs", "draws", "units") if (value := getattr(given, key)) is not None}
    network = replace(problem.NETWORK, **changed)

    def load(is_validation: bool) -> Any:
        return problem.load(given.data, is_validation, given.train, given.test)

    echo = functools.partial(print, flush=True)
    table = Table(network, load, problem.evaluate, WRITERS[name], out, echo)
    if name == "series" and not given.search:
        known = {row["method"] for row in table.rows("results.jsonl")}
        for baseline in _small_baselines.BASELINES.keys() - known:
            row = _small_baselines.measure(baseline, load(False))
            add_row(out / "results.jsonl", {**row, "network": asdict(network), "machine": machine()})
    methods = [method for method in problem.METHODS if given.methods is None or method.name in given.methods]
    table.fill(methods, [] if given.search else given.seeds)
    return table.write()


def main(arguments: Sequence[str] | None = None) -> None:
    names = dict.fromkeys(method.name for problem in PROBLEMS.values() for method in problem.METHODS)
    parser = parser_of("small_networks", __doc__, data="FashionMNIST, MNIST and tables/bikesharing.csv")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--methods", nargs="+", choices=list(names), metavar="METHOD", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--search", action="store_true", help="only choose settings on validation data")
    parser.add_argument("--epochs", type=int, help="number of epochs; default: that of the network")
    parser.add_argument("--draws", type=int, help="number of draws of a prediction; default: that of the network")
    parser.add_argument("--units", type=int, help="width of the network")
    parser.add_argument("--train", type=int, help="number of training rows")
    parser.add_argument("--test", type=int, help="number of rows to report on")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in given.problems:
        print(f"\n{run(name, given)}")


if __name__ == "__main__":
    main()
