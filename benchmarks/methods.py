"""Seventeen methods on FashionMNIST, cost beside quality: `python -m benchmarks.methods`.

First the settings of each method are chosen: a few are fitted to 50,000 training images, and the one with the smallest
NLL on the other 10,000 is used. Then each method is fitted to all training images and measured on the test images. Each
fit adds one line to FOLDER/results.jsonl, or in the search to FOLDER/search.jsonl, and is not repeated later. Tables
and picture are written after each line of results.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from . import _methods_scores, _methods_tables
from ._methods import NETWORKS, Fit, Method, Network, Points, PointSetting, Problem
from ._methods_list import METHODS, Deterministic
from ._methods_scores import Pictures
from ._results import Row, add_row, machine, parser_of, read_rows

BY_NAME = {method.name: method for method in METHODS}


class Data(Protocol):
    """Training data; an `evaluate` function knows the rest."""

    @property
    def x(self) -> Tensor: ...

    @property
    def y(self) -> Tensor: ...


D = TypeVar("D", bound=Data)


class Table(Generic[D]):
    """The cells of one network, in files of a folder.

    Args:
        network: The network.
        load: Loads the data; it is told whether to report on validation data.
        evaluate: Returns the scores of a fit on the data, given the method's name, seed and setting.
        write: Writes tables and pictures to a folder, given the rows of results and of the search; returns the tables.
        out: The folder.
        echo: Prints a line.
        device: Where the methods are fitted.
        point: The setting of one network and of ensembles; with None, it is chosen on validation images.
    """

    def __init__(
        self,
        network: Network,
        load: Callable[[bool], D],
        evaluate: Callable[[Fit, D, Row], Row],
        write: Callable[[Sequence[Row], Sequence[Row], Path], str],
        out: Path,
        echo: Callable[[str], None],
        device: str = "cpu",
        point: PointSetting | None = None,
    ) -> None:
        self._network, self._load, self._evaluate, self._write = network, load, evaluate, write
        self._out, self._echo, self._device, self._given = out, echo, device, point
        self._data: dict[bool, D] = {}

    def rows(self, file: str) -> list[Row]:
        """The existing rows of a file with the same network and budget."""
        network = asdict(self._network)
        return [row for row in read_rows(self._out / file) if row["network"] == network]

    def search(self, method: type[Method]) -> Method:
        """The setting with the smallest NLL on the validation images; earlier fits of the search are not repeated."""
        if self._given is not None and {field.name for field in fields(method)} == asdict(self._given).keys():
            return method(**asdict(self._given))
        if method.chosen_with is not None:
            return method(**asdict(self.search(method.chosen_with)))
        settings = self._network.grid(method, PointSetting() if method is Deterministic else self._point())
        if len(settings) == 1:
            return settings[0]
        values = [self._cell("search.jsonl", setting, 0)["scores"]["nll"] for setting in settings]
        return settings[values.index(min(values))]

    def fill(self, methods: Sequence[type[Method]], seeds: Sequence[int]) -> None:
        """Choose the settings of some methods, and then measure each with some seeds."""
        for method in methods:
            self.search(method)
        for seed in seeds:
            for method in methods:
                self.measure(method, seed)

    def measure(self, method: type[Method], seed: int) -> None:
        """One cell of the table: the method with its chosen setting, fitted to all training images."""
        self._cell("results.jsonl", self.search(method), seed)

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
        if is_validation not in self._data:
            self._data = {is_validation: self._load(is_validation)}
        data = self._data[is_validation]
        problem = Problem(self._network, data.x.to(self._device), data.y.to(self._device), seed)
        begin = time.process_time()
        fit = setting.fit(problem, Points(self._out))
        scores = self._evaluate(fit, data, key)
        row = {
            **key,
            "network": asdict(self._network),
            "num_train": len(data.x),
            "train_seconds": fit.cpu_seconds,
            "scores": scores,
            "status": str(fit.posterior.status),
            "machine": machine(self._device),
        }
        add_row(self._out / file, row)
        said = ", ".join(f"{name} {value}" for name, value in key["setting"].items())
        found = ", ".join(f"{name} {value:.4f}" for name, value in scores.items() if isinstance(value, float))
        seconds = f"training {fit.cpu_seconds:.1f} s, cell {time.process_time() - begin:.1f} s of CPU time"
        self._echo(f"# {setting.name} seed {seed} ({said}): {found}, {seconds}")
        self.write()
        return row

    def write(self) -> str:
        """Write tables and picture; returns the tables."""
        latest = {(row["method"], row["seed"]): row for row in self.rows("results.jsonl")}  # without earlier choices
        rows = sorted(latest.values(), key=lambda row: row["seed"])
        return self._write(rows, self.rows("search.jsonl"), self._out)


TITLES = {"mlp": "784-400-400-10", "lenet": "LeNet-5", "lenet-mirrored": "LeNet-5 with mirrored images"}
"""Names of the networks in pictures."""


def main(arguments: Sequence[str] | None = None) -> None:
    names = list(BY_NAME)
    parser = parser_of("methods", __doc__, data="FashionMNIST and MNIST")
    parser.add_argument("--network", choices=list(NETWORKS), default="mlp")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="METHOD", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--search", action="store_true", help="only choose settings on validation images")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--epochs", type=int, help="number of epochs; default: that of the network")
    parser.add_argument("--draws", type=int, help="number of draws of a prediction; default: that of the network")
    parser.add_argument(
        "--point",
        nargs=2,
        type=float,
        metavar=("SCALE", "RATE"),
        help="prior scale and learning rate of one network and of ensembles; default: the best on validation images",
    )
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
        return _methods_scores.load(
            given.data,
            is_validation=is_validation,
            num_train=given.train,
            num_test=given.test,
            is_mirrored=network.is_mirrored,
        )

    echo = functools.partial(print, flush=True)
    title = f"{TITLES[given.network]} on FashionMNIST, {len(given.seeds)} seeds"
    write = functools.partial(_methods_tables.write, title=title)
    point = PointSetting(*given.point) if given.point else None
    table = Table(network, load, _methods_scores.evaluate, write, given.out, echo, given.device, point)
    table.fill([BY_NAME[name] for name in given.methods], [] if given.search else given.seeds)
    print(f"\n{table.write()}")


if __name__ == "__main__":
    main()
