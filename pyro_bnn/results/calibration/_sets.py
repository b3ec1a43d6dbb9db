"""Conformal sets of classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import plain, record
from ..._core.remedies import Advised
from ..._core.scope import seeded
from ..._core.signatures import explained
from ..._core.summary import Shown, Summary, counted
from ...inference.posterior import Calibration
from ...scores.uncertainty import ClassificationPrediction
from ._rows import check_scores, conformal_quantile, levels, prediction_labels, require_classes

MIXING = 1e7  # scale of random factors of the classes; U is the fractional part of the mean factor of a row


@dataclass(frozen=True)
class SetScore:
    """The rule that gives classes their scores; see :class:`ConformalSets`."""

    penalty: float
    num_free: int
    seed: int | None

    def __post_init__(self) -> None:
        _checks.not_negative("penalty", self.penalty)
        _checks.at_least("num_free", self.num_free, 0)
        if self.seed is not None:
            _checks.seed(self.seed)

    def of(self, probs: Tensor) -> Tensor:
        """Return the scores of all classes, shape (N, C)."""
        ordered, order = probs.sort(stable=True, dim=1, descending=True)
        fraction = torch.ones_like(probs[:, :1])
        if self.seed is not None:
            with seeded(self.seed, torch.device("cpu")):  # the same numbers on all devices
                factors = torch.rand(probs.shape[1], 1, dtype=torch.float64, device="cpu") * MIXING
            fraction = (probs.double() @ factors.to(probs.device)).frac().to(probs.dtype)
        rank = torch.arange(1, probs.shape[1] + 1, device=probs.device)
        scores = ordered.cumsum(1) - (1 - fraction) * ordered + self.penalty * (rank - self.num_free).clamp_min(0)
        return torch.empty_like(probs).scatter_(1, order, scores)


@dataclass(frozen=True)
class SetRecord:
    """The scores of the calibration rows' labels, shape (n,)."""

    rule: SetScore
    num_classes: int
    scores: Tensor

    def __post_init__(self) -> None:
        check_scores(self.scores)
        if self.scores.dim() != 1 or self.num_classes < 1:
            raise ValueError(
                f"`scores` must have shape (n,) and `num_classes` must be at least 1, got {_checks.shape(self.scores)} "
                f"and {self.num_classes}."
            )


class ConformalSets(Advised, Shown, Calibration):
    r"""Sets of classes that contain the label of a new row with at least a given probability.

    With classes in the order of their predicted probabilities, :math:`p_{(1)} \ge p_{(2)} \ge \dots`, the r-th class
    has the score

    .. math:: s_r = \sum_{k < r} p_{(k)} + U p_{(r)} + \lambda \max(r - r_0, 0),

    where U is 1, or uniform between 0 and 1. A set contains each class whose score is at most the conformal quantile of
    the scores of the calibration labels (see :class:`ConformalIntervals`). With a penalty of 0, the method is called
    APS, otherwise RAPS. RAPS gives smaller sets if there are many improbable classes.

    Args:
        prediction: Prediction of calibration rows, which took no part in the fit. With rows of the fit, sets are too
            small, and no error or warning says so.
        y: Their labels, shape (N,).
        penalty: The penalty :math:`\lambda` for each class beyond the first :math:`r_0`.
        num_free: Number of classes without a penalty, :math:`r_0`.
        seed: Seed of the numbers U, which are pseudo-random functions of a row's probabilities. They make the coverage
            nearly equal to the level. With ``None``, U is 1, and the sets are larger.

    Raises:
        ValueError: If the prediction has several outputs, or the labels do not fit it.

    References:
        Romano et al. (2020), Classification with Valid and Adaptive Coverage, https://arxiv.org/abs/2006.02544;
        Angelopoulos et al. (2021), Uncertainty Sets for Image Classifiers using Conformal Prediction,
        https://arxiv.org/abs/2009.14193.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(2, 3), pb.NormalPrior()
        >>> labels = pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=20)
        >>> x, y = torch.randn(100, 2), torch.arange(100) % 3
        >>> prediction = pb.predict(model, pb.MeanFieldGuide(model), x, seed=0)
        >>> sets = pb.calibration.ConformalSets(prediction, y)
        >>> sets.sets(prediction, level=0.9).shape  # whether each class is in
        torch.Size([100, 3])
    """

    @explained("ConformalSets(prediction, y)")
    def __init__(
        self,
        prediction: ClassificationPrediction,
        y: Tensor,
        *,
        penalty: float = 0.0,
        num_free: int = 1,
        seed: int | None = None,
    ) -> None:
        labels, rule = prediction_labels(prediction, y), SetScore(penalty, num_free, seed)
        scores = rule.of(prediction.probs).gather(1, labels[:, None])[:, 0]
        self._own = SetRecord(rule, prediction.probs.shape[1], scores)

    def _summary(self) -> Summary:
        classes = counted(self._own.num_classes, "class")
        rows = counted(self.num_rows, "calibration row")
        return Summary(f"ConformalSets: {classes}, {rows}, {levels(self.num_rows)}")

    @property
    def num_rows(self) -> int:
        """Number of calibration rows."""
        return len(self._own.scores)

    def sets(self, prediction: ClassificationPrediction, level: float = 0.9, *, allow_empty: bool = False) -> Tensor:
        """Return a set of classes for each new row.

        Args:
            prediction: Prediction of the new rows, by the model and posterior that predicted the calibration rows.
            level: Probability that a set contains the label.
            allow_empty: Whether a set may be empty. By default, an empty set gets the most probable class, which can
                only raise the coverage.

        Returns:
            Whether each class is in the set, shape (N, C).

        Raises:
            ValueError: If there are too few calibration rows for the level.
        """
        require_classes(prediction)
        if prediction.probs.shape[1] != self._own.num_classes:
            raise ValueError(
                f"`prediction` must have {self._own.num_classes} classes, as in the calibration, got "
                f"{prediction.probs.shape[1]}."
            )
        limit = conformal_quantile(self._own.scores.to(prediction.probs.device), level)
        found = self._own.rule.of(prediction.probs) <= limit
        if _checks.flag("allow_empty", allow_empty):
            return found
        best = torch.zeros_like(found).scatter_(1, prediction.probs.argmax(1, keepdim=True), True)
        return torch.where(found.any(1, keepdim=True), found, best)

    def to_record(self) -> dict[str, Any]:
        """Return the scores; see :meth:`Calibration.to_record`."""
        return dict(plain(self._own))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "ConformalSets":
        """See :meth:`Calibration.from_record`."""
        found = cls.__new__(cls)
        vars(found)["_own"] = record(SetRecord, values, "calibration")
        return found
