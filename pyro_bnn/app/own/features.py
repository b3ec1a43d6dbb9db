"""How columns of a table become inputs of a network: numbers, dates, categories and texts of many values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cells import Cells

__all__ = ["LARGEST", "MOST_CATEGORIES", "NUM_HASHED", "Feature", "learned_feature"]

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

    def unseen(self, cells: Cells) -> list[str]:
        """Categories among the cells that are not among those of the feature."""
        found = {*cells.labels[~cells.is_missing]} if self.kind == "category" else set()
        return sorted(found - {*self.categories})

    def encoded(self, cells: Cells) -> np.ndarray:
        """The inputs, shape (N, width). An unseen category has no indicator: all its inputs are 0.

        Raises:
            ValueError: If a cell is no finite number, or no date, where it must be one.
        """
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


def learned_feature(cells: Cells, training: Sequence[int], *, is_wanted: bool) -> Feature | str:
    """How a column becomes inputs.

    Means and scales are those of the training rows; categories are those of all rows.

    Args:
        cells: The column.
        training: Numbers of the training rows, from 0.
        is_wanted: Whether the user named the column, so that it is used even if it only names or counts the rows.

    Returns:
        The feature, or why the column says nothing of the target.

    Raises:
        ValueError: If the column cannot be an input.
    """
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
    are_whole = bool((numbers == np.floor(numbers)).all())
    return (
        are_whole
        and len(numbers) > FEW
        and bool((np.diff(numbers) > 0).all())
        and numbers[0] >= 0
        and bool(numbers[-1] <= 2 * len(numbers))
    )


def _hashed(cells: Cells) -> np.ndarray:
    """Inputs of scale 1 from the letters of texts, in which like texts are like."""
    from sklearn.feature_extraction.text import HashingVectorizer  # late: it takes long

    hasher = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=NUM_HASHED)
    return hasher.transform(list(cells.labels)).toarray() * NUM_HASHED**0.5
