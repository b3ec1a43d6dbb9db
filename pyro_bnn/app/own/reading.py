"""Tables in files, as texts by column. What the texts mean is decided in :mod:`~pyro_bnn.app.own.columns`."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["TABLES", "Table", "number_in", "read_table"]

SEPARATED, PARQUET = (".csv", ".tsv", ".txt"), (".parquet",)
TABLES = (*SEPARATED, *PARQUET)
"""Endings of the files that are read as tables."""

SEPARATORS = ",;\t|"
MISSING = frozenset(("", "na", "n/a", "#n/a", "nan", "<na>", "null", "?"))
"""Cells that hold no value, in lower case."""

Texts = list[str | None]
"""The cells of a column; None is a missing value."""


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Args:
        shown: Where it is from, for messages.
        columns: The cells of each column by its name; all columns are of one length.
        allows_commas: Whether numbers may have decimal commas, as where commas do not separate cells.
    """

    shown: str
    columns: Mapping[str, Texts]
    allows_commas: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str) -> Texts:
        """The cells of a column.

        Raises:
            ValueError: If there is no such column.
        """
        self.require([name])
        return self.columns[name]

    def require(self, names: Sequence[str]) -> None:
        """Check that there are columns of these names.

        Raises:
            ValueError: If one is missing.
        """
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise ValueError(
                f"{self.shown} has no column {listed(missing)}; its columns are {listed(list(self.columns))}."
            )

    def rows(self, numbers: Sequence[int]) -> "Table":
        """The table with some of its rows, by their numbers from 0."""
        return replace(self, columns={name: [cells[i] for i in numbers] for name, cells in self.columns.items()})


def number_in(text: str, otherwise: float = math.nan) -> float:
    """The number that a text is, or what to take otherwise.

    Python's ``1_000`` is none, but a code; nor is ``nan``, with or without a sign.

    Example:
        >>> [number_in(text, 0.0) for text in ("-2.5e3", "1_1", "+nan")]
        [-2500.0, 0.0, 0.0]
    """
    try:
        number = otherwise if "_" in text else float(text)
    except ValueError:
        return otherwise
    return otherwise if math.isnan(number) else number


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in quotes for a message; the last ones of many are left out."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def read_table(path: str | Path) -> Table:
    """The table in a file: text with a header and separators (comma, semicolon, tab or bar), or Parquet.

    Cells are stripped of blanks around them. Missing values are empty cells and the texts NA, N/A, NaN, null and ?.

    Args:
        path: The file; its ending says what it is.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no table, or needs pandas, which is not installed; the message says why.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    if not path.is_file():
        raise ValueError(f"{path} is no file; pass a table in a file, such as table.csv.")
    is_parquet = path.suffix.lower() in PARQUET
    header, rows, separator = (*_parquet(path), "") if is_parquet else _separated(path)
    names = [name.strip() for name in header]
    columns: dict[str, Texts] = {}
    for number, (name, cells) in enumerate(zip(names, rows, strict=True), 1):
        texts = [_text(cell) for cell in cells]
        if not name and _counts_rows(texts):
            continue  # the index that pandas writes
        if not name:
            raise ValueError(f"column {number} of {path} has no name; write one into the first line.")
        if name in columns:
            raise ValueError(f"{path} has two columns {name!r}; give them different names.")
        columns[name] = texts
    table = Table(str(path), columns, allows_commas=separator not in ("", ","))
    if not len(table):
        raise ValueError(f"{path} holds no rows; pass a table with a line of names and a line for each row.")
    return table


def _text(cell: str) -> str | None:
    text = cell.strip()
    return None if text.lower() in MISSING else text


def _counts_rows(texts: Texts) -> bool:
    """Whether a column counts its rows from 0 or 1."""
    return any(all(text == str(i) for i, text in enumerate(texts, first)) for first in (0, 1))


def _separated(path: Path) -> tuple[list[str], list[tuple[str, ...]], str]:
    """The header and the columns of a text file, and what separates its cells."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first, num_blank = _first_line(path, file)
            separator = _separator(path, first)
            reader = csv.reader(_chained(first, file), delimiter=separator, skipinitialspace=True)
            lines = list(_lines(path, reader, num_blank))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text in UTF-8 (byte {error.object[error.start]:#04x} cannot be read); save it as UTF-8."
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}; pass a text file with a separator between cells.") from error
    if not lines:
        raise ValueError(f"{path} is empty; pass a table with a line of names and a line for each row.")
    header, *rows = lines
    if all(math.isfinite(number_in(cell)) for cell in header):
        raise ValueError(f"{path} has no names of columns: its first line holds numbers; put a line of names above it.")
    return header, list(zip(*rows, strict=True)) if rows else [() for _ in header], separator


def _first_line(path: Path, file: Any) -> tuple[str, int]:
    """The first line that is not blank, and the number of blank ones before it."""
    first, num_blank = file.readline(), 0
    while first and not first.strip():
        first, num_blank = file.readline(), num_blank + 1
    if "\0" in first:
        raise ValueError(f"{path} is no text: it holds bytes of value 0; save it as text in UTF-8.")
    return first, num_blank


def _separator(path: Path, first: str) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else max(SEPARATORS, key=first.count)


def _lines(path: Path, reader: Any, num_blank: int) -> Iterator[list[str]]:
    """The lines of a text file as lists of cells, all of one length."""
    num_cells = None
    for cells in reader:
        if not any(cell.strip() for cell in cells) and len(cells) < 2:
            continue
        num_cells = num_cells or len(cells)
        if len(cells) != num_cells:
            raise ValueError(
                f"line {num_blank + reader.line_num} of {path} has {len(cells)} cells, and the first line {num_cells}; "
                "quote cells that hold the separator, and mend the line."
            )
        yield cells


def _chained(first: str, rest: Any) -> Iterator[str]:
    if first:
        yield first
    yield from rest


def _parquet(path: Path) -> tuple[list[str], list[list[str]]]:
    """The same of a Parquet file."""
    try:
        import pandas  # late: an extra, whose import takes long
        import pyarrow
    except ImportError as error:
        raise ValueError(
            f"{path} needs pandas and pyarrow, which are not installed: pip install 'pyro-bnn[tables]'; or save the "
            "table as CSV."
        ) from error
    try:
        frame = pandas.read_parquet(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} is no Parquet file: {error}.") from error
    names = [str(name) for name in frame.columns]
    return names, [_texts(frame.iloc[:, index], pandas) for index in range(len(names))]


def _texts(column: Any, pandas: Any) -> list[str]:
    """A column of pandas as texts; floats with all their digits."""
    is_missing = column.isna()
    if is_missing.all():
        return [""] * len(column)
    values = column.astype(object)
    if pandas.api.types.is_float_dtype(column):
        return ["" if lost else repr(float(value)) for value, lost in zip(values, is_missing, strict=True)]
    return ["" if lost else str(value) for value, lost in zip(values, is_missing, strict=True)]
