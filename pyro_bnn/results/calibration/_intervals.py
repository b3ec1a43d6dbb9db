"""Conformal intervals for regression, also for rows that arrive one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import plain, record
from ..._core.remedies import Advised
from ..._core.signatures import explained
from ..._core.summary import Shown, Summary, counted
from ...inference.posterior import Calibration
from ...scores.uncertainty import RegressionPrediction
from ._rows import check_scores, conformal_quantile, deviations, levels, require_numbers

IntervalScore = Literal["absolute", "scaled", "quantile"]
INTERVAL_SCORES: tuple[str, ...] = get_args(IntervalScore)


@dataclass(frozen=True)
class IntervalRecord:
    """The scores of the calibration rows, shape ``(n, *O)``; with ``score="quantile"``, they depend on the level."""

    score: str
    is_count: bool
    scores: Tensor

    def __post_init__(self) -> None:
        if self.score not in ("absolute", "scaled"):
            raise ValueError(f"`score` must be 'absolute' or 'scaled', got {self.score!r}.")
        check_scores(self.scores)


class ConformalIntervals(Advised, Shown, Calibration):
    r"""Intervals that have at least a given probability of containing a new target (split conformal prediction).

    The score :math:`s(x, y)` measures how badly a target y fits the prediction at x. The interval of a new row is

    .. math:: \{y : s(x, y) \le \hat q\}, \qquad \hat q = s_{(\lceil (n + 1) \ell \rceil)},

    where :math:`s_{(k)}` is the k-th smallest of the scores of n calibration rows, and :math:`\ell` is the level. If
    the new row and the calibration rows are exchangeable, the interval contains the new target with a probability of at
    least :math:`\ell`. If all scores differ, the probability is at most :math:`\ell + 1/(n + 1)`. It is an average over
    rows: where predictions are worse than average, the coverage may be lower. Each output has its own intervals.

    Args:
        prediction: Prediction of calibration rows, which took no part in the fit. With rows of the fit, intervals are
            too narrow, and no error or warning says so.
        y: Their targets, shape ``(N, *O)``.
        score: With ``"absolute"``, :math:`|y - m(x)|`, all intervals of an output have the same width. With
            ``"scaled"``, :math:`|y - m(x)| / \sigma(x)`, they are wide where the predictive standard deviation is
            large. With ``"quantile"``, :math:`\max(q_{(1 - \ell) / 2} - y,\; y - q_{(1 + \ell) / 2})`, they are
            asymmetric like the predictive quantiles. This score needs `keep_draws`, and its intervals cannot be saved.
        is_count: Whether targets are counts, so that the ends of intervals are rounded inwards to whole numbers of at
            least 0.

    Raises:
        ValueError: If the score is unknown, or the targets do not fit the prediction.

    References:
        Lei et al. (2018), Distribution-Free Predictive Inference for Regression, https://arxiv.org/abs/1604.04173;
        for ``"quantile"`` Romano et al. (2019), Conformalized Quantile Regression, https://arxiv.org/abs/1905.03222.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> x = torch.linspace(-1, 1, 100)[:, None]
        >>> y = x + 0.5 * torch.randn(100, 1)  # five times the noise of the model
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=50)
        >>> posterior = pb.fit_laplace(model, (x[::2], y[::2]))
        >>> held_out = pb.predict(model, posterior, x[1::2], seed=0)
        >>> intervals = pb.calibration.ConformalIntervals(held_out, y[1::2])
        >>> prediction = pb.predict(model, posterior, x, seed=0)
        >>> low, high = intervals.interval(prediction, level=0.9)
        >>> 0.85 < float(((low <= y) & (y <= high)).double().mean()) < 0.98
        True
    """

    @explained("ConformalIntervals(prediction, y)")
    def __init__(
        self, prediction: RegressionPrediction, y: Tensor, *, score: IntervalScore = "scaled", is_count: bool = False
    ) -> None:
        require_numbers(prediction)
        _checks.one_of("score", score, INTERVAL_SCORES)
        y, self._is_count = prediction.targets_like(y), _checks.flag("is_count", is_count)
        self._shape = y.shape
        self._own: IntervalRecord | tuple[RegressionPrediction, Tensor] = (prediction, y)
        if score != "quantile":
            self._own = IntervalRecord(score, is_count, (y - prediction.mean).abs() / _unit(prediction, score))

    def _summary(self) -> Summary:
        rows = counted(self.num_rows, "calibration row")
        return Summary(f"ConformalIntervals: score {self.score}, {rows}, {levels(self.num_rows)}")

    @property
    def score(self) -> str:
        """``"absolute"``, ``"scaled"`` or ``"quantile"``."""
        return self._own.score if isinstance(self._own, IntervalRecord) else "quantile"

    @property
    def num_rows(self) -> int:
        """Number of calibration rows."""
        return self._shape[0]

    def interval(self, prediction: RegressionPrediction, level: float = 0.9) -> Tensor:
        """Return the lower and upper ends of new rows' intervals, shape ``(2, N, *O)``.

        Args:
            prediction: Prediction of the new rows, by the model and posterior that predicted the calibration rows. The
                score ``"quantile"`` needs `keep_draws`. With ``"scaled"``, targets of new and calibration rows may be
                in different units.
            level: Probability that an interval contains the target.

        Returns:
            The two ends, as in ``low, high = intervals.interval(prediction)``. If the score ``"quantile"`` would move
            the lower end above the upper one, both are set to the mean of the uncalibrated ends.

        Raises:
            ValueError: If there are too few calibration rows for the level.
        """
        require_numbers(prediction)
        if prediction.mean.shape[1:] != self._shape[1:]:
            raise ValueError(
                f"`prediction` must have outputs of shape {(*self._shape[1:],)}, as in the calibration, got "
                f"{_checks.shape(prediction.mean[0])}."
            )
        if isinstance(self._own, IntervalRecord):
            half = conformal_quantile(self._own.scores.to(prediction.mean.device), level)
            half = half * _unit(prediction, self._own.score)
            rounding = 4 * torch.finfo(half.dtype).eps  # a target that is on the edge stays inside
            half = half * (1 + rounding) + rounding * prediction.mean.abs()
            low, high = prediction.mean - half, prediction.mean + half
        else:
            low, high = self._moved_quantiles(*self._own, prediction, level)
        if self._is_count:
            low, high = low.ceil().clamp_min(0.0), high.floor()
            high = torch.maximum(low, high)
        return torch.stack([low, high])

    @staticmethod
    def _moved_quantiles(
        held_out: RegressionPrediction, y: Tensor, prediction: RegressionPrediction, level: float
    ) -> tuple[Tensor, Tensor]:
        tail = (1 - _checks.between_zero_and_one("level", level)) / 2
        low, high = held_out.quantile([tail, 1 - tail])
        margin = conformal_quantile(torch.maximum(low - y, y - high), level)
        low, high = prediction.quantile([tail, 1 - tail])
        middle = (low + high) / 2
        return torch.minimum(low - margin, middle), torch.maximum(high + margin, middle)

    def to_record(self) -> dict[str, Any]:
        """Return the scores; see :meth:`Calibration.to_record`."""
        if not isinstance(self._own, IntervalRecord):
            raise ValueError(
                'intervals of the score "quantile" need all draws of the calibration rows, which a file does not hold; '
                'choose score="scaled" or "absolute".'
            )
        return dict(plain(self._own))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "ConformalIntervals":
        """See :meth:`Calibration.from_record`."""
        own, found = record(IntervalRecord, values, "calibration"), cls.__new__(cls)
        vars(found).update(_own=own, _shape=own.scores.shape, _is_count=own.is_count)
        return found


def _unit(prediction: RegressionPrediction, score: str) -> Tensor:
    """Return the unit in which a score measures distances from the mean, ``(N, *O)``."""
    if score == "absolute":
        return torch.ones_like(prediction.mean)
    return deviations(prediction).to(prediction.mean.dtype)


@dataclass
class AdaptiveRecord:
    """Settings and present values of :class:`AdaptiveIntervals`; `miss` is one minus the level of the next interval."""

    level: float
    rate: float
    num_scores: int | None
    miss: float
    scores: list[float]

    def __post_init__(self) -> None:
        _checks.between_zero_and_one("level", self.level)
        _checks.positive("rate", self.rate)
        if self.num_scores is not None:
            self.num_scores = _checks.at_least("num_scores", self.num_scores, 1)
        if not all(score >= 0 for score in self.scores):
            raise ValueError("`scores` must be numbers of at least 0, got negative numbers or NaN.")


class AdaptiveIntervals(Shown, Calibration):
    r"""Intervals that contain a given share of the targets of a time series in the long run, even if the data drift.

    After each row the level :math:`1 - \alpha_t` changes:

    .. math:: \alpha_{t + 1} = \alpha_t + \gamma (\alpha - \mathrm{err}_t), \qquad \alpha = 1 - \ell.

    Here :math:`\mathrm{err}_t` is 0 if the interval of row t contains its target, and 1 otherwise. The next interval
    contains the values y whose score :math:`|y - m(x)| / \sigma(x)` is at most the quantile :math:`1 - \alpha_t` of the
    most recent scores. For every series, the share of targets outside of their intervals after T rows differs from
    :math:`\alpha` by at most :math:`(\max(\alpha_1, 1 - \alpha_1) + \gamma) / (\gamma T)`.

    Args:
        level: Share :math:`\ell` of the targets that are to lie in their intervals.
        rate: Step size :math:`\gamma`. With larger steps, the intervals follow drift faster, but their widths vary
            more.
        num_scores: Number of most recent scores that determine the width; with ``None``, all scores.

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
        """Level of the next interval.

        At a level of 1 or more, the interval contains all numbers. At a level of 0 or less, the interval is empty.
        """
        return 1 - self._own.miss

    def start(self, prediction: RegressionPrediction, y: Tensor) -> "AdaptiveIntervals":
        """Add the scores of earlier rows without changing the level.

        Args:
            prediction: Prediction of N rows that took no part in the fit, with one output.
            y: Their targets, shape (N,) or (N, 1).
        """
        self._keep(_scores(prediction, y).tolist())
        return self

    def interval(self, prediction: RegressionPrediction) -> Tensor:
        """Return intervals of rows without known targets, shape ``(2, N, *O)``.

        Before the first score, the intervals are infinite.
        """
        sd = deviations(prediction).to(prediction.mean.dtype)
        half = self._width() * sd
        return torch.stack([prediction.mean - half, prediction.mean + half])

    def update(self, prediction: RegressionPrediction, y: Tensor) -> Tensor:
        """Return the interval of each row, and update the level after each row.

        Rows are sorted by time. An interval depends on the targets of earlier rows, but not on the target of its own
        row.

        Args:
            prediction: Prediction of the rows, with one output.
            y: Their targets, shape (N,) or (N, 1).

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
        """Return the settings, the level and the scores after the last row; see :meth:`Calibration.to_record`."""
        return dict(plain(self._own))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "AdaptiveIntervals":
        """See :meth:`Calibration.from_record`."""
        found = cls.__new__(cls)
        vars(found)["_own"] = record(AdaptiveRecord, values, "calibration")
        return found


def _scores(prediction: RegressionPrediction, y: Tensor) -> Tensor:
    """Return the distances of targets from predicted means, in predictive standard deviations, shape (N,)."""
    sd = deviations(prediction)
    if prediction.mean[:1].numel() > 1:
        raise ValueError(
            f"`prediction` must have one output, got means of shape {_checks.shape(prediction.mean)}; take one output "
            "at a time."
        )
    distance = (prediction.targets_like(y) - prediction.mean).abs() / sd
    return distance.reshape(-1)
