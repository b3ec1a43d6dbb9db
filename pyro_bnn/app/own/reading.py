"""Reading of tables by pandas. All cells are texts, which :mod:`~pyro_bnn.app.own.cells` reads as numbers or dates."""

import csv
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..._core.names import nearest
from ..specs import check_content
from .cells import Cells, listed, training_without, without_marks

MOST_NAMED = 5  # largest number of rows or columns in a note
MANY, WARNING = 0.1, "Warning:"  # heuristic: if this share of the rows is left out, the note begins with this word
SEPARATORS = ",;\t|"
WHITE_SPACE = r"\s+"  # as pandas names it
MISSING = frozenset(("", "na", "n/a", "#n/a", "nan", "<na>", "null", "?"))  # in lower case


@dataclass(frozen=True)
class Table:
    """A table, in which a cell is a text, or None if it is missing. The index of `frame` has row numbers from 1."""

    shown: str  # name of the file, for messages
    frame: pd.DataFrame
    separator: str = ","  # character between the cells in the file; empty for Parquet
    notes: tuple[str, ...] = ()  # sentences for the user
    lines: Sequence[int] | None = None  # the line of each row in a text file

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    def column(self, name: str) -> Cells:
        """Return the cells of a column."""
        self.require([name])
        remedy = training_without([name])
        return Cells(name, self.shown, self.frame[name], self.separator, instead=remedy, place=self.place)

    def place(self, row: int) -> str:
        """Say where a row is in the file."""
        return f"row {row}" if self.lines is None else f"line {self.lines[row - 1]}"

    def places(self, which: np.ndarray) -> str:
        """Say where the rows of a mask are in the file, such as "lines 3, 5"."""
        rows = self.frame.index[which].tolist()
        noun, numbers = ("row", rows) if self.lines is None else ("line", [self.lines[row - 1] for row in rows])
        return f"{noun}{'s' * (len(rows) > 1)} {listed(numbers, MOST_NAMED)}"

    def require(self, names: Sequence[str], *, is_typed: bool = True) -> None:
        """Raise ValueError if one of `names` is not a column. `is_typed` says whether the user typed the names."""
        missing = [name for name in names if name not in self.frame]
        if missing:
            plain = {without_marks(name.lower()): name for name in self.names if name not in names}
            parts = [part.strip() for part in missing[0].split(",")]
            if is_typed and len(parts) > 1 and all(part in self.frame for part in parts):
                once = ", then ".join(f"--target {shlex.quote(part)}" for part in parts[:2])
                raise ValueError(
                    f"{self.shown} has no column {missing[0]!r}; name one of these columns. To predict several "
                    f"targets, train once for each: {once}."
                )
            if self.names == names_by_place(len(self.names)):
                raise ValueError(
                    f"{self.shown} has no column {missing[0]!r}; without a header, its columns are c1 to "
                    f"{self.names[-1]}."
                )
            found = nearest(without_marks(missing[0].lower()), plain)
            if found and len(missing) == 1:
                near = plain[found]
                hint = f"did you mean {near!r}?" if is_typed else f"rename the column {near!r} if it is meant."
                raise ValueError(f"{self.shown} has no column {missing[0]!r}; {hint}")
            if not is_typed and len(missing) > len(names) / 2:
                raise ValueError(
                    f"{self.shown} is not a table like the one that the run was trained on. Columns expected: "
                    f"{listed(names, 20)}; got: {listed(self.names, 20)}.{hint_of_header(self.names)}"
                )
            without = f", or {training_without(missing)}" if len(missing) <= MOST_NAMED else ""
            needs = "" if is_typed else f" Correct the table{without}."
            raise ValueError(
                f"{self.shown} has no column{'s' * (len(missing) > 1)} {listed(missing)}; its columns are "
                f"{listed(self.names, 20)}.{needs}{hint_of_header(self.names)}"
            )

    def rows(self, chosen: np.ndarray) -> "Table":
        """Return a table with only the rows for which `chosen` is True."""
        return replace(self, frame=self.frame[chosen])


