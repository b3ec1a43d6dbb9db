"""Encoding of the rows of a table (numbers, dates, categories and texts) as inputs of a network."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..._core.summary import counted
from ..numbers import in_series
from .amounts import almost, numbers_or_amounts, shown_form
from .cells import MOSTLY, NAMES_MONTH, Cells, listed, training_without
from .reading import WARNING, Table

T = TypeVar("T")

MOST_CATEGORIES = 100  # heuristic: columns with more different texts are encoded by the letters of the texts
FEW = 10  # heuristic: a column with at most so many rows never names or counts the rows
COUNTS = "counts the rows"
TIMES = frozenset(("year", "quarter", "month", "week", "day", "hour", "minute", "second", "time", "date"))
IDENTIFIERS = frozenset(("id", "ids", "identifier", "uid", "key", "index"))  # heuristic: last words of names
NUM_HASHED = 32  # number of inputs for a column of texts with many values, about as many as skrub takes
PERIODS = (365.2425, 7.0, 1.0)  # a year, a week and a day in days; for each, a date has a sine and a cosine
MOST_NAMED = 5  # largest number of rows in a note, and of columns in a message
FAR = 3.0  # heuristic: a number is far if it is so many times as far from the mean as all training numbers
LARGEST = 1e9  # heuristic: a larger standardised number is a mistake; squares of sums of them could overflow


@dataclass(frozen=True)
class Feature:
    """The conversion of a column's cells to inputs. The kind of the column determines the conversion.

    Columns of the kind ``number`` or ``date`` are standardised. A column of the kind ``category`` has one input for
    each of its categories. For a column of the kind ``text``, inputs are computed from the letters of its cells. For a
    missing cell, all inputs are 0 except one input that marks missing cells.
    """

    name: str  # of the column
    kind: str
    written: str  # format of numbers (see `numbers_or_amounts`) or dates (a key of `cells.DATES`)
    parts: list[int]  # columns of `_parts` that are used: those that change
    mean: list[float]  # subtracted from each part
    scale: list[float]  # divides each part, above 0
    categories: list[str]  # in the order of their inputs
    has_missing: bool
    reach: float = 0.0  # largest size of a standardised number or date in the training rows; 0 for other kinds

    @property
    def width(self) -> int:
        """Number of inputs."""
        return {"category": len(self.categories), "text": NUM_HASHED}.get(self.kind, len(self.parts)) + self.has_missing

    def inputs(self, cells: Cells) -> np.ndarray:
        """Encode the cells as inputs of shape ``(N, width)``."""
        if self.kind == "category":
            inputs = cells.labels[:, None] == np.array(self.categories, dtype=object)
        elif self.kind == "text":
            from sklearn.feature_extraction.text import HashingVectorizer  # imported late, since this takes long

            letters = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=NUM_HASHED)
            inputs = letters.transform(cells.labels).toarray() * NUM_HASHED**0.5  # makes their mean square 1
        else:
            read = numbers_or_amounts if self.kind == "number" else Cells.days
            found = read(cells, self.written)
            if found is None:
                form = shown_form(self.written) if self.kind == "number" else ""
                raise ValueError(
                    f"{cells} must hold {self.kind}s, as in training{form}, but holds texts such as "
                    f"{cells.first_text}; correct them, or {training_without([cells.name])}."
                )
            parts = _parts(found[0][:, None])[:, self.parts]
            inputs = np.nan_to_num((parts - self.mean) / self.scale)  # missing numbers become the mean
        return np.column_stack([inputs, *([cells.is_missing] if self.has_missing else [])])


@dataclass(frozen=True)
class TableEncoding:
    """The conversion of table rows to inputs of a network."""

    features: list[Feature]  # of each used column, in the order of inputs
    identifiers: list[str] = field(default_factory=list)  # columns that are not used, since they name the rows
    num_columns: int = 0  # of the whole table, with the target

    @property
    def names(self) -> list[str]:
        """The names of the columns that are used."""
        return [feature.name for feature in self.features]

    @property
    def written(self) -> dict[str, str]:
        """The format of each column of numbers, by the column's name."""
        return {feature.name: feature.written for feature in self.features if feature.kind == "number"}

    @property
    def width(self) -> int:
        """Number of inputs."""
        return sum(feature.width for feature in self.features)

    @property
    def slices(self) -> dict[str, slice]:
        """The positions of each column's inputs among all inputs."""
        ends = accumulate(feature.width for feature in self.features)
        return {feature.name: slice(end - feature.width, end) for feature, end in zip(self.features, ends, strict=True)}

    def columns(self, kind: str) -> list[str]:
        """Return the names of the columns of a kind."""
        return [feature.name for feature in self.features if feature.kind == kind]

    def inputs(self, table: Table, *, are_new: bool = False) -> Tensor:
        """Encode the rows of a table as inputs of shape (N, D). The inputs of an unknown category are 0.

        Raise ValueError if a standardised number is larger than `LARGEST`. In new rows, it becomes `LARGEST` instead.
        """
        table.require(self.names)
        with np.errstate(over="ignore"):  # numbers that are too large are refused below
            parts = _of_each(table, {feature.name: feature.inputs for feature in self.features})
            inputs = np.hstack([*parts.values()]).astype(float)
        inputs = inputs.clip(-LARGEST, LARGEST) if are_new else inputs
        is_far = np.abs(inputs) > LARGEST
        if is_far.any():
            column = int(is_far.any(0).argmax())
            cells = table.column(next(name for name, part in self.slices.items() if column < part.stop))
            row = cells.row(is_far[:, column])
            raise ValueError(
                f"{cells} holds numbers that are much larger than in training, such as {cells.texts[row]} in "
                f"{cells.place(row)}; correct them."
            )
        return torch.tensor(inputs, dtype=torch.get_default_dtype())

    def check_places(self, table: Table, target: str) -> None:
        """Raise ValueError unless a table without a header has as many columns as in training.

        Only a target in the last column may be missing. Columns are named by their places, so another missing column
        would change the names of the columns after it.
        """
        num_columns = len(table.names)
        lacks_target = num_columns == self.num_columns - 1 and target not in table.names
        if num_columns != self.num_columns and not lacks_target:
            raise ValueError(
                f"{table.shown} has {counted(num_columns, 'column')}, and the table of training had "
                f"{self.num_columns}; without a header, columns are known by their places, so write ? in place of "
                "unknown values."
            )

    def far(self, table: Table, inputs: Tensor) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return a mask of rows for each column with numbers or dates far outside of the training data, and notes."""
        found, notes = {}, []
        for feature in (feature for feature in self.features if feature.reach):
            are_far = (inputs[:, self.slices[feature.name].start].abs() > FAR * feature.reach).numpy()
            if are_far.any():
                found[feature.name] = are_far
                notes.append(
                    f"The {feature.kind} in column {feature.name!r} is far outside of the training data in "
                    f"{table.places(are_far)}: do not trust these predictions, which are not scored."
                )
        return found, notes

    def unseen(self, table: Table) -> dict[str, np.ndarray]:
        """Return a mask of rows for each column with categories that did not occur in training."""
        categories = {feature.name: feature.categories for feature in self.features if feature.kind == "category"}
        found = {name: ~np.isin(table.column(name).labels, [*known, ""]) for name, known in categories.items()}
        return {name: rows for name, rows in found.items() if rows.any()}

    def written_otherwise(self, table: Table) -> dict[str, str]:
        """For each column of numbers that had another format in training, return its name and its present format."""
        read = {name: numbers_or_amounts(table.column(name), written) for name, written in self.written.items()}
        return {name: found[1] for name, found in read.items() if found and found[1] != self.written[name]}


def learned_encoding(
    table: Table, names: Sequence[str], training: Sequence[int], *, wanted: Sequence[str]
) -> tuple[TableEncoding, list[str]]:
    """Learn the encoding of a table from the rows in `training`; also return sentences that explain it to the user."""

    def learned(cells: Cells) -> tuple[str, Feature | str]:
        reason = "" if cells.name in wanted else _why_identifier(cells)
        return reason, _learned(cells, training) if not reason or _may_be_time(cells, reason) else reason

    both = _of_each(table, dict.fromkeys(names, learned))
    naming = {name: reason for name, (reason, found) in both.items() if reason and reason == found}
    left_out = {name: found for name, (_, found) in both.items() if isinstance(found, str) and name not in naming}
    features = [found for _, found in both.values() if isinstance(found, Feature)]
    encoding = TableEncoding(features, [*naming], len(table.names))
    notes = []
    for reason in dict.fromkeys(left_out.values()):
        alike = [name for name in left_out if left_out[name] == reason]
        several = f"Columns left out, since each {reason}: {listed(alike, len(alike))}."
        notes.append(f"Column {alike[0]!r} {reason}: it is left out." if len(alike) == 1 else several)
    if times := [name for name, (reason, found) in both.items() if reason and isinstance(found, Feature)]:
        notes.append(
            f"{WARNING} Numbers in {listed(times)} are used as times. If they only count the rows, pass --ignore "
            f"{shlex.quote(','.join(times))}."
        )
    texts = {*naming, *encoding.columns("text"), *encoding.columns("category")}
    said = "so the column is read as texts. To read it as numbers, correct such cells."
    notes += [f"{WARNING} {odd}, {said}" for name in names if name in texts and (odd := almost(table.column(name)))]
    cells = {name: table.column(name).present for name in names if name in texts}
    dated = [name for name, present in cells.items() if present.str.fullmatch(NAMES_MONTH).mean() > MOSTLY]
    if dated:
        notes.append(
            f"{WARNING} Dates with names of months in {listed(dated)} are read as texts. To read them as dates, write "
            "them as in 2024-12-31."
        )
    if naming:
        clauses = in_series([f"column {name!r} {reason}" for name, reason in naming.items()])
        they_are, them = ("it is", "it") if len(naming) == 1 else ("they are", "them")
        notes.append(
            f"{clauses[0].upper()}{clauses[1:]}: {they_are} left out, and `predict` only copies {them}. To predict "
            f"from {them}, name {them} in --features."
        )
    if not encoding.features:
        raise ValueError(f"{table.shown} has no column to predict from. {' '.join(notes)}")
    uses: Mapping[str, list[str]] = {
        "Missing values in {} become the mean (numbers and dates) or zeros (texts). One more input marks them.": [
            feature.name for feature in encoding.features if feature.has_missing
        ],
        "Dates in {} become the number of days since 1970 and, if they vary, the times of year, of week and of day.": (
            encoding.columns("date")
        ),
        f"Texts in {{}} have many values: their letters become {NUM_HASHED} numbers.": encoding.columns("text"),
    }
    return encoding, notes + [sentence.format(listed(columns)) for sentence, columns in uses.items() if columns]


def _of_each(table: Table, read: Mapping[str, Callable[[Cells], T]]) -> dict[str, T]:
    """Call each function with the column that its key in `read` names. The errors of all columns are raised as one."""
    found: dict[str, T] = {}
    faults: dict[str, ValueError] = {}
    for name, function in read.items():
        try:
            found[name] = function(table.column(name))
        except ValueError as error:
            faults[name] = error
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        lines = [
            str(error).replace(f" of {table.shown}", "").removesuffix(f", or {training_without([name])}.").rstrip(".")
            for name, error in faults.items()
        ]
        more = [f"and {len(lines) - MOST_NAMED} more"] if len(lines) > MOST_NAMED else []
        listing = "\n- ".join([*lines[:MOST_NAMED], *more])
        raise ValueError(
            f"{len(lines)} columns of {table.shown} cannot be read. Correct them, or {training_without([*faults])}:"
            f"\n- {listing}."
        )
    return found


def _why_identifier(cells: Cells) -> str:
    """Return the reason to regard a column as an identifier, such as its name "id"; return "" if there is none."""
    if cells.is_missing.all():
        return ""
    found = numbers_or_amounts(cells)
    if found:
        numbers = found[0]
        differ = len(numbers) > FEW and bool((numbers == np.floor(numbers)).all()) and len({*numbers}) == len(numbers)
        if not differ:
            return ""
        counts_some = bool((np.diff(numbers) > 0).all()) and numbers[-1] <= 2 * len(numbers)  # up to half were removed
        if numbers.min() >= 0 and (counts_some or np.ptp(numbers) == len(numbers) - 1):
            return COUNTS
        is_named = has_name_of_identifier(cells.name)
        return "has the name of an identifier and a different number in each row" if is_named else ""
    labels = cells.labels[~cells.is_missing]
    return "has a different text in each row" if len({*labels}) == len(labels) > FEW and not cells.days() else ""


def _may_be_time(cells: Cells, reason: str) -> bool:
    """Return whether a column that counts rows may count days, years or other times, which can be inputs."""
    are_years = cells.present.str.fullmatch(r"1[5-9]\d\d|20\d\d").all()
    return reason == COUNTS and (has_name_of_identifier(cells.name, TIMES) or bool(are_years))


def _learned(cells: Cells, training: Sequence[int]) -> Feature | str:
    """Learn how a column becomes inputs, or return the reason why it is left out."""
    has_missing = bool(cells.is_missing.any())
    told = len({*cells.is_missing[training]}) > 1  # then missing cells may tell something about the target
    if cells.is_missing.all():
        return "holds no value"
    numbers = numbers_or_amounts(cells)
    read = numbers or cells.days()
    if read:
        values, written = read
        mean, scale = moments(_parts(values[training][:, None])[:, : 1 if numbers else None], str(cells))
        used = np.flatnonzero(scale > (0.0 if numbers else 1e-6))  # more than rounding errors
        if not len(used) and not told:
            return "is the same in all training rows"
        kind, parts = "number" if numbers else "date", used.tolist()
        known = values[training][~np.isnan(values[training])]
        reach = float(np.abs((known - mean[0]) / scale[0]).max()) if 0 in used else 0.0
        moved = mean[used].tolist(), scale[used].tolist()
        return Feature(cells.name, kind, written, parts, *moved, [], has_missing, reach)
    labels = cells.labels[~cells.is_missing]
    categories = sorted({*labels})
    all_differ = len(categories) == len(labels) > FEW
    if all_differ or len(categories) > MOST_CATEGORIES:
        return Feature(cells.name, "text", "", [], [], [], [], has_missing)
    if len({*cells.labels[training]} - {""}) < 2 and not told:
        return "is the same in all training rows"
    return Feature(cells.name, "category", "", [], [], [], categories, has_missing)


def _parts(values: np.ndarray) -> np.ndarray:
    """Append to values, shape (N, 1), their sines and cosines with the periods `PERIODS`. Return shape (N, 7)."""
    angles = 2 * np.pi * (values % PERIODS) / PERIODS
    return np.concatenate([values, np.sin(angles), np.cos(angles)], 1)


def has_name_of_identifier(name: str, among: frozenset[str] = IDENTIFIERS) -> bool:
    """Return whether the last word of a column's name is in `among`."""
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()
    return not among.isdisjoint(re.findall(r"[a-z]+", words)[-1:])


def moments(values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the scale of each column of `values`, shape (N, P), ignoring NaN. Constants have scale 0."""
    from sklearn.preprocessing import StandardScaler  # imported late, since this takes long

    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values.astype(np.float64))
    mean, scale = scaler.mean_, np.sqrt(scaler.var_)
    if np.isinf(mean).any() or not np.isfinite(scale).all():
        raise ValueError(f"{what} holds numbers that are too large; divide them by a constant.")
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 0.0)
