"""Calibration rows: their choice, checks, and the quantile of their scores."""

import math

import numpy as np
import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import as_targets
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction


def set_aside(name: str, num_rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split rows at random. Return the sorted indices of the rows for the fit, and of the rows that are set aside."""
    count = round(_checks.between_zero_and_one(name, share) * num_rows)
    if not 1 <= count <= num_rows - 2:
        most = f"; choose at most {(100 * num_rows - 200) // num_rows / 100:g}" if count > 1 else ""
        raise ValueError(
            f"`{name}` must leave a row to calibrate and two to fit, got {share!r} for {num_rows} rows{most}."
        )
    order = np.random.default_rng(seed).permutation(num_rows)
    return sorted(order[count:].tolist()), sorted(order[:count].tolist())


def require_numbers(prediction: RegressionPrediction) -> None:
    _checks.kind("prediction", prediction, RegressionPrediction, "a prediction of numbers, made by predict")


def deviations(prediction: RegressionPrediction) -> Tensor:
    """Return the predictive standard deviations, ``(N, *O)``, which must be above 0 and finite."""
    require_numbers(prediction)
    variance = prediction.total
    if not bool(((variance > 0) & variance.isfinite()).all()):
        raise ValueError(
            "`prediction` must have variances above 0 that are finite, got others for some rows; for intervals use the "
            'score "absolute".'
        )
    return variance.sqrt()


def require_classes(prediction: ClassificationPrediction) -> None:
    """Raise unless one label is predicted for each row."""
    _checks.kind("prediction", prediction, ClassificationPrediction, "a prediction of classes, made by predict")
    if prediction.probs.dim() != 2:
        raise ValueError(
            f"`prediction` must have one label for each row, got probabilities of shape "
            f"{_checks.shape(prediction.probs)}; take one output at a time."
        )


def prediction_labels(prediction: ClassificationPrediction, y: Tensor) -> Tensor:
    """Return the labels of the predicted rows as integers, shape (N,)."""
    require_classes(prediction)
    y = as_targets("y", y)
    if y.is_floating_point() and bool((y != y.round()).any()):
        raise ValueError("`y` must be whole numbers (labels), got other numbers.")
    labels, (num_rows, num_classes) = y.long(), prediction.probs.shape
    if labels.shape != (num_rows,):
        remedy = _checks.other_rows(labels, (num_rows,))
        raise ValueError(f"`y` must have shape ({num_rows},), got {_checks.shape(labels)}{remedy}.")
    if bool(((labels < 0) | (labels >= num_classes)).any()):
        raise ValueError(
            f"`y` must be labels from 0 to {num_classes - 1}, got some from {int(labels.min())} to {int(labels.max())}."
        )
    return labels.to(prediction.probs.device)


def check_scores(scores: Tensor) -> None:
    """Raise if there are no scores, or if some are not finite."""
    if not scores.is_floating_point() or scores.dim() == 0 or not len(scores):
        raise ValueError(
            f"the scores of the calibration rows must be numbers of shape (n, *O), got {scores.dtype} of shape "
            f"{_checks.shape(scores)}."
        )
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("the scores of the calibration rows must be finite, got NaN or infinity; correct the targets.")


def rank_of(level: float, num_rows: int) -> int:
    r"""Return the rank :math:`\lceil (n + 1) \ell \rceil` of the calibration score that bounds a new row's score."""
    level = _checks.between_zero_and_one("level", level)
    rank = max(math.ceil((num_rows + 1) * level - 1e-9), 1)  # 0.9 is not 9 / 10
    if rank > num_rows:
        raise ValueError(
            f"`level` {level} needs at least {fewest_rows(level)} calibration rows, got {num_rows}; use more rows or a "
            "lower level."
        )
    return rank


def fewest_rows(level: float) -> int:
    """Return the smallest number of calibration rows that gives finite intervals."""
    return math.ceil(level / (1 - level) - 1e-9)


def levels(num_rows: int) -> str:
    """Say which levels are possible, rounded down to three decimals."""
    return f"levels up to {math.floor(1000 * num_rows / (num_rows + 1)) / 1000:g}"


def conformal_quantile(scores: Tensor, level: float) -> Tensor:
    """Return the score of rank :func:`rank_of` for each output; `scores` has shape ``(n, *O)``."""
    return scores.sort(0).values[rank_of(level, len(scores)) - 1]