def read_table(path: str | Path, *, header: bool = True) -> Table:
    """Read a table from a Parquet file, or from a text file.

    The columns of a text file are separated by one of `SEPARATORS` or by white space. Without a header, they are named
    c1, c2, ...
    """
    path = Path(path)
    is_parquet = path.suffix.lower() == ".parquet"
    check_content(path, "a Parquet file" if is_parquet else "text")
    if is_parquet and not header:
        raise ValueError(f"{path} is a Parquet file, which has names of columns; leave out --no-header.")
    names, frame, separator, lines = _parquet(path) if is_parquet else _separated(path, header=header)
    frame = frame.apply(lambda column: column.str.strip()).astype(object)
    frame = frame.mask(frame.apply(lambda column: column.str.lower().isin(MISSING) | column.isna()), None)
    while names and not names[-1] and frame.iloc[:, -1].isna().all():  # only separators, as some programs write them
        names, frame = names[:-1], frame.iloc[:, :-1]
    notes = []
    if names and not names[0] and frame[0].str.fullmatch(r"\d+").eq(True).all() and frame[0].is_unique:
        notes.append(f"The first column of {path} has no name and holds row numbers: it is left out.")
        names, frame = names[1:], frame.iloc[:, 1:]
    if "" in names:
        number = names.index("") + 1 + len(notes)
        raise ValueError(
            f"column {number} of {path} has no name; write one into the first line, which must hold all names."
        )
    twice = pd.Index(names)[pd.Index(names).duplicated()]
    if len(twice):
        raise ValueError(
            f"{path} has two columns named {twice[0]!r}; give them different names.{hint_of_header(names)}"
        )
    if not len(frame):
        raise ValueError(f"{path} holds no rows; pass a table with a line of names and a line for each row.")
    frame.columns, frame.index = pd.Index(names, dtype=object), pd.RangeIndex(1, len(frame) + 1)
    table = Table(str(path), frame, separator, lines=lines)
    is_broken = frame.apply(lambda column: column.str.contains("\n").eq(True))
    notes += [
        f"Cells of column {name!r} of {path} hold line breaks, the first in {table.place(is_broken[name].idxmax())}; "
        "if this is a mistake, look for a superfluous quotation mark."
        for name in is_broken.columns[is_broken.any()]
    ]
    return replace(table, notes=tuple(notes))


def _separated(path: Path, *, header: bool) -> tuple[list[str], pd.DataFrame, str, list[int]]:
    """Return the names of the columns, the cells, the separator and the lines of the rows of a text file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            texts = (line for line in file if line.strip())
            first, second = next(texts, ""), next(texts, "")
        if "\0" in first:
            raise ValueError(f"{path} is not text: it holds bytes of value 0; save it as text in UTF-8.")
        whole = first if header else re.sub(r"(?<=\d),(?=\d)", "", first)  # commas in numbers may be decimal
        separator = "\t" if path.suffix.lower() == ".tsv" else max(SEPARATORS, key=whole.count)
        if separator not in first and min(len(line.split()) for line in (first, second or first)) > 1:
            separator = WHITE_SPACE  # but not if the only column has a name of several words
        with path.open(encoding="utf-8-sig", newline="") as file:
            records, lines = _records(file, path, separator)
    except UnicodeDecodeError as error:
        converted = path.with_name(f"{path.stem}-utf8{path.suffix}").name
        is_wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")  # the file is in UTF-16
        code = (
            "utf16" if is_wide else "cp1252" if re.search(b"[\x80-\x9f]", path.read_bytes()) else "latin1"
        )  # which has no such letters
        command = f"iconv -f {code} -t utf8 {shlex.quote(str(path))} > {shlex.quote(converted)}"
        hint = f". If it is in {code}, this command does so: {command}"
        byte = f"byte {error.object[error.start]:#04x} cannot be read"
        raise ValueError(f"{path} is not text in UTF-8 ({byte}); save it as UTF-8{hint}") from error
    if not header:
        return names_by_place(len(records[0])), pd.DataFrame(records, dtype=object), separator, lines
    names = [name.strip() for name in records[0]]
    if are_numbers(names).all():
        raise ValueError(
            f"{path} has no names of columns: its first line holds numbers; put a line of names above it, or train "
            "with --no-header, which names the columns c1, c2 and so on."
        )
    return names, pd.DataFrame(records[1:], columns=range(len(names)), dtype=object), separator, lines[1:]


def _records(file: Iterable[str], path: Path, separator: str) -> tuple[list[list[str]], list[int]]:
    """Return the cells of each line that is not blank, and the number of the line."""
    if separator == WHITE_SPACE:
        file, separator = (re.sub("[ \t]+", " ", line.strip(" \t\r\n")) + "\n" for line in file), " "
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    records: list[list[str]] = []
    lines: list[int] = []
    line = 1
    try:
        for cells in reader:
            if (len(cells) > 1 or (cells and cells[0].strip())) and cells != ["sep=", ""]:  # a first line of Excel
                records.append(cells)
                lines.append(line)
                if len(cells) != len(records[0]):
                    expected, start = len(records[0]), lines[0]
                    held = "white space" if separator == " " else repr(separator)
                    quoted = f", or quote a cell that holds {held}" if len(cells) > expected else ""
                    raise ValueError(
                        f"{path} has {expected} cell{'s' * (expected > 1)} in line {start}, but {len(cells)} in line "
                        f"{line}; correct line {line}{quoted}."
                    )
            line = reader.line_num + 1
    except csv.Error as error:
        said = str(error).replace("unexpected end of data", "a quotation mark is opened and never closed")
        raise ValueError(f"{path} is not a table, because of line {line}: {said}; correct that line.") from error
    return records, lines


def names_by_place(count: int) -> list[str]:
    """Return the names of the columns of a table without a header."""
    return [f"c{number}" for number in range(1, count + 1)]


def hint_of_header(names: Sequence[str]) -> str:
    """Return a hint for the user if the names of the columns look like a row of the table; otherwise an empty text."""
    hint = " If its first line is data, pass --no-header; the columns are then named c1, c2 and so on."
    return hint if are_numbers(names).any() else ""


def are_numbers(names: Sequence[str]) -> np.ndarray:
    """Return for each name whether it is a number."""
    return np.isfinite(pd.to_numeric(pd.Series(names, dtype=object), errors="coerce")).to_numpy()


def _parquet(path: Path) -> tuple[list[str], pd.DataFrame, str, None]:
    """Return the column names, the cells, "" in place of the separator, and no lines, since the file has none."""
    from ..._core.extras import optional  # imported late: it loads torch

    optional("pyarrow", "PyArrow", "parquet")
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # a damaged file raises errors of many kinds
        raise ValueError(f"{path} is a damaged Parquet file ({str(error).rstrip('.')}); make it again.") from error
    names = [str(name).strip() for name in frame.columns]
    cells = [frame.iloc[:, number] for number in range(len(names))]
    texts = {number: column.astype(object).map(str).where(column.notna(), "") for number, column in enumerate(cells)}
    return names, pd.DataFrame(texts, dtype=object), "", None


def feature_names(table: Table, *, target: str, features: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Return `features`, or all columns except the target if `features` is empty. Leave out the columns in `ignore`."""
    table.require([target, *features, *ignore])
    names = [name for name in features or table.names if name != target and name not in ignore]
    if not names:
        raise ValueError(
            f"{table.shown} has no column to predict {target!r} from; its columns are {listed(table.names)}. Shorten "
            "--ignore, or choose another table."
        )
    return names


