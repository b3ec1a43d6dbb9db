"""Checks of predictions and of their targets."""

import torch
from torch import Tensor

from ..._core import checks as _checks
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction


def require_numbers(prediction: RegressionPrediction) -> None:
    """Raise a `ValueError` unless `prediction` is a prediction of numbers."""
    _checks.kind("prediction", prediction, RegressionPrediction, "a prediction of numbers, made by predict")


def deviations(prediction: RegressionPrediction) -> Tensor:
    """Predictive standard deviations, shape ``(N, *O)``; a `ValueError` if one is 0, since scores are divided by it."""
    require_numbers(prediction)
    if bool((prediction.total <= 0).any()):
        raise ValueError(
            '`prediction` must have variances above 0, got 0 for some rows; for intervals use the score "absolute".'
        )
    return prediction.total.sqrt()


def require_classes(prediction: ClassificationPrediction) -> None:
    """Raise a `ValueError` unless the prediction has one label for each row."""
    _checks.kind("prediction", prediction, ClassificationPrediction, "a prediction of classes, made by predict")
    if prediction.probs.dim() != 2:
        raise ValueError(
            f"`prediction` must have one label for each row, got probabilities of shape "
            f"{_checks.shape(prediction.probs)}; take one output at a time."
        )


def prediction_labels(prediction: ClassificationPrediction, y: Tensor) -> Tensor:
    """Labels of the rows of a prediction as integers, shape (N,)."""
    require_classes(prediction)
    if _checks.tensor("y", y).is_floating_point() and bool((y != y.round()).any()):
        raise ValueError("`y` must be whole numbers (labels), got other numbers.")
    labels, (num_rows, num_classes) = y.long(), prediction.probs.shape
    if labels.shape != (num_rows,):
        raise ValueError(f"`y` must have shape ({num_rows},), got {_checks.shape(labels)}.")
    if bool(((labels < 0) | (labels >= num_classes)).any()):
        raise ValueError(
            f"`y` must be labels from 0 to {num_classes - 1}, got some from {int(labels.min())} to {int(labels.max())}."
        )
    return labels.to(prediction.probs.device)


def check_scores(scores: Tensor) -> None:
    """Raise a `ValueError` unless the scores are finite numbers of at least one row."""
    if not scores.is_floating_point() or scores.dim() == 0 or not len(scores):
        raise ValueError(
            f"the scores of the calibration rows must be numbers of shape (n, *O), got {scores.dtype} of shape "
            f"{_checks.shape(scores)}."
        )
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("the scores of the calibration rows must be finite, got NaN or infinity; correct the targets.")
