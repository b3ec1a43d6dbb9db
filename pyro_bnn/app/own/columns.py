"""Columns of a table as numbers: what kind each one is, and how its cells become inputs of a network."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .reading import Table, Texts, listed, number_in

__all__ = [
    "MOST_CATEGORIES",
    "Feature",
    "has_decimal_commas",
    "is_whole",
    "labels_of",
    "learned_features",
    "missing_rows",
    "numbers_of",
    "training_without",
]

MOST_CATEGORIES = 100
"""Heuristic: a column with more different texts is an identifier or free text, of which nothing is learned."""

MOSTLY = 0.5
"""Heuristic: with this share of numbers, the other cells of a column are taken for mistakes."""

FEW = 10
"""Heuristic: in a table of so few rows, texts that all differ may still be categories."""

DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)?([eE][+-]?[0-9]+)?")
"""A number as it is written where the comma is the decimal point."""

TRUTH = {"true": "True", "false": "False"}
"""How truth values are written, whatever the case of their letters."""


@dataclass(frozen=True)
class Feature:
    """How a column becomes inputs: a number, standardised, or one indicator for each of its categories.

    Args:
        name: Name of the column.
        mean: Number that is subtracted.
        scale: Number that is divided by, above 0.
        categories: The categories in the order of their indicators; empty for a column of numbers.
    """

    name: str
    mean: float
    scale: float
    categories: list[str]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return len(self.categories) or 1

    def unseen(self, table: Table) -> list[str]:
        """Categories in a table that are not among those of the feature."""
        if not self.categories:
            return []
        found = {_label(text) for text in table.column(self.name) if text is not None}
        return sorted(found - {*self.categories})

    def encoded(self, table: Table) -> np.ndarray:
        """The inputs, shape (N, width). An unseen category has no indicator: all its inputs are 0.

        Raises:
            ValueError: If a cell is missing, or is no finite number where it must be one.
        """
        texts = table.column(self.name)
        missing = [number for number, text in enumerate(texts, 1) if text is None]
        if missing:
            raise ValueError(
                f"column {self.name!r} of {table.shown} lacks {len(missing)} of {len(texts)} values, the first in row "
                f"{missing[0]}; fill them in, or leave those rows out by --drop-missing."
            )
        if self.categories:
            place = {category: index for index, category in enumerate(self.categories)}
            inputs = np.zeros((len(texts), len(self.categories)))
            for row, text in enumerate(texts):
                index = place.get(_label(text or ""))
                if index is not None:
                    inputs[row, index] = 1.0
            return inputs
        numbers = numbers_of(self.name, texts, table.shown, allows_commas=table.allows_commas)
        if numbers is None:
            raise ValueError(
                f"column {self.name!r} of {table.shown} must hold numbers, as in training, but holds texts such as "
                f"{_first_text(texts)!r}."
            )
        return ((numbers - self.mean) / self.scale)[:, None]


def _label(text: str) -> str:
    return TRUTH.get(text.lower(), text)


def labels_of(texts: Texts) -> list[str]:
    """Cells as names of classes, where truth values are written in one way; missing ones are empty."""
    return [_label(text or "") for text in texts]


def missing_rows(table: Table, names: Sequence[str]) -> list[int]:
    """Numbers of the rows, from 0, that lack a value in one of the columns."""
    columns = [table.column(name) for name in names]
    return [row for row in range(len(table)) if any(cells[row] is None for cells in columns)]


def numbers_of(name: str, texts: Texts, shown: str, *, allows_commas: bool = False) -> np.ndarray | None:
    """The cells as numbers, NaN for missing ones; None if they are texts.

    Args:
        name: Name of the column, for messages.
        texts: The cells.
        shown: Where they are from, for messages.
        allows_commas: Whether numbers may have decimal commas; if one has, a point is no part of a number.

    Raises:
        ValueError: If a number is infinite, or if most cells are numbers and some are not.
    """
    if allows_commas and has_decimal_commas(texts):
        texts = _with_points(name, texts, shown)
    numbers = np.array([math.nan if text is None else number_in(text) for text in texts])
    are_numbers = [not lost for text, lost in zip(texts, np.isnan(numbers), strict=True) if text is not None]
    if all(are_numbers):
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            raise ValueError(
                f"column {name!r} of {shown} holds an infinite number in row {infinite[0] + 1}; mend or remove it."
            )
        return numbers
    if sum(are_numbers) > MOSTLY * len(are_numbers):
        raise ValueError(
            f"column {name!r} of {shown} holds numbers, but also texts such as {_first_text(texts)!r}; make them "
            f"numbers or empty cells, or {training_without([name])}."
        )
    return None


def training_without(names: Sequence[str]) -> str:
    """The remedy for columns that cannot be used, for messages of all commands: only `train` has this option."""
    columns = "the columns" if len(names) > 1 else "the column"
    return f"train without {columns} (pyro-bnn train --ignore {shlex.quote(','.join(names))})"


def has_decimal_commas(texts: Texts) -> bool:
    """Whether most cells are numbers as they are written with decimal commas, and one of them has such a comma."""
    cells = [text for text in texts if text is not None]
    numbers = [text for text in cells if DECIMAL_COMMA.fullmatch(text)]
    return len(numbers) > MOSTLY * len(cells) and any("," in text for text in numbers)


def _with_points(name: str, texts: Texts, shown: str) -> Texts:
    """Cells with decimal commas, with points in their place."""
    other = next((text for text in texts if text is not None and not DECIMAL_COMMA.fullmatch(text)), None)
    if other is not None:
        raise ValueError(
            f"column {name!r} of {shown} holds numbers with decimal commas, but also cells such as {other!r}; write "
            "them all in one way, as 1234,5 or as 1234.5."
        )
    return [None if text is None else text.replace(",", ".") for text in texts]


def _first_text(texts: Texts) -> str:
    return next(text for text in texts if text is not None and math.isnan(number_in(text)))


def is_whole(texts: Texts) -> bool:
    """Whether all cells that are there are whole numbers, written without a point."""
    return all(text is None or text.lstrip("+-").isdecimal() for text in texts)


def learned_features(table: Table, names: Sequence[str], training: Sequence[int]) -> tuple[list[Feature], list[str]]:
    """How the columns of a table become inputs.

    Means and scales are those of the training rows; categories are those of all rows.

    Args:
        table: The table, without missing values.
        names: The columns.
        training: Numbers of the training rows, from 0.

    Returns:
        The features, and names of columns that are left out because they are the same in all training rows.

    Raises:
        ValueError: If a column cannot be an input, or none is left.
    """
    features, constant = [], []
    for name in names:
        texts = table.column(name)
        numbers = numbers_of(name, texts, table.shown, allows_commas=table.allows_commas)
        if numbers is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                mean, scale = float(numbers[training].mean()), float(numbers[training].std())
            if not np.isfinite([mean, scale]).all():
                raise ValueError(f"column {name!r} of {table.shown} holds too large numbers; divide them by a number.")
            is_constant = scale <= 1e-12 * abs(mean)  # what is left of rounding
            feature = Feature(name, mean, scale, [])
        else:
            feature = Feature(name, 0.0, 1.0, _categories(name, texts, table.shown))
            is_constant = len({texts[row] for row in training}) < 2
        if is_constant:
            constant.append(name)
        else:
            features.append(feature)
    if not features:
        raise ValueError(
            f"{table.shown} has no column to predict from: {listed(constant) or 'none is left'} "
            f"{'hold the same value in all rows' if constant else ''}".rstrip()
            + "; choose others by --features."
        )
    return features, constant


def _categories(name: str, texts: Texts, shown: str) -> list[str]:
    """The categories of a column of texts."""
    dates = sum(bool(DATE.fullmatch(text)) for text in texts if text is not None)
    if dates > MOSTLY * len(texts):
        raise ValueError(
            f"column {name!r} of {shown} holds dates; turn them into numbers, such as days since the first one or the "
            f"month, or leave the column out by --ignore {name}."
        )
    categories = sorted({*labels_of(texts)})
    if len(categories) > MOST_CATEGORIES or (len(categories) == len(texts) > FEW):
        raise ValueError(
            f"column {name!r} of {shown} holds {len(categories)} different texts in {len(texts)} rows, like an "
            f"identifier or free text; leave it out by --ignore {name}, or turn it into fewer categories."
        )
    return categories
