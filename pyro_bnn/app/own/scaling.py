"""Numbers in standard units, as scikit-learn learns and applies them: mean 0 and scale 1 in the training rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn.preprocessing import StandardScaler

LARGEST = 1e9
"""Heuristic: standardised numbers beyond it are mistakes; squares of sums of larger ones leave single precision."""


def moments(values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of each column of numbers, shape (N, P), of which NaN are left out.

    The scale is 0 where all numbers are the same but for rounding, or where there is none.
    """
    from sklearn.preprocessing import StandardScaler  # late: it takes long

    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values.astype(np.float64))
    mean, scale = scaler.mean_, np.sqrt(scaler.var_)
    if np.isinf(mean).any() or not np.isfinite(scale).all():
        raise ValueError(f"{what} holds too large numbers; divide them by a number.")
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 0.0)


def scaler(mean: Sequence[float], scale: Sequence[float]) -> "StandardScaler":
    """The transformer that has learned these means and scales, which are all that a run's file holds of it."""
    from sklearn.preprocessing import StandardScaler

    made = StandardScaler()
    made.mean_, made.scale_ = np.array(mean), np.array(scale)
    return made
