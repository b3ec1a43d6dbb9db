"""Conformal intervals for rows that arrive one after the other, and whose distribution may change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import plain, record
from ..._core.summary import Shown, Summary, counted
from ...inference.posterior import Calibration
from ...scores.uncertainty import RegressionPrediction
from ._rows import deviations


@dataclass
class AdaptiveRecord:
    """The state of adaptive intervals after the last row; `miss` is one minus the level of the next interval."""

    level: float
    rate: float
    num_scores: int | None
    miss: float
    scores: list[float]

    def __post_init__(self) -> None:
        _checks.between_zero_and_one("level", self.level)
        _checks.positive("rate", self.rate)
        if self.num_scores is not None:
            _checks.at_least("num_scores", self.num_scores, 1)
        if not all(score >= 0 for score in self.scores):
            raise ValueError("`scores` must be numbers of at least 0, got negative numbers or NaN.")


class AdaptiveIntervals(Shown, Calibration):
    r"""Intervals that contain the wanted share of a time series' targets in the long run, even under drift.

    After each row the level :math:`1 - \alpha_t` changes:

    .. math:: \alpha_{t + 1} = \alpha_t + \gamma (\alpha - \mathrm{err}_t), \qquad \alpha = 1 - \ell.

    Here :math:`\mathrm{err}_t` is 0 if the interval of row t contains its target, and 1 otherwise. The next interval
    contains the values whose score :math:`|y - m(x)| / \sigma(x)` is at most the quantile :math:`1 - \alpha_t` of the
    last scores. For any series, the share of targets outside of their intervals differs from :math:`\alpha` by at most
    :math:`(\max(\alpha_1, 1 - \alpha_1) + \gamma) / (\gamma T)` after T rows.

    Args:
        level: Share :math:`\ell` of the targets that are to lie in their intervals in the long run.
        rate: Step size :math:`\gamma`. With larger values, intervals follow drift faster, but their widths vary more.
        num_scores: Number of most recent scores that determine the width; None uses all scores.

    References:
        Gibbs and Candès (2021), Adaptive Conformal Inference Under Distribution Shift,
        https://arxiv.org/abs/2106.00170, equation 2.

    Example:
        >>> from pyro_bnn import calibration
        >>> intervals = calibration.AdaptiveIntervals(level=0.9)
        >>> intervals.level_now
        0.9
    """

    def __init__(self, *, level: float = 0.9, rate: float = 0.01, num_scores: int | None = 500) -> None:
        self._own = AdaptiveRecord(level, rate, num_scores, 1 - level, [])

    def _summary(self) -> Summary:
        scores = counted(len(self._own.scores), "score")
        return Summary(f"AdaptiveIntervals: level {self._own.level:g}, adapted to {self.level_now:.3g}; {scores}")

    @property
    def level_now(self) -> float:
        """Level of the next interval: 1 or more means the whole line, and 0 or less means an empty interval."""
        return 1 - self._own.miss

    def start(self, prediction: RegressionPrediction, y: Tensor) -> "AdaptiveIntervals":
        """Add the scores of earlier rows without changing the level.

        Args:
            prediction: Prediction of N rows that took no part in the fit, with one output.
            y: Targets of the N rows, shape (N,) or (N, 1).
        """
        self._keep(_scores(prediction, y).tolist())
        return self

    def interval(self, prediction: RegressionPrediction) -> Tensor:
        """Return the ends of the intervals of rows whose targets are not known yet.

        The ends have the shape ``(2, N, *O)`` for a mean of shape ``(N, *O)``. If there are no scores yet, the ends are
        infinite.
        """
        sd = deviations(prediction).to(prediction.mean.dtype)
        half = self._width() * sd
        return torch.stack([prediction.mean - half, prediction.mean + half])

    def update(self, prediction: RegressionPrediction, y: Tensor) -> Tensor:
        """Return the intervals of rows in the order of time, and update the level after each row.

        The interval of a row is computed from the targets of the rows before it.

        Args:
            prediction: Prediction of the rows, with one output.
            y: Targets of the rows, shape (N,) or (N, 1).

        Returns:
            The ends, shape ``(2, N, *O)`` for a mean of shape ``(N, *O)``.
        """
        ends = []
        for row, score in enumerate(_scores(prediction, y).tolist()):
            width = self._width()
            ends.append(self.interval(prediction[row : row + 1]))
            self._own.miss += self._own.rate * (1 - self._own.level - (score > width))
            self._keep([score])
        return torch.cat(ends, 1) if ends else torch.stack([prediction.mean] * 2)

    def _keep(self, scores: list[float]) -> None:
        self._own.scores += scores
        if self._own.num_scores is not None:
            del self._own.scores[: -self._own.num_scores]

    def _width(self) -> float:
        """Return half the width of the next interval, in predictive standard deviations."""
        if self._own.miss <= 0 or not self._own.scores:
            return float("inf")
        if self._own.miss >= 1:
            return -float("inf")
        scores = torch.tensor(self._own.scores, dtype=torch.float64)
        return float(scores.quantile(1 - self._own.miss, interpolation="higher"))

    def to_record(self) -> dict[str, Any]:
        """Return the state after the last row; see :meth:`Calibration.to_record`."""
        return dict(plain(self._own))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "AdaptiveIntervals":
        """See :meth:`Calibration.from_record`."""
        found = cls.__new__(cls)
        vars(found)["_own"] = record(AdaptiveRecord, values, "calibration")
        return found


def _scores(prediction: RegressionPrediction, y: Tensor) -> Tensor:
    """Return the distance of each target from its predictive mean, in predictive standard deviations, shape (N,)."""
    sd = deviations(prediction)
    if prediction.mean[:1].numel() > 1:
        raise ValueError(
            f"`prediction` must have one output, got means of shape {_checks.shape(prediction.mean)}; take one output "
            "at a time."
        )
    distance = (prediction.targets_like(y) - prediction.mean).abs() / sd
    return distance.reshape(-1)
