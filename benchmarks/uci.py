"""Regression on six UCI data sets and their published splits: `python -m benchmarks.uci`.

Each data set, split and method adds one line to FOLDER/results.jsonl, and each setting that is tried on validation rows
adds one to FOLDER/search.jsonl; existing lines are not computed again. FOLDER/tables.md is written after each line.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import torch

from pyro_bnn.data import UCI_SETS, load_uci

from ._regression import Budget, Method, Problem, Score, Setting, held_out, timed
from ._regression_methods import NETWORK_METHODS
from ._results import Row, add_row, parser_of, read_rows
from ._uci_tables import NAMES, report
from ._yardsticks import YARDSTICKS

METHODS: tuple[Method, ...] = (*NETWORK_METHODS, *YARDSTICKS)

SMALL = 2000
"""With more training rows, settings are searched on validation rows of the first split only, to save time."""


class Lines:
    """A file of rows as lines of JSON, to which several programs may add. Only rows with this seed and budget are used.

    Args:
        file: The file.
        key: Names of the values that identify a row.
        seed: Seed that the rows must have.
        budget: Budget that the rows must have, except for the sizes of NUTS, which depend on the data set.
    """

    def __init__(self, file: Path, key: Sequence[str], *, seed: int, budget: Budget) -> None:
        self._file, self._key, self._same = file, key, {"seed": seed, "budget": asdict(budget)}
        self._size, self._rows = -1, {}

    def _of(self, row: Row) -> str:
        return json.dumps([row[name] for name in self._key])

    def _present(self) -> dict[str, Row]:
        """The rows by key. The file is read again if its size has changed."""
        size = self._file.stat().st_size if self._file.exists() else 0
        if size != self._size:
            self._size = size
            self._rows = {self._of(row): row for row in read_rows(self._file) if self._is_wanted(row)}
        return self._rows

    def _is_wanted(self, row: Row) -> bool:
        theirs, ours = (Budget(**same["budget"]).without_nuts() for same in (row, self._same))
        return row["seed"] == self._same["seed"] and theirs == ours

    def __iter__(self) -> Iterator[Row]:
        return iter(self._present().values())

    def get(self, **key: object) -> Row | None:
        """The row with a key; None if there is none."""
        return self._present().get(self._of(key))

    def add(self, row: Row) -> Row:
        """Add a row to the file, with the seed and the budget if the row has none."""
        row = self._same | row
        add_row(self._file, row)
        return row


class Table:
    """All cells of the tables, and their files in the folder `out`."""

    def __init__(self, out: Path, data: Path | None, budget: Budget, seed: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out, self._data, self._budget, self._seed = out, data, budget, seed
        same = {"seed": seed, "budget": budget}
        self.results = Lines(out / "results.jsonl", ("dataset", "method", "split"), **same)
        self.searched = Lines(out / "search.jsonl", ("dataset", "method", "split", "setting"), **same)

    def run(self, name: str, method: Method, split: int) -> Row | None:
        """Fill in a cell. Returns None if the cell exists, or if the data have too many rows for the method."""
        key: Row = {"dataset": name, "method": method.name, "split": split}
        if self.results.get(**key) is not None:
            return None
        problem = Problem.of(load_uci(name, split, root=self._data))
        if len(problem.x) > method.most_rows:
            return None
        setting = self.choose(name, method)
        budget = self._budget.of(name)
        result, seconds = timed(method, problem, setting, budget, 1000 * self._seed + split)
        scores = asdict(result) if result else dict.fromkeys(field.name for field in fields(Score))
        found = {"setting": asdict(setting), "budget": asdict(budget), "seconds": seconds}
        row = self.results.add({**key, **scores, **found})
        (self._out / "tables.md").write_text(report(self.results, self.searched, METHODS))
        return row

    def choose(self, name: str, method: Method) -> Setting:
        """The setting with the largest mean log-likelihood on validation rows of the first splits."""
        method = method.tuned_as or method
        if len(method.grid) == 1:
            return method.grid[0]
        num_splits = method.most_searched if len(load_uci(name, 0, root=self._data).x_train) <= SMALL else 1
        means = [
            statistics.fmean(self._validated(name, method, setting, split) for split in range(num_splits))
            for setting in method.grid
        ]
        return method.grid[max(range(len(means)), key=means.__getitem__)]

    def _validated(self, name: str, method: Method, setting: Setting, split: int) -> float:
        """Log-likelihood on validation rows of a split; minus infinity if the fit failed."""
        key: Row = {"dataset": name, "method": method.name, "split": split, "setting": asdict(setting)}
        row = self.searched.get(**key)
        if row is None:
            seed = 1000 * self._seed + split
            problem = Problem.of(held_out(load_uci(name, split, root=self._data), seed))
            result, seconds = timed(method, problem, setting, self._budget.of(name), seed)
            values = {"log_likelihood": result and result.log_likelihood, "rmse": result and result.rmse}
            row = self.searched.add({**key, **values, "seconds": seconds})
        value = row["log_likelihood"]
        return -float("inf") if value is None else float(value)


def main() -> None:
    names = [method.name for method in METHODS]
    defaults = Budget()
    parser = parser_of("uci", __doc__, data="uci/NAME")
    parser.add_argument("--datasets", nargs="+", choices=UCI_SETS, default=NAMES, metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--without", nargs="+", choices=names, default=(), metavar="NAME", help="all but these")
    parser.add_argument("--splits", type=int, default=20, help="number of splits, from the first")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("steps", "draws", "depth", "chains"):
        default = getattr(defaults, name)
        text = "default: by data set" if default is None else "default: %(default)s"
        parser.add_argument(f"--{name}", type=int, default=default, help=f"see {Budget.__name__}; {text}")
    parser.add_argument("--no-compile", action="store_true", help="sample without a C compiler")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {name: getattr(options, name) for name in ("steps", "draws", "depth", "chains")}
    table = Table(options.out, options.data, Budget(**sizes, compile=not options.no_compile), options.seed)
    methods = [m for m in METHODS if m.name in options.methods and m.name not in options.without]
    for split in range(options.splits):
        for name in options.datasets:
            for method in methods:
                row = table.run(name, method, split)
                if row is not None:
                    print(f"# {name} {split} {method.name}: {row['rmse']} {row['log_likelihood']}", flush=True)
    print("\n" + report(table.results, table.searched, METHODS))


if __name__ == "__main__":
    main()
