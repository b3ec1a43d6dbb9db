"""Checks of arguments; their messages say what was expected, what was got, and the remedy."""

import math
import numbers

import torch
from torch import Tensor


def is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive(name: str, value: float) -> float:
    """Return `value` if it is a finite number above zero."""
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be a finite number above 0, got {value!r}.")
    return float(value)


def between_zero_and_one(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1."""
    if not (is_number(value) and 0 < value < 1):
        raise ValueError(f"`{name}` must lie strictly between 0 and 1, got {value!r}.")
    return float(value)


def at_least(name: str, value: int, minimum: int) -> int:
    """Return `value` if it is a whole number no smaller than `minimum`."""
    if not is_number(value) or not math.isfinite(value) or int(value) != value or value < minimum:
        raise ValueError(f"`{name}` must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


def seed(value: int) -> int:
    """Return `value` if it is a seed of torch's generators: a whole number from 0 to 2**63 - 1."""
    if not is_number(value) or not math.isfinite(value) or int(value) != value or not 0 <= value < 2**63:
        raise ValueError(f"`seed` must be a whole number from 0 to 2**63 - 1, or None, got {value!r}.")
    return int(value)


def finite(name: str, value: Tensor) -> None:
    """Raise if a floating-point tensor holds NaN or infinity."""
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        count = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"`{name}` must be finite, got {count} NaN or infinite value(s) of {value.numel()}; "
            "drop or impute those rows first."
        )


def same_rows(x: Tensor, y: Tensor) -> None:
    """Raise unless x and y have the same number of rows."""
    if y.dim() == 0 or len(x) != len(y):
        raise ValueError(f"`x` and `y` must have the same number of rows, got shapes {shape(x)} and {shape(y)}.")


def shape(value: Tensor) -> tuple[int, ...]:
    """The shape as a plain tuple, which prints short."""
    return tuple(value.shape)


def kind(name: str, value: object, expected: type, example: str) -> None:
    """Raise unless a value is an instance of the expected class."""
    if not isinstance(value, expected):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise ValueError(f"`{name}` must be {example}, got {got}.")
