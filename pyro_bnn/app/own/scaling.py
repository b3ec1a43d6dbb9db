"""Numbers in standard units, as scikit-learn learns and applies them: mean 0 and scale 1 in the training rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn.preprocessing import StandardScaler

LARGEST = 1e9
"""Heuristic: larger standardised numbers are mistakes; squares of their sums would overflow in single precision."""


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
