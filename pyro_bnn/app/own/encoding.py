"""Rows of a table as inputs of a network: numbers, dates, categories and texts of many values."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .cells import Cells, listed, training_without
from .reading import Table

MOST_CATEGORIES = 100
"""Heuristic: texts with more different values become numbers by their letters."""

FEW = 10
"""Heuristic: in a table of so few rows, texts that all differ may still be categories, and numbers may count."""

LARGEST = 1e9
"""Heuristic: inputs beyond it are mistakes; squares of sums of larger ones leave single precision."""

NUM_HASHED = 32
"""Inputs of a text of many values, about as many as skrub takes."""

PERIODS = (365.2425, 7.0, 1.0)
"""Days of a year, a week and a day: dates have a sine and a cosine of each."""


@dataclass(frozen=True)
class Feature:
    """How a column becomes inputs.

    Args:
        name: Name of the column.
        kind: ``number`` and ``date`` are standardised; a ``category`` has an input for each of the categories; a
            ``text`` has inputs from its letters.
        written: How numbers or dates are written; see :mod:`~pyro_bnn.app.own.cells`.
        parts: Numbers of the parts that are used: of a date, those that change.
        mean: Number that is subtracted from each part.
        scale: Number that each part is divided by, above 0.
        categories: The categories in the order of their inputs.
        has_missing: Whether cells may be missing. Their inputs are 0, the mean, and one more input says so.
    """

    name: str
    kind: str
    written: str
    parts: list[int]
    mean: list[float]
    scale: list[float]
    categories: list[str]
    has_missing: bool

    @property
    def width(self) -> int:
        """Number of inputs."""
        return {"category": len(self.categories), "text": NUM_HASHED}.get(self.kind, len(self.parts)) + self.has_missing

    def encoded(self, cells: Cells) -> np.ndarray:
        """The inputs, shape (N, width). An unseen category has no indicator: all its inputs are 0."""
        missing = cells.is_missing[:, None]
        inputs = np.where(missing, 0.0, self._inputs(cells))
        return np.concatenate([inputs, missing], 1) if self.has_missing else inputs

    def _inputs(self, cells: Cells) -> np.ndarray:
        if self.kind == "category":
            return (cells.labels[:, None] == np.array(self.categories, dtype=object)).astype(float)
        if self.kind == "text":
            return _hashed(cells)
        values = _values(cells, self.kind, self.written)
        if values is None:
            odd = f"{cells.present[0]!r}" if cells.present else "none"
            raise ValueError(f"{cells} must hold {self.kind}s, as in training, but holds texts such as {odd}.")
        inputs = (values[0][:, self.parts] - np.array(self.mean)) / np.array(self.scale)
        is_far = (np.abs(inputs) > LARGEST).any(1)
        if is_far.any():
            row = cells.row(is_far)
            raise ValueError(
                f"{cells} holds numbers that are much larger than in training, such as {cells.texts[row]} in row "
                f"{row}; mend them."
            )
        return inputs


@dataclass(frozen=True)
class TableEncoding:
    """How rows of a table become inputs: its features, in the order of the inputs."""

    features: list[Feature]

    @property
    def names(self) -> list[str]:
        """Names of the columns that are used."""
        return [feature.name for feature in self.features]

    @property
    def never_missing(self) -> list[str]:
        """Names of the columns that lacked no value in training."""
        return [feature.name for feature in self.features if not feature.has_missing]

    @property
    def written(self) -> dict[str, str]:
        """How numbers are written, by column."""
        return {feature.name: feature.written for feature in self.features if feature.kind == "number"}

    @property
    def width(self) -> int:
        """Number of inputs."""
        return sum(feature.width for feature in self.features)

    def columns(self, kind: str) -> list[str]:
        """Names of the columns of a kind."""
        return [feature.name for feature in self.features if feature.kind == kind]

    def inputs(self, table: Table) -> Tensor:
        """The inputs of a table's rows, shape (N, D); an unseen category has no indicator."""
        table.require(self.names)
        parts = [feature.encoded(table.column(feature.name)) for feature in self.features]
        return torch.tensor(np.concatenate(parts, 1), dtype=torch.get_default_dtype())

    def unseen(self, table: Table) -> dict[str, list[str]]:
        """Categories in a table that training did not have, by column."""
        categories = {feature.name: feature.categories for feature in self.features if feature.kind == "category"}
        cells = {name: table.column(name) for name in categories}
        found = {name: {*cells[name].labels[~cells[name].is_missing]} - {*categories[name]} for name in categories}
        return {name: sorted(unseen) for name, unseen in found.items() if unseen}

    def written_otherwise(self, table: Table) -> dict[str, str]:
        """How numbers are written in columns where that is not as in training, by column."""
        read = {name: table.column(name).numbers(written) for name, written in self.written.items()}
        return {name: found[1] for name, found in read.items() if found and found[1] != self.written[name]}


