"""The target of a run, which is a class or numbers, with its likelihood and its units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .amounts import almost, numbers_or_amounts, on_lost_unit, shown_form
from .cells import Cells
from .encoding import LARGEST, MOST_CATEGORIES, moments

MOST_GUESSED_CLASSES = 10  # heuristic: so many different whole numbers, or fewer, are guessed to be classes
AS_CLASSES = "choose --likelihood categorical for classes"  # remedy for a target that holds texts
OF_DATES = "write them as numbers, such as days since the first, or choose another --target"  # remedy for dates
FEWEST_COUNTS = 6  # heuristic: with fewer different values from 0 on, counts and classes look alike


@dataclass(frozen=True)
class Target:
    """The variable that is predicted: a class, or one or several numbers in their own units."""

    name: str
    classes: list[str]  # empty for numbers
    mean: list[float]  # subtracted from the targets, one for each output; empty for classes
    scale: list[float]  # divides the targets, above 0; empty for classes
    written: str = ""  # format of the numbers in a table (see `numbers_or_amounts`)

    @property
    def is_class(self) -> bool:
        """Whether the target is a class."""
        return bool(self.classes)

    @property
    def size(self) -> int:
        """Number of classes; for regression, number of predicted values per row."""
        return len(self.classes) or len(self.mean)

    def standardized(self, y: np.ndarray, shown: str, rows: Sequence[int] | None = None) -> Tensor:
        """Standardise numbers. `rows` has the row numbers of `y` in the file, by default 1, 2, ...."""
        standard = (y - np.array(self.mean)) / np.array(self.scale)
        is_far = (np.abs(standard) > LARGEST).any(1)
        if is_far.any():
            row = (rows or range(1, len(y) + 1))[int(is_far.argmax())]
            raise ValueError(
                f"the target {self.name!r} in {shown} is much larger in row {row} than in training; correct it."
            )
        return torch.tensor(standard, dtype=torch.get_default_dtype())

    def in_units(self, y: Tensor) -> Tensor:
        """Convert standardised numbers, shape (N, O), to their own units. Classes, shape (N,), stay as they are."""
        return y if self.is_class else y.new_tensor(self.mean) + y.new_tensor(self.scale) * y

    def encoded(self, cells: Cells) -> Tensor:
        """Encode the cells of the target, none of which may be missing.

        Classes become labels, shape (N,). Numbers become standardised numbers, shape (N, 1).
        """
        if not self.is_class:
            found = numbers_or_amounts(replace(cells, instead=""), self.written)
            if found is None:
                raise ValueError(
                    f"the target {self.name!r} in {cells.shown} must hold numbers, as in training"
                    f"{shown_form(self.written)}, got {cells.first_text}; correct it."
                )
            return self.standardized(found[0][:, None], cells.shown, list(cells.texts.index))
        labels = target_labels(cells)
        others = sorted({*labels} - {*self.classes})
        if others:
            raise ValueError(
                f"the target {self.name!r} in {cells.shown} holds the class {others[0]!r}, which is not a class of "
                f"training: {', '.join(self.classes)}."
            )
        place = {name: index for index, name in enumerate(self.classes)}
        return torch.tensor([place[label] for label in labels], dtype=torch.int64)

    def on_unit(self, cells: Cells) -> list[str]:
        """Return a list with a note if the numbers had a sign or a unit in training, but lack it now; else []."""
        found = numbers_or_amounts(cells, self.written) if self.written else None
        note = on_lost_unit(self.name, self.written, found[1]) if found else ""
        return [note] if note else []


def target_numbers(cells: Cells) -> tuple[np.ndarray, str]:
    """Return the numbers in the cells, and their format; raise if the cells are texts."""
    found = _read(cells)
    if found is None:
        raise ValueError(
            f"the target {cells.name!r} in {cells.shown} holds texts such as {cells.first_text}, and this likelihood "
            f"needs numbers; {_remedy_for_texts(cells)}."
        )
    return found


def _read(cells: Cells) -> tuple[np.ndarray, str] | None:
    """Read the cells of a target as numbers. If few values are distinct, the error about texts suggests classes."""
    remedy = AS_CLASSES if cells.present.nunique() <= MOST_CATEGORIES else ""
    found = numbers_or_amounts(replace(cells, instead=remedy))
    if found is None and (odd := almost(cells)):
        raise ValueError(f"{odd}; correct such cells or empty them{f', or {remedy}' if remedy else ''}.")
    return found


def _remedy_for_texts(cells: Cells) -> str:
    if are_dates(cells):
        return f"they look like dates: {OF_DATES}"
    return AS_CLASSES if cells.present.nunique() <= MOST_CATEGORIES else "choose another --target"


def are_dates(cells: Cells) -> bool:
    """Return whether most cells look like dates."""
    try:
        return cells.days() is not None
    except ValueError:  # they are dates that cannot be read
        return True


def target_labels(cells: Cells) -> list[str]:
    """Return the name of the class in each cell. Raise if a cell is missing or contains an infinite number."""
    are_infinite = np.array([label.lower().strip("+-") in ("inf", "infinity") for label in cells.labels], dtype=bool)
    for what, rows in (("lacks a label", cells.is_missing), ("holds an infinite number", are_infinite)):
        if rows.any():
            raise ValueError(
                f"the target {cells.name!r} in {cells.shown} {what} in {rows.sum()} of {len(cells)} rows (the first is "
                f"{cells.place(cells.row(rows))}); correct or remove those rows."
            )
    return list(cells.labels)


def guessed(cells: Cells) -> tuple[str, str]:
    """Return the likelihood that fits the target (categorical, gaussian or poisson), and a sentence with the reason."""
    num_values, shown = cells.present.nunique(), f"the target {cells.name!r} in {cells.shown}"
    if num_values == 0:
        raise ValueError(f"{shown} has no value; fill some in, or choose another --target.")
    if num_values == 1 and len(cells) > 1 and not cells.is_missing.any():
        raise ValueError(f"{shown} is {cells.labels[0]!r} in all rows; there is nothing to learn.")
    count = f"{num_values} different {'value' if num_values == 1 else 'values'}"
    found = _read(cells)
    if found is None:
        if are_dates(cells):
            raise ValueError(f"{shown} must hold numbers or classes, got dates such as {cells.first_text}; {OF_DATES}.")
        if num_values > 1:
            learned_classes(cells.name, cells.labels[~cells.is_missing], cells.shown)  # too many are refused
        return "categorical", f"Target {cells.name!r} holds texts ({count}): classification."
    numbers = found[0][~cells.is_missing]
    are_whole = bool((numbers == np.floor(numbers)).all()) and not any({*".,"} & {*text} for text in cells.labels)
    if num_values <= MOST_GUESSED_CLASSES and are_whole:
        if are_counts(numbers):
            reason = f"Target {cells.name!r} holds whole numbers from 0 on, the largest of them rarely"
            return "poisson", f"{reason}: counts (for classes: --likelihood categorical; for other numbers: gaussian)."
        remedy = "(for numbers: --likelihood gaussian, or poisson for counts)"
        remedy = remedy if num_values > 2 and not (numbers < 0).any() else "(for numbers: --likelihood gaussian)"
        return "categorical", f"Target {cells.name!r} holds whole numbers with {count}: classification {remedy}."
    few = f" with {count}" if num_values <= MOST_GUESSED_CLASSES else ""
    remedy = " (for classes: --likelihood categorical)" if few else ""
    return "gaussian", f"Target {cells.name!r} holds numbers{few}: regression{remedy}."


def are_counts(numbers: np.ndarray) -> bool:
    """Return whether whole numbers are distributed like counts; classes seldom are.

    Counts begin at 0. From the most frequent number on, each number is rarer than the one before, except by chance. The
    largest number is at most a tenth as frequent as the most frequent one.
    """
    values = np.unique(numbers)
    if len(values) < FEWEST_COUNTS or values[0] != 0 or values[-1] > 2 * len(values):
        return False
    sizes = np.bincount(numbers.astype(int))  # 0 for a number that does not occur
    tail = sizes[sizes.argmax() :]
    chance = 2 * np.sqrt(tail[1:] + tail[:-1])  # twice the standard deviation of a difference of two counts
    return bool((np.diff(tail) <= chance).all() and tail[-1] <= 0.1 * tail[0])


def learned_classes(name: str, labels: Sequence[str], shown: str) -> Target:
    """Make the target of a classification from the labels."""
    classes = sorted({*labels}, key=_order)
    if len(classes) < 2:
        raise ValueError(f"the target {name!r} in {shown} is {classes[0]!r} in all rows; there is nothing to learn.")
    if len(classes) > MOST_CATEGORIES:
        are_numbers = all(math.isfinite(_order(label)[0]) for label in classes)
        remedy = _remedy_for_texts(Cells(name, shown, pd.Series(classes, dtype=object)))
        remedy = "choose --likelihood gaussian, since they are numbers" if are_numbers else remedy
        raise ValueError(
            f"the target {name!r} in {shown} has {len(classes)} different values, such as {classes[0]!r}: too many for "
            f"classes (at most {MOST_CATEGORIES}); {remedy}."
        )
    return Target(name, classes, [], [])


def _order(label: str) -> tuple[float, str]:
    """Return a sorting key: numbers come first, in ascending order, and then texts."""
    try:
        number = math.inf if "_" in label else float(label)
    except ValueError:
        return math.inf, label
    return math.inf if math.isnan(number) else number, label


def learned_numbers(name: str, y: np.ndarray, likelihood: str, shown: str) -> Target:
    """Return the target of a regression, with the mean and scale of the training targets (0 and 1 for counts)."""
    if likelihood == "poisson":
        if (y < 0).any() or (y != np.floor(y)).any():
            raise ValueError(
                f"the target {name!r} in {shown} must hold counts for --likelihood poisson, got {y.min():g} to "
                f"{y.max():g} or fractions; choose --likelihood gaussian."
            )
        return Target(name, [], [0.0] * y.shape[1], [1.0] * y.shape[1])
    mean, scale = moments(y, f"the target {name!r} in {shown}")
    if not scale.all():
        raise ValueError(
            f"the target {name!r} in {shown} is the same number, {y.ravel()[0]:g}, in all training rows; there is "
            "nothing to learn."
        )
    return Target(name, [], mean.tolist(), scale.tolist())
