"""Rows of a table as inputs of a network: numbers, dates, categories and texts with many values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .cells import Cells, listed
from .reading import Table

if TYPE_CHECKING:
    from sklearn.preprocessing import StandardScaler

MOST_CATEGORIES = 100
"""Heuristic: a text column with more different values becomes numbers by its letters."""

FEW = 10
"""Heuristic: with so few rows, texts that all differ may be categories, and rising numbers may be more than a count."""

NUM_HASHED = 32
"""Number of inputs for a text column with many values, about as many as skrub takes."""

PERIODS = (365.2425, 7.0, 1.0)
"""Days of a year, a week and a day: dates have a sine and a cosine of each."""

LARGEST = 1e9
"""Heuristic: larger standardised numbers are mistakes; squares of their sums would overflow in single precision."""


@dataclass(frozen=True)
class Feature:
    """How a column becomes inputs, as plain data, from which the transformers of scikit-learn are made.

    A ``number`` or ``date`` is standardised; a ``category`` has an input for each of the categories; a ``text`` has
    inputs from its letters. Where cells may be missing, their inputs are 0, the mean, and one more input says so.
    """

    name: str  # of the column
    kind: str
    written: str  # how numbers or dates are written: a key of `cells.NUMBERS` or `cells.DATES`
    parts: list[int]  # numbers of the parts that are used: of a date, those that change
    mean: list[float]  # is subtracted from each part
    scale: list[float]  # divides each part, above 0
    categories: list[str]  # in the order of their inputs
    has_missing: bool

    @property
    def width(self) -> int:
        """Number of inputs."""
        return {"category": len(self.categories), "text": NUM_HASHED}.get(self.kind, len(self.parts)) + self.has_missing

    def values(self, cells: Cells) -> np.ndarray:
        """What the transformers take: numbers or days, NaN for missing ones, or texts, empty for missing ones."""
        read = {"number": cells.numbers, "date": cells.days}.get(self.kind)
        if read is None:
            return cells.labels
        found = read(self.written)
        if found is None:
            odd = repr(cells.present.iloc[0])
            raise ValueError(f"{cells} must hold {self.kind}s, as in training, but holds texts such as {odd}.")
        return found[0]

    def transformers(self) -> list[tuple[Any, str | list[str]]]:
        """Members of a `ColumnTransformer`: one for the values, and one that tells where they are missing."""
        from sklearn.feature_extraction.text import HashingVectorizer  # imported late, since this takes long
        from sklearn.frozen import FrozenEstimator
        from sklearn.impute import MissingIndicator
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

        standard = make_pipeline(
            FunctionTransformer(lambda frame: _parts(frame.to_numpy())[:, self.parts]),
            FrozenEstimator(scaler(self.mean, self.scale)),  # fitted already, and not to be fitted again
            FunctionTransformer(np.nan_to_num),  # missing ones become the mean; infinite ones stay far from it
        )
        one_hot = OneHotEncoder(categories=[self.categories], handle_unknown="ignore")
        letters = make_pipeline(
            HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=NUM_HASHED),
            FunctionTransformer(lambda hashed: hashed * NUM_HASHED**0.5),  # to a mean square of 1
        )
        encoder = {"category": one_hot, "text": letters}.get(self.kind, standard)
        no_value = np.nan if self.kind in ("number", "date") else ""
        is_missing = MissingIndicator(missing_values=no_value, features="all")
        column = self.name if self.kind == "text" else [self.name]
        return [(encoder, column)] * (self.width > self.has_missing) + [(is_missing, [self.name])] * self.has_missing


@dataclass(frozen=True)
class TableEncoding:
    """How rows of a table become inputs: its features, in the order of the inputs."""

    features: list[Feature]

    @property
    def names(self) -> list[str]:
        """Names of the columns that are used."""
        return [feature.name for feature in self.features]

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
        """The inputs of a table's rows, shape (N, D); an unseen category sets no indicator."""
        from sklearn.compose import make_column_transformer

        table.require(self.names)
        values = pd.DataFrame({feature.name: feature.values(table.column(feature.name)) for feature in self.features})
        members = [member for feature in self.features for member in feature.transformers()]
        with np.errstate(over="ignore"):  # it is refused below
            inputs = make_column_transformer(*members, sparse_threshold=0).fit_transform(values)
        is_far = np.abs(inputs) > LARGEST
        if is_far.any():
            column = int(is_far.any(0).argmax())
            cells = table.column([feature.name for feature in self.features for _ in range(feature.width)][column])
            row = cells.row(is_far[:, column])
            raise ValueError(
                f"{cells} holds numbers that are much larger than in training, such as {cells.texts[row]} in row "
                f"{row}; mend them."
            )
        return torch.tensor(inputs, dtype=torch.get_default_dtype())

    def unseen(self, table: Table) -> dict[str, list[str]]:
        """Categories in a table that training did not have, by column."""
        categories = {feature.name: feature.categories for feature in self.features if feature.kind == "category"}
        found = {name: {*table.column(name).labels} - {*known, ""} for name, known in categories.items()}
        return {name: sorted(unseen) for name, unseen in found.items() if unseen}

    def written_otherwise(self, table: Table) -> dict[str, str]:
        """How numbers are written, for each column where this differs from training."""
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
    """How a column becomes inputs, or why it says nothing about the target."""
    has_missing = bool(cells.is_missing.any())
    told = len({*cells.is_missing[training]}) > 1  # then missing cells alone may say something
    if cells.is_missing.all():
        return "holds no value"
    numbers = cells.numbers()
    read = numbers or cells.days()
    if read:
        values, written = read
        if numbers and _counts_rows(values) and not is_wanted:
            return "counts the rows, and says nothing of new ones"
        mean, scale = moments(_parts(values[training][:, None])[:, : 1 if numbers else None], str(cells))
        used = np.flatnonzero(scale > (0.0 if numbers else 1e-6))  # more than rounding errors
        if not len(used) and not told:
            return "is the same in all training rows"
        kind, parts = "number" if numbers else "date", used.tolist()
        return Feature(cells.name, kind, written, parts, mean[used].tolist(), scale[used].tolist(), [], has_missing)
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


