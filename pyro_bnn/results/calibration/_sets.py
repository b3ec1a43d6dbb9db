"""Conformal sets of classes."""

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.scope import seeded
from ...scores.uncertainty import ClassificationPrediction
from ._quantile import conformal_quantile

MIXING = 1e7
"""Scale of the factors that turn the probabilities of a row into its U: the digits after the point look random."""


class ConformalSets:
    r"""Sets of classes that contain the label of a new row with at least a given probability.

    With classes in the order of their predicted probabilities, :math:`p_{(1)} \ge p_{(2)} \ge \dots`, the score of the
    r-th is

    .. math:: s_r = \sum_{k < r} p_{(k)} + U p_{(r)} + \lambda \max(r - r_0, 0),

    and a set has the classes whose scores do not exceed the conformal quantile of the labels' scores on the calibration
    rows; see :class:`ConformalIntervals`. U is 1, or uniform between 0 and 1. With a penalty of 0 this is APS, with
    one above 0 RAPS, whose sets are smaller where there are many improbable classes.

    Args:
        prediction: Prediction of the calibration rows, which took no part in the fit.
        y: Their labels, shape (N,).
        penalty: The penalty :math:`\lambda` for each class beyond the first :math:`r_0`.
        num_free: Number of classes without a penalty, :math:`r_0`.
        seed: Seed of the numbers U, which are pseudo-random functions of the probabilities of a row. They make the
            coverage nearly equal to the level, but a set may then be empty. With None, U is 1: the sets are larger, and
            always contain the most probable class.

    Raises:
        ValueError: If the prediction has several outputs, or the labels do not fit it.

    References:
        Romano et al. (2020), Classification with Valid and Adaptive Coverage, https://arxiv.org/abs/2006.02544;
        Angelopoulos et al. (2021), Uncertainty Sets for Image Classifiers using Conformal Prediction,
        https://arxiv.org/abs/2009.14193.
    """

    def __init__(
        self,
        prediction: ClassificationPrediction,
        y: Tensor,
        *,
        penalty: float = 0.0,
        num_free: int = 1,
        seed: int | None = None,
    ) -> None:
        self._penalty = _checks.not_negative("penalty", penalty)
        self._num_free = _checks.at_least("num_free", num_free, 0)
        self._seed = seed if seed is None else _checks.seed(seed)
        labels = prediction_labels(prediction, y)
        self._num_classes = prediction.probs.shape[1]
        scores = self._scores(prediction.probs)
        self._of_labels = scores.gather(1, labels[:, None])[:, 0]

    @property
    def num_rows(self) -> int:
        """Number of calibration rows."""
        return len(self._of_labels)

    def sets(self, prediction: ClassificationPrediction, level: float = 0.9) -> Tensor:
        """The set of each new row.

        Args:
            prediction: Prediction of the rows, by the same model and posterior as that of the calibration rows.
            level: Probability that a set contains the label, strictly between 0 and 1.

        Returns:
            Whether each class is in the set, shape (N, C).

        Raises:
            ValueError: If there are too few calibration rows for the level.
        """
        require_classes(prediction)
        if prediction.probs.shape[1] != self._num_classes:
            raise ValueError(
                f"`prediction` must have {self._num_classes} classes, as in the calibration, got "
                f"{prediction.probs.shape[1]}."
            )
        scores = self._scores(prediction.probs)
        found = scores <= conformal_quantile(self._of_labels, level)
        if self._seed is None:
            found.scatter_(1, prediction.probs.argmax(1, keepdim=True), True)
        return found

    def _scores(self, probs: Tensor) -> Tensor:
        """The score of each class, shape (N, C)."""
        ordered, order = probs.sort(stable=True, dim=1, descending=True)
        fraction = torch.ones_like(probs[:, :1])
        if self._seed is not None:
            with seeded(self._seed, probs.device):
                factors = torch.rand(probs.shape[1], 1, dtype=torch.float64, device=probs.device) * MIXING
            fraction = (probs.double() @ factors).frac().to(probs.dtype)
        rank = torch.arange(1, probs.shape[1] + 1, device=probs.device)
        scores = ordered.cumsum(1) - (1 - fraction) * ordered + self._penalty * (rank - self._num_free).clamp_min(0)
        return torch.empty_like(probs).scatter_(1, order, scores)


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
        raise ValueError("`y` must be whole numbers, the labels, got others.")
    labels, (num_rows, num_classes) = y.long(), prediction.probs.shape
    if labels.shape != (num_rows,):
        raise ValueError(f"`y` must have shape ({num_rows},), got {_checks.shape(labels)}.")
    if bool(((labels < 0) | (labels >= num_classes)).any()):
        raise ValueError(
            f"`y` must be labels from 0 to {num_classes - 1}, got some from {int(labels.min())} to {int(labels.max())}."
        )
    return labels.to(prediction.probs.device)