def learned_encoding(
    table: Table, names: Sequence[str], training: Sequence[int], *, wanted: Sequence[str]
) -> tuple[TableEncoding, list[str]]:
    """How rows become inputs, and sentences for the user on what was decided.

    Means and scales come from the rows `training`, categories from all rows. The `wanted` columns are used even if they
    only name or count the rows.
    """
    found = {name: _learned(table.column(name), training, is_wanted=name in wanted) for name in names}
    left_out = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    encoding = TableEncoding([feature for feature in found.values() if isinstance(feature, Feature)])
    notes = [f"Column {name!r} {reason}: it is left out." for name, reason in left_out.items()]
    if any("new ones" in reason for reason in left_out.values()):
        notes.append("To use a column nevertheless, name it among --features.")
    if not encoding.features:
        raise ValueError(f"{table.shown} has no column to predict from. {' '.join(notes)}")
    said: Mapping[str, list[str]] = {
        "Missing values in {} become the mean or no category, and one more input says so.": [
            feature.name for feature in encoding.features if feature.has_missing
        ],
        "Dates in {} become days, and the time of year, week and day.": encoding.columns("date"),
        f"Texts in {{}} have many values: their letters become {NUM_HASHED} numbers.": encoding.columns("text"),
    }
    return encoding, notes + [sentence.format(listed(columns)) for sentence, columns in said.items() if columns]


def _learned(cells: Cells, training: Sequence[int], *, is_wanted: bool) -> Feature | str:
    """How a column becomes inputs, or why it says nothing of the target."""
    has_missing = bool(cells.is_missing.any())
    told = len({*cells.is_missing[training]}) > 1  # whether it is missing may be all that a column says
    if cells.is_missing.all():
        return "holds no value"
    for kind in ("number", "date"):
        values = _values(cells, kind)
        if values is None:
            continue
        if kind == "number" and _counts_rows(values[0][:, 0]) and not is_wanted:
            return "counts the rows, and says nothing of new ones"
        parts, mean, scale = _statistics(cells, values[0][training], 0.0 if kind == "number" else 1e-6)
        if not parts and not told:
            return "is the same in all training rows"
        return Feature(cells.name, kind, values[1], parts, mean, scale, [], has_missing)
    labels = cells.labels[~cells.is_missing]
    categories = sorted({*labels})
    all_differ = len(categories) == len(labels) > FEW
    if all_differ and not is_wanted:
        return "has another text in each row, like a name, and says nothing of new ones"
    if all_differ or len(categories) > MOST_CATEGORIES:
        return Feature(cells.name, "text", "", [], [], [], [], has_missing)
    if len({*cells.labels[training]} - {""}) < 2 and not told:
        return "is the same in all training rows"
    return Feature(cells.name, "category", "", [], [], [], categories, has_missing)


