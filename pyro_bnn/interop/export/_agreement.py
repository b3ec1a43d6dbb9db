"""Compare exported predictions with those of `predict`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction

TOLERANCE = 1e-5
"""Largest accepted difference from `predict`; :func:`tolerance` accepts more for dtypes with few digits."""

ROUNDINGS = 64
"""Heuristic: the largest accepted difference is at least this number of rounding errors of the dtype."""


def answers(prediction: Prediction) -> dict[str, Tensor]:
    """Return the parts of a prediction of classes or numbers that are exported, by their names."""
    if isinstance(prediction, ClassificationPrediction):
        names = ("probs", "aleatoric", "epistemic")
    elif isinstance(prediction, RegressionPrediction):
        names = ("mean", "aleatoric", "epistemic")
    else:
        raise ValueError(
            "an exported module needs a likelihood that predicts classes or numbers, got one whose prediction is a "
            f"{type(prediction).__name__}; serve this model with `predict`, or export its network by `sparse_network`."
        )
    return {name: getattr(prediction, name) for name in names}


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest accepted difference between an exported prediction and `predict`, for a network's dtype."""
    return max(TOLERANCE, ROUNDINGS * torch.finfo(dtype).eps)


def largest_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the largest difference; for numbers it is relative to the largest. NaN if shapes differ."""
    pairs = {name: (found[name].double(), value.double()) for name, value in expected.items()}
    if any(a.shape != b.shape for a, b in pairs.values()):
        return float("nan")
    unit = 1.0
    if "mean" in pairs:
        pairs = {name: pair if name == "mean" else (pair[0].sqrt(), pair[1].sqrt()) for name, pair in pairs.items()}
        unit = max(float(b.abs().max()) for _, b in pairs.values()) or 1.0
    return max(float((a - b).abs().max()) / unit for a, b in pairs.values())