def _parts(values: np.ndarray) -> np.ndarray:
    """Numbers or days, shape (N, 1), and sines and cosines of the periods, which only days use, shape (N, P)."""
    angles = 2 * np.pi * (values % PERIODS) / PERIODS
    return np.concatenate([values, np.sin(angles), np.cos(angles)], 1)


def _counts_rows(numbers: np.ndarray) -> bool:
    """Whether numbers count the rows of a table, of which up to half were dropped."""
    rises = len(numbers) > FEW and bool((np.diff(numbers) > 0).all())
    return rises and bool((numbers == np.floor(numbers)).all()) and numbers[0] >= 0 and numbers[-1] <= 2 * len(numbers)


# --- numbers in standard units ----------------------------------------------------------------------------------------


def moments(values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of each column of numbers, shape (N, P), without NaN.

    The scale of a column is 0 if its numbers are equal up to rounding, or if it has none.
    """
    from sklearn.preprocessing import StandardScaler  # imported late, since this takes long

    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values.astype(np.float64))
    mean, scale = scaler.mean_, np.sqrt(scaler.var_)
    if np.isinf(mean).any() or not np.isfinite(scale).all():
        raise ValueError(f"{what} holds numbers that are too large; divide them by a constant.")
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 0.0)


def scaler(mean: Sequence[float], scale: Sequence[float]) -> "StandardScaler":
    """The fitted transformer with these means and scales; a run's file stores only these numbers."""
    from sklearn.preprocessing import StandardScaler

    made = StandardScaler()
    made.mean_, made.scale_ = np.array(mean), np.array(scale)
    return made
