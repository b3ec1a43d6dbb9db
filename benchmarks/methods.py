"""Thirteen methods on FashionMNIST, cost beside quality: `python -m benchmarks.methods`.

First the settings of each method are chosen: a few are fitted to 50,000 training images, and the one with the smallest
NLL on the other 10,000 is used. Then each method is fitted to all training images and measured on the test images. Each
fit adds one line to FOLDER/results.jsonl, or in the search to FOLDER/search.jsonl, and is not repeated later. Tables
and picture are written after each line of results.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from . import _methods_scores, _methods_tables
from ._methods import NETWORKS, Fit, Method, Network, Points, PointSetting, Problem
from ._methods_list import METHODS, Deterministic
from ._methods_scores import Pictures
from ._results import Row, add_row, machine, parser_of, read_rows

BY_NAME = {method.name: method for method in METHODS}


class Table:
    """The cells of one network, in files of a folder; `load` is told whether to report on validation images."""

    def __init__(
        self, network: Network, load: Callable[[bool], Pictures], out: Path, echo: Callable[[str], None]
    ) -> None:
        self._network, self._load, self._out, self._echo = network, load, out, echo
        self._pictures: dict[bool, Pictures] = {}

    def rows(self, file: str) -> list[Row]:
        """The existing rows of a file with the same network and budget."""
        network = asdict(self._network)
        return [row for row in read_rows(self._out / file) if row["network"] == network]

    def search(self, method: type[Method]) -> Method:
        """The setting with the smallest NLL on the validation images; earlier fits of the search are not repeated."""
        settings = self.grid(method, PointSetting() if method is Deterministic else self._point())
        if len(settings) == 1:
            return settings[0]
        values = [self._cell("search.jsonl", setting, 0)["scores"]["nll"] for setting in settings]
        return settings[values.index(min(values))]

    def measure(self, method: type[Method], seed: int) -> None:
        """One cell of the table: the method with its chosen setting, fitted to all training images."""
        self._cell("results.jsonl", self.search(method), seed)

    def grid(self, method: type[Method], point: PointSetting) -> Sequence[Method]:
        """The settings to search; `point` is the best for a deterministic network."""
        return method.grid(self._network, point)

    def evaluate(self, fit: Fit, pictures: Pictures, key: Row) -> Row:
        """The scores of a fit; `key` has its method and its seed."""
        return _methods_scores.evaluate(fit, pictures, key["seed"])

    def _point(self) -> PointSetting:
        chosen = self.search(Deterministic)
        assert isinstance(chosen, Deterministic)
        return chosen

    def _cell(self, file: str, setting: Method, seed: int) -> Row:
        key = {"method": setting.name, "seed": seed, "setting": asdict(setting)}
        for row in self.rows(file):
            if all(row[name] == value for name, value in key.items()):
                return row
        is_validation = file == "search.jsonl"
        if is_validation not in self._pictures:
            self._pictures = {is_validation: self._load(is_validation)}
        pictures = self._pictures[is_validation]
        problem = Problem(self._network, pictures.x, pictures.y, seed)
        begin = time.process_time()
        fit = setting.fit(problem, Points(self._out))
        scores = self.evaluate(fit, pictures, key)
        row = {
            **key,
            "network": asdict(self._network),
            "num_train": len(pictures.x),
            "train_seconds": fit.cpu_seconds,
            "scores": scores,
            "status": str(fit.posterior.status),
            "machine": machine(),
        }
        add_row(self._out / file, row)
        said = ", ".join(f"{name} {value}" for name, value in key["setting"].items())
        self._echo(
            f"# {setting.name} seed {seed} ({said}): accuracy {scores['accuracy']:.2%}, NLL {scores['nll']:.4f}, "
            f"training {fit.cpu_seconds:.1f} s, cell {time.process_time() - begin:.1f} s of CPU time"
        )
        self.write()
        return row

    def write(self) -> str:
        """Write tables and picture; returns the tables."""
        latest = {(row["method"], row["seed"]): row for row in self.rows("results.jsonl")}  # without earlier choices
        rows = sorted(latest.values(), key=lambda row: row["seed"])
        text = _methods_tables.report(rows, self.rows("search.jsonl"))
        (self._out / "tables.md").write_text(text)
        if rows:
            _methods_tables.picture(rows, self._out / "cost.png")
        return text


def main(arguments: Sequence[str] | None = None) -> None:
    names = list(BY_NAME)
    parser = parser_of("methods", __doc__, data="FashionMNIST and MNIST")
    parser.add_argument("--network", choices=list(NETWORKS), default="mlp")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="METHOD", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--search", action="store_true", help="only choose settings on validation images")
    parser.add_argument("--epochs", type=int, help="number of epochs; default: that of the network")
    parser.add_argument("--draws", type=int, help="number of draws of a prediction; default: that of the network")
    parser.add_argument("--units", type=int, help="number of units of each hidden layer of the MLP")
    parser.add_argument("--train", type=int, help="number of training images, chosen at random")
    parser.add_argument("--test", type=int, help="number of images to report on, from the first")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    network = NETWORKS[given.network]
    for name in ("epochs", "draws", "units"):
        if (value := getattr(given, name)) is not None:
            network = replace(network, **{name: value})

    def load(is_validation: bool) -> Pictures:
        return _methods_scores.load(given.data, is_validation=is_validation, num_train=given.train, num_test=given.test)

    table = Table(network, load, given.out, functools.partial(print, flush=True))
    methods = [BY_NAME[name] for name in given.methods]
    for method in methods:
        table.search(method)
    if not given.search:
        for seed in given.seeds:
            for method in methods:
                table.measure(method, seed)
    print(f"\n{table.write()}")


if __name__ == "__main__":
    main()