def _values(cells: Cells, kind: str, written: str = "") -> tuple[np.ndarray, str] | None:
    """The parts of numbers or of dates, shape (N, P), and how they are written."""
    read = cells.numbers(written) if kind == "number" else cells.days(written)
    if read is None or kind == "number":
        return read and (read[0][:, None], read[1])
    days, written = read
    angles = [2 * np.pi * (days % period) / period for period in PERIODS]
    return np.stack([days, *map(np.sin, angles), *map(np.cos, angles)], 1), written


def _statistics(cells: Cells, values: np.ndarray, smallest: float) -> tuple[list[int], list[float], list[float]]:
    """Which parts change, and their means and scales."""
    values = values[~np.isnan(values).any(1)]
    if not len(values):
        return [], [], []
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = np.array([(column.mean(), column.std()) for column in values.T]).T
    if not np.isfinite([mean, scale]).all():
        raise ValueError(f"{cells} holds too large numbers; divide them by a number.")
    parts = np.flatnonzero(scale > np.maximum(1e-12 * np.abs(mean), smallest))  # more than what is left of rounding
    return parts.tolist(), mean[parts].tolist(), scale[parts].tolist()


def _counts_rows(numbers: np.ndarray) -> bool:
    """Whether numbers count the rows of a table, of which up to half were dropped."""
    rises = len(numbers) > FEW and bool((np.diff(numbers) > 0).all())
    return rises and bool((numbers == np.floor(numbers)).all()) and numbers[0] >= 0 and numbers[-1] <= 2 * len(numbers)


def _hashed(cells: Cells) -> np.ndarray:
    """Inputs of scale 1 from the letters of texts, in which like texts are like."""
    from sklearn.feature_extraction.text import HashingVectorizer  # late: it takes long

    hasher = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=NUM_HASHED)
    return hasher.transform(list(cells.labels)).toarray() * NUM_HASHED**0.5


def feature_names(table: Table, *, target: str, features: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """The columns to predict from: those named, or all but the target, and without the ignored ones."""
    table.require([target, *features, *ignore])
    names = [name for name in features or table.names if name != target and name not in ignore]
    if target in features:
        raise ValueError(f"the target {target!r} cannot be among --features; leave it out.")
    if not names:
        raise ValueError(
            f"{table.shown} has no column to predict {target!r} from; its columns are {listed(table.names)}."
        )
    return names


def complete_rows(table: Table, names: Sequence[str], *, drop: bool) -> np.ndarray:
    """Which rows have a value in all of the columns, shape (N,); without `drop`, all must."""
    missing = {name: table.column(name).is_missing for name in names}
    lacking = np.any([np.zeros(len(table), dtype=bool), *missing.values()], axis=0)
    where = [name for name in names if missing[name].any()]
    empty = [name for name in where if missing[name].all()]
    columns = f"column{'s' if len(empty or where) > 1 else ''} {listed(empty or where)}"
    if empty:
        raise ValueError(f"{table.shown} has no value in {columns}; fill some in, or {training_without(empty)}.")
    if lacking.any() and not drop:
        row = table.frame.index[lacking.argmax()]
        raise ValueError(
            f"{table.shown} lacks values in {columns}, in {lacking.sum()} of {len(table)} rows (the first is row "
            f"{row}), where training lacked none; fill them in, leave those rows out by --drop-missing, or "
            f"{training_without(where)}."
        )
    if lacking.all():
        raise ValueError(f"every row of {table.shown} lacks a value; fill some in, or {training_without(where)}.")
    return ~lacking


def checksum(table: Table, names: Sequence[str]) -> str:
    """SHA-256 of the names and cells of columns, as hexadecimal digits."""
    digest = hashlib.sha256()
    for name in names:
        cells = table.column(name)
        texts = "\x1e".join(cells.texts.where(~cells.is_missing, ""))
        digest.update(f"{name}\x1f{texts}\x1d".encode(errors="surrogatepass"))
    return digest.hexdigest()