def complete(table: Table, names: Sequence[str], *, drop: bool = True, what: str = "a value") -> Table:
    """Return the rows with a value in each of the named columns. With `drop=False`, a missing value is an error."""
    missing = table.frame[[*dict.fromkeys(names)]].isna()
    lacking = missing.any(axis=1).to_numpy()
    where, empty = list(missing.columns[missing.any()]), list(missing.columns[missing.all()])
    columns = f"column{'s' if len(empty or where) > 1 else ''} {listed(empty or where)}"
    if empty:
        remedy = "choose another --target" if what == "the target" else training_without(empty)
        raise ValueError(f"{table.shown} has no value in {columns}; fill some in, or {remedy}.")
    if lacking.any() and not drop:
        row = table.frame.index[lacking.argmax()]
        raise ValueError(
            f"{table.shown} lacks values in {columns}, in {lacking.sum()} of {len(table)} rows (the first is "
            f"{table.place(row)}), but training lacked none; fill them in, leave those rows out with --drop-missing, "
            f"or {training_without(where)}."
        )
    if lacking.all():
        raise ValueError(f"every row of {table.shown} lacks a value; fill some in, or {training_without(where)}.")
    notes = []
    if lacking.any():
        notes = [f"Rows left out because they lack {what}: {lacking.sum()} ({table.places(lacking)})."]
    if lacking.mean() >= MANY:
        gaps = missing[where].sum().sort_values(ascending=False)[:MOST_NAMED]
        by_column = ", ".join(f"{name!r} {gap:,}" for name, gap in gaps.items())
        rows = f"{100 * lacking.mean():.0f} % of the rows ({lacking.sum():,} of {len(table):,})"
        notes = [f"{WARNING} {rows} are left out because they lack {what}. Gaps by column: {by_column}."]
    return replace(table.rows(~lacking), notes=(*table.notes, *notes))


def checksum(table: Table, names: Sequence[str]) -> str:
    """Return the SHA-256 of the names and the cells of columns as hexadecimal digits."""
    digest = hashlib.sha256()
    for name in names:
        cells = table.column(name)
        texts = "\x1e".join(cells.texts.where(~cells.is_missing, ""))
        digest.update(f"{name}\x1f{texts}\x1d".encode(errors="surrogatepass"))
    return digest.hexdigest()
