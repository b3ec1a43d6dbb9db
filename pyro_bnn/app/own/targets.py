"""The target of a run: classes or numbers, the likelihood that fits it, and its units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .columns import MOST_CATEGORIES, is_whole, labels_of, numbers_of
from .reading import Texts, number_in

__all__ = ["MOST_GUESSED_CLASSES", "Target", "guessed", "learned_classes", "learned_numbers"]

MOST_GUESSED_CLASSES = 10
"""Heuristic: whole numbers with more different values are taken for numbers, and with fewer for classes."""


@dataclass(frozen=True)
class Target:
    """What a network predicts: one of several classes, or one or more numbers in units of their own.

    Args:
        name: Name of the target.
        classes: Names of the classes; empty for numbers.
        mean: Number that is subtracted from each output's target; empty for classes.
        scale: Number that it is divided by, above 0; empty for classes.
    """

    name: str
    classes: list[str]
    mean: list[float]
    scale: list[float]

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return bool(self.classes)

    @property
    def size(self) -> int:
        """Number of classes, or of numbers."""
        return len(self.classes) or len(self.mean)

    @property
    def is_as_given(self) -> bool:
        """Whether the network predicts it in its own units: nothing is subtracted, and it is divided by 1."""
        return all(mean == 0 for mean in self.mean) and all(scale == 1 for scale in self.scale)

    def standardized(self, y: np.ndarray) -> Tensor:
        """Numbers as the network predicts them.

        Args:
            y: Targets in their own units, shape (N, O).
        """
        return torch.tensor((y - np.array(self.mean)) / np.array(self.scale), dtype=torch.get_default_dtype())

    def encoded(self, texts: Texts, shown: str, *, allows_commas: bool = False) -> Tensor:
        """The cells of a column as targets of the network: labels, shape (N,), or numbers, shape (N, 1).

        Args:
            texts: The cells.
            shown: Where they are from, for messages.
            allows_commas: Whether numbers may have decimal commas.

        Raises:
            ValueError: If one is missing, is no number, or is a class that training did not have.
        """
        _require_all(self.name, texts, shown)
        if not self.is_class:
            return self.standardized(_numbers(self.name, texts, shown, allows_commas)[:, None])
        place = {name: index for index, name in enumerate(self.classes)}
        labels = labels_of(texts)
        others = sorted({*labels} - {*self.classes})
        if others:
            raise ValueError(
                f"the target {self.name!r} in {shown} holds the class {others[0]!r}, which was not among those of "
                f"training: {', '.join(self.classes)}."
            )
        return torch.tensor([place[label] for label in labels])


def _require_all(name: str, texts: Texts, shown: str) -> None:
    missing = [number for number, text in enumerate(texts, 1) if text is None]
    if missing:
        raise ValueError(
            f"the target {name!r} in {shown} lacks {len(missing)} of {len(texts)} values, the first in row "
            f"{missing[0]}; fill them in, or leave those rows out."
        )


def _numbers(name: str, texts: Texts, shown: str, allows_commas: bool) -> np.ndarray:
    numbers = numbers_of(name, texts, shown, allows_commas=allows_commas)
    if numbers is None:
        raise ValueError(
            f"the target {name!r} in {shown} must hold numbers for this likelihood, but holds texts such as "
            f"{next(filter(None, texts), '')!r}; choose --likelihood categorical."
        )
    return numbers


def guessed(name: str, texts: Texts, shown: str, *, allows_commas: bool = False) -> tuple[str, str]:
    """The likelihood that a target's cells suggest, and a sentence that says why.

    Texts, truth values and few different whole numbers are classes; other numbers are numbers.
    """
    values = {text for text in texts if text is not None}
    count = f"{len(values)} different {'value' if len(values) == 1 else 'values'}"
    if numbers_of(name, texts, shown, allows_commas=allows_commas) is None:
        return "categorical", f"Target {name!r} holds texts ({count}): classification."
    if is_whole(texts) and len(values) <= MOST_GUESSED_CLASSES:
        return (
            "categorical",
            f"Target {name!r} holds whole numbers with {count}: classification (for numbers: --likelihood gaussian).",
        )
    return "gaussian", f"Target {name!r} holds numbers: regression with Gaussian noise, whose size is learned."


def learned_classes(name: str, labels: Sequence[str], shown: str) -> Target:
    """The target of a classification.

    Raises:
        ValueError: If there are fewer than two classes, or too many.
    """
    classes = sorted({*labels}, key=_order)
    if len(classes) < 2:
        raise ValueError(f"the target {name!r} in {shown} is {classes[0]!r} in all rows; there is nothing to learn.")
    if len(classes) > MOST_CATEGORIES:
        raise ValueError(
            f"the target {name!r} in {shown} has {len(classes)} different values, too many for classes (at most "
            f"{MOST_CATEGORIES}); choose another --target, or --likelihood gaussian for numbers."
        )
    return Target(name, classes, [], [])


def _order(label: str) -> tuple[float, str]:
    """Numbers before texts, in their order."""
    return number_in(label, math.inf), label


def learned_numbers(name: str, y: np.ndarray, likelihood: str, shown: str) -> Target:
    """The target of a regression, with mean and scale of training targets; those of counts are left as they are.

    Args:
        name: Name of the target.
        y: Training targets, shape (N, O).
        likelihood: Name of the likelihood.
        shown: Where they are from, for messages.

    Raises:
        ValueError: If a target is the same in all rows, or no count where counts are needed.
    """
    if likelihood == "poisson":
        if (y < 0).any() or (y != np.floor(y)).any():
            raise ValueError(
                f"the target {name!r} in {shown} must hold counts for --likelihood poisson, got {y.min():g} to "
                f"{y.max():g} or fractions; choose --likelihood gaussian."
            )
        return Target(name, [], [0.0] * y.shape[1], [1.0] * y.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = y.mean(0), y.std(0)
    if not (np.isfinite(mean).all() and np.isfinite(scale).all()):
        raise ValueError(f"the target {name!r} in {shown} holds too large numbers; divide them by a number.")
    if (scale <= 1e-12 * np.abs(mean)).any():
        raise ValueError(
            f"the target {name!r} in {shown} is the same number, {y.ravel()[0]:g}, in all training rows; there is "
            "nothing to learn."
        )
    return Target(name, [], mean.tolist(), scale.tolist())
