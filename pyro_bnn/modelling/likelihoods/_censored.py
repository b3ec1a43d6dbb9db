"""Likelihoods of censored numbers: values beyond a limit, and times beyond the end of follow-up."""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.special import log_ndtr

from ..._core import checks as _checks
from ...scores.uncertainty import Accumulator, CensoredPrediction, MomentAccumulator
from ._base import require_one_output, require_real
from ._distribution import MadeLikelihood
from ._made import MadeDistribution


class LimitedNormal(TorchDistribution):
    """A Gaussian whose values beyond a limit are observed as this limit."""

    arg_constraints = {}  # noqa: RUF012  # torch's own convention
    support = constraints.real

    def __init__(self, base: Any, low: float, high: float) -> None:
        self.base, self._low, self._high = base, low, high
        super().__init__(base.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        base, log_prob = self.base, self.base.log_prob(value)
        if self._low > -math.inf:
            log_prob = torch.where(value <= self._low, log_ndtr((self._low - base.loc) / base.scale), log_prob)
        if self._high < math.inf:
            log_prob = torch.where(value >= self._high, log_ndtr((base.loc - self._high) / base.scale), log_prob)
        return log_prob

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        draws: Tensor = self.base.sample(torch.Size(sample_shape))
        return draws.clamp(self._low, self._high)

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> "LimitedNormal":
        return LimitedNormal(self.base.expand(torch.Size(batch_shape)), self._low, self._high)


class RightCensored(TorchDistribution):
    """Pairs of a time and a flag: 1 if the event happens then, 0 if it comes later. Drawn times are never censored."""

    arg_constraints = {}  # noqa: RUF012  # torch's own convention
    support = constraints.independent(constraints.nonnegative, 1)

    def __init__(self, base: Any) -> None:
        self.base = base  # a Weibull or LogNormal
        super().__init__(base.batch_shape, torch.Size([2]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        time, event = value.unbind(-1)
        return torch.where(event > 0, self.base.log_prob(time), self._log_survival(time))

    def _log_survival(self, time: Tensor) -> Tensor:
        base = self.base
        if isinstance(base, dist.LogNormal):
            return log_ndtr((base.loc - time.log()) / base.scale)
        return -(base.concentration * (time.log() - base.scale.log())).exp()

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        times: Tensor = self.base.sample(torch.Size(sample_shape))
        return torch.stack([times, torch.ones_like(times)], -1)

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> "RightCensored":
        return RightCensored(self.base.expand(torch.Size(batch_shape)))


class CensoredAccumulator(Accumulator[CensoredPrediction]):
    def __init__(self) -> None:
        self._moments = MomentAccumulator()

    def add_draws(self, observations: Distribution, *, keep: bool) -> None:
        assert isinstance(observations, MadeDistribution)
        self._moments.add_draws(observations.replaced(attrgetter("base")), keep=keep)  # the uncensored values
        self.num_samples = self._moments.num_samples

    def prediction(self, log_density: Tensor | None) -> CensoredPrediction:
        return CensoredPrediction(**vars(self._moments.prediction(log_density)))


class _CensoredLikelihood(MadeLikelihood):
    """A likelihood of censored targets; the attribute `base` of its distribution describes uncensored values."""

    def accumulator(self) -> Accumulator[CensoredPrediction]:
        return CensoredAccumulator()


class Censored(_CensoredLikelihood):
    r"""Gaussian noise for numbers that are observed only within limits (a Tobit model).

    .. math:: y = \min(\max(y^*, l), h), \qquad y^* \sim N(f(x), \sigma^2).

    Output and targets have the same shape, (N, O) or (N,). If a target equals a limit, its uncensored value :math:`y^*`
    may lie beyond this limit. Predictions are for the uncensored values. For quantiles of y, clamp the predicted
    quantiles to the limits.

    Args:
        low: Lower limit l, such as the smallest amount that an instrument can measure; None for no lower limit.
        high: Upper limit h; None for no upper limit.
        scale: Standard deviation :math:`\sigma`: a number; None to learn it, starting at 1; or a distribution over
            positive numbers, which is the prior of the latent variable ``likelihood.scale``.

    Raises:
        ValueError: If both limits are None, if the lower limit is not below the upper one, or if the scale is not above
            0.

    References:
        Tobin (1958), Estimation of Relationships for Limited Dependent Variables, https://doi.org/10.2307/1907382.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.likelihoods.Censored(low=0.0, scale=1.0)
        >>> amounts = likelihood(torch.zeros(1))
        >>> float(amounts.log_prob(torch.zeros(1)).exp())  # half are below 0
        0.5
    """

    def __init__(
        self,
        *,
        low: float | None = None,
        high: float | None = None,
        scale: float | TorchDistributionMixin | None = None,
    ) -> None:
        super().__init__()
        if low is None and high is None:
            raise ValueError(
                "`low` or `high` must be a number, got None for both; without limits use GaussianLikelihood."
            )
        self.low = -math.inf if low is None else _checks.number("low", low)
        self.high = math.inf if high is None else _checks.number("high", high)
        if self.low >= self.high:
            raise ValueError(f"`low` must be below `high`, got {low} and {high}; exchange them.")
        self.add_positive("scale", scale)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        (output,) = parts
        return LimitedNormal(dist.Normal(output, numbers["scale"]), self.low, self.high)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        super().check_values(output, y)
        low, high = map(float, y.aminmax())
        if low < self.low or high > self.high:
            raise ValueError(
                f"targets of Censored must lie between its limits {self.low:g} and {self.high:g}, got values from "
                f"{low:g} to {high:g}; give a censored target the value of its limit, as with `y.clamp(low, high)`."
            )

    def extra_repr(self) -> str:
        return f"low={self.low:g}, high={self.high:g}, {super().extra_repr()}"


class Survival(_CensoredLikelihood):
    r"""Times until an event, which may not yet have happened at the end of observation (right censoring).

    .. math:: \log T = f(x) + \epsilon / k.

    The output is the logarithm of a typical time (an accelerated failure time model). With ``"weibull"``, T has a
    Weibull distribution of scale :math:`e^{f(x)}` and concentration k. For k = 1, this is an exponential distribution.
    With ``"lognormal"``, :math:`\epsilon` is standard Gaussian.

    Output of shape (N, 1) goes with targets of shape (N, 2): a time above 0, and a flag, which is 1 if the event
    happened then, and 0 if the time is censored. Predictions are for the times of the events, without censoring, shape
    (N,). The probability of surviving a time t is ``1 - prediction.cdf(t)``.

    Args:
        family: ``"weibull"`` or ``"lognormal"``.
        shape: The shape k: a number; None to learn it, starting at 1; or a distribution over positive numbers, which is
            the prior of the latent variable ``likelihood.shape``.

    Raises:
        ValueError: If the family is unknown, or the shape is not above 0.

    References:
        Kalbfleisch and Prentice (2002), The Statistical Analysis of Failure Time Data, chapter 3.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.likelihoods.Survival("weibull", shape=1.0)
        >>> times = likelihood(torch.zeros(1, 1))
        >>> over = torch.tensor([[[1.0, 0.0]]])  # no event until time 1
        >>> round(float(times.log_prob(over).exp()), 3)
        0.368
    """

    def __init__(
        self,
        family: Literal["weibull", "lognormal"] = "weibull",
        *,
        shape: float | TorchDistributionMixin | None = None,
    ) -> None:
        super().__init__()
        self.family = _checks.one_of("family", family, ("weibull", "lognormal"))
        self.add_positive("shape", shape)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        (output,) = parts
        require_one_output("Survival", output)
        log_time, shape = output[..., 0], numbers["shape"]
        shape = shape[..., 0] if shape.dim() else shape
        if self.family == "lognormal":
            return RightCensored(dist.LogNormal(log_time, shape.reciprocal()))
        return RightCensored(dist.Weibull(log_time.exp(), shape))

    def num_outputs(self, num_targets: int) -> int:
        return 1

    def check_values(self, output: Tensor, y: Tensor) -> None:
        require_real("Survival", y)
        time, event = y.unbind(-1)
        if bool((time <= 0).any()):
            raise ValueError(
                f"times of Survival must be above 0, got {float(time.min()):g}; the first column of `y` is the time, "
                "the second the event."
            )
        if bool(((event != 0) & (event != 1)).any()):
            raise ValueError(
                f"events of Survival must be 0 (censored) or 1, got {float(event.min()):g} to {float(event.max()):g}; "
                "the second column of `y` is the event."
            )

    def extra_repr(self) -> str:
        return f"{self.family}, {super().extra_repr()}"
