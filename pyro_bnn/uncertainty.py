r"""Predictive uncertainty and its two parts.

Classes: the total is the entropy of the mean probabilities, in nats; it splits into the expected entropy (aleatoric)
and the mutual information between label and weights (epistemic). Numbers: the total variance splits into the mean of
the variances (aleatoric) and the variance of the means (epistemic).

References:
    Depeweg et al. (2018), Decomposition of Uncertainty, https://arxiv.org/abs/1710.07283.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Poisson
from torch.nn.functional import logsigmoid

from . import _checks

__all__ = [
    "Accumulator",
    "ClassificationPrediction",
    "Prediction",
    "RegressionPrediction",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "predictive_entropy",
]


def entropy(probs: Tensor) -> Tensor:
    """Entropy over the last axis, in nats; 0 log 0 is 0.

    Args:
        probs: Probabilities, shape (..., C).

    Returns:
        Values in [0, log C], shape (...).

    Example:
        >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    return torch.special.entr(probs).sum(-1)


def predictive_entropy(logits: Tensor) -> Tensor:
    r"""Total uncertainty of a classifier, :math:`H[\frac1S\sum_s p_s]`, in nats.

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).
    """
    return entropy(logits.softmax(-1).mean(0))


def expected_entropy(logits: Tensor) -> Tensor:
    r"""Aleatoric uncertainty of a classifier, :math:`\frac1S\sum_s H[p_s]`, in nats.

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).
    """
    return entropy(logits.softmax(-1)).mean(0)


def mutual_information(logits: Tensor) -> Tensor:
    r"""Epistemic uncertainty of a classifier, in nats; larger means that the draws disagree more.

    .. math:: I = H\big[\tfrac1S \sum_s p_s\big] - \tfrac1S \sum_s H[p_s].

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).

    Raises:
        ValueError: If S < 2, where the quantity is zero by construction.

    References:
        Houlsby et al. (2011), https://arxiv.org/abs/1112.5745.

    Example:
        >>> mutual_information(torch.zeros(2, 1, 2))
        tensor([0.])
    """
    _require_two(len(logits))
    return (predictive_entropy(logits) - expected_entropy(logits)).clamp_min(0)


def _require_two(num_samples: int) -> None:
    if num_samples < 2:
        raise ValueError(
            f"an epistemic uncertainty needs at least 2 draws, got {num_samples}: a single one cannot disagree with "
            "itself; call `predict` with a larger `num_samples`."
        )


def _require_variance(spread: Tensor | None) -> Tensor:
    if spread is None:
        _require_two(1)
    assert spread is not None
    return spread


@dataclass(frozen=True)
class Prediction(ABC):
    """What `predict` returns; its subclasses hold the moments.

    Args:
        num_samples: Number of weight draws, S.
        log_density: Log of the mixture's density or probability at the targets, in nats, shape (N,); None if no
            targets were given.
    """

    num_samples: int
    log_density: Tensor | None

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def nll(self) -> float:
        """Mean over the data of the negative log predictive density, in nats."""
        if self.log_density is None:
            raise ValueError("the NLL needs targets; call `predict(..., y=y)`.")
        return float(-self.log_density.mean())


@dataclass(frozen=True)
class ClassificationPrediction(Prediction):
    """Class probabilities averaged over weight draws, and where their uncertainty comes from.

    Args:
        num_samples: Number of weight draws, S.
        log_density: Log-probability of the targets, in nats, shape (N,); None if no targets were given.
        probs: Mean class probabilities, shape (N, C).
        aleatoric: Expected entropy, in nats, shape (N,).
        votes: How many draws put each class first, shape (N, C).
        spread: Variance over draws of the logits, centred over classes and averaged over them, shape (N,); None for a
            single draw.
        logits: Normalised log-probabilities of each draw, shape (S, N, C); None unless `keep_draws`.
    """

    probs: Tensor
    aleatoric: Tensor
    votes: Tensor
    spread: Tensor | None
    logits: Tensor | None

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def labels(self) -> Tensor:
        """Most probable class, shape (N,)."""
        return self.probs.argmax(-1)

    @property
    def total(self) -> Tensor:
        """Entropy of the mean probabilities, in nats, shape (N,)."""
        return entropy(self.probs)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights, in nats, shape (N,); needs two draws."""
        _require_two(self.num_samples)
        return (self.total - self.aleatoric).clamp_min(0)

    @property
    def max_probability(self) -> Tensor:
        """Probability of the most probable class, shape (N,)."""
        return self.probs.max(-1).values

    @property
    def logit_variance(self) -> Tensor:
        """Variance over draws of the logits, centred over classes and averaged over them, shape (N,)."""
        return _require_variance(self.spread)


@dataclass(frozen=True)
class RegressionPrediction(Prediction):
    """Mean and variances of the predictive mixture, one component per weight draw.

    Args:
        num_samples: Number of weight draws, S.
        log_density: Log-density of the targets, in nats, shape (N,); None if no targets were given.
        mean: Predictive mean, shape ``(N, *O)``.
        aleatoric: Mean of the components' variances, shape ``(N, *O)``.
        spread: Unbiased variance over draws of the components' means, shape ``(N, *O)``; None for a single draw.
        components: The mixture's components, batch shape ``(S, N, *O)``; None unless `keep_draws`.
    """

    mean: Tensor
    aleatoric: Tensor
    spread: Tensor | None
    components: Distribution | None

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def epistemic(self) -> Tensor:
        """Unbiased variance over draws of the components' means, shape ``(N, *O)``; needs two draws."""
        return _require_variance(self.spread)

    @property
    def total(self) -> Tensor:
        """Variance of an observation: aleatoric plus epistemic, shape ``(N, *O)``."""
        return self.aleatoric + self.epistemic

    def _mixture(self) -> Distribution:
        if self.components is None:
            raise ValueError("the mixture's components were not kept; call `predict(..., keep_draws=True)`.")
        return self.components

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of an observation no larger than y, element by element, under the mixture.

        Args:
            y: Shape ``(N, *O)`` or anything that broadcasts to it.

        Returns:
            Values in [0, 1], shape ``(N, *O)``.
        """
        return _cdf(self._mixture(), y).mean(0)

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture, element by element, by bisection between its components' quantiles.

        Args:
            q: Strictly between 0 and 1.

        Returns:
            Shape ``(N, *O)``; for counts the smallest whole number whose cdf reaches q.
        """
        _checks.between_zero_and_one("q", q)
        low, high = _bracket(self._mixture(), q)
        counts = isinstance(self.components, Poisson)
        for _ in range(64):  # halving a bracket 64 times exhausts float64
            middle = ((low + high) / 2).floor() if counts else (low + high) / 2
            below = self.cdf(middle) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high


def _cdf(components: Distribution, y: Tensor) -> Tensor:
    if isinstance(components, Poisson):
        return torch.special.gammaincc((y.floor() + 1).clamp_min(1e-30), components.rate) * (y >= 0)
    return components.cdf(y)


def _bracket(components: Distribution, q: float) -> tuple[Tensor, Tensor]:
    if isinstance(components, Poisson):
        rate = components.rate.amax(0)
        return torch.full_like(rate, -1.0), (rate + (rate * q / (1 - q)).sqrt()).ceil() + 1  # Cantelli's inequality
    quantiles = components.icdf(torch.full_like(components.mean, q))
    return quantiles.amin(0), quantiles.amax(0)


class Accumulator(ABC):
    """A running sum over weight draws: constant memory, whatever their number."""

    num_samples: int = 0

    @abstractmethod
    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Take in one draw's observation distribution, batch shape ``(N, *O)``."""

    @abstractmethod
    def prediction(self, log_density: Tensor | None) -> Prediction:
        """The result so far."""


class ClassAccumulator(Accumulator):
    """Mean probabilities, expected entropy, votes and logit variance."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Take in one draw's class probabilities."""
        log_probs = _at_least_single(_log_probs(observation))
        probs = log_probs.exp()
        centred = log_probs - log_probs.mean(-1, keepdim=True)
        if self.num_samples == 0:
            self._probs, self._aleatoric = torch.zeros_like(probs), torch.zeros_like(probs[..., 0])
            self._votes = torch.zeros_like(probs, dtype=torch.long)
            self._logit_mean, self._logit_square = torch.zeros_like(probs), torch.zeros_like(probs)
        self.num_samples += 1
        self._probs += (probs - self._probs) / self.num_samples
        self._aleatoric += (-(probs * log_probs).nan_to_num(0.0).sum(-1) - self._aleatoric) / self.num_samples
        self._votes.scatter_add_(-1, probs.argmax(-1, keepdim=True), torch.ones_like(self._votes[..., :1]))
        _welford(self._logit_mean, self._logit_square, centred, self.num_samples)
        if keep:
            self._kept.append(log_probs)

    def prediction(self, log_density: Tensor | None) -> ClassificationPrediction:
        """The class probabilities and their uncertainty."""
        return ClassificationPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            probs=self._probs,
            aleatoric=self._aleatoric,
            votes=self._votes,
            spread=_variance(self._logit_square.mean(-1), self.num_samples),
            logits=torch.stack(self._kept) if self._kept else None,
        )


class MomentAccumulator(Accumulator):
    """Mean and variances of numbers."""

    def __init__(self) -> None:
        self._kept: list[Distribution] = []

    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Take in one draw's means and variances."""
        mean, variance = _at_least_single(observation.mean), _at_least_single(observation.variance)
        if self.num_samples == 0:
            self._mean, self._square = torch.zeros_like(mean), torch.zeros_like(mean)
            self._aleatoric = torch.zeros_like(variance)
        self.num_samples += 1
        self._aleatoric += (variance - self._aleatoric) / self.num_samples
        _welford(self._mean, self._square, mean, self.num_samples)
        if keep:
            self._kept.append(observation)

    def prediction(self, log_density: Tensor | None) -> RegressionPrediction:
        """The mixture's moments."""
        return RegressionPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            mean=self._mean,
            aleatoric=self._aleatoric,
            spread=_variance(self._square, self.num_samples),
            components=_stack(self._kept, 0) if self._kept else None,
        )


def _welford(mean: Tensor, square: Tensor, value: Tensor, count: int) -> None:
    """Add one value to a running mean and sum of squared deviations, in place (Welford, 1962)."""
    deviation = value - mean
    mean += deviation / count
    square += deviation * (value - mean)


def _at_least_single(value: Tensor) -> Tensor:
    """Sums of many half-precision numbers need more digits than they have."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _variance(square: Tensor, count: int) -> Tensor | None:
    return square / (count - 1) if count > 1 else None


def _log_probs(observation: Distribution) -> Tensor:
    if isinstance(observation, Categorical):
        return observation.logits
    if not isinstance(observation, Bernoulli):
        raise ValueError(f"class predictions need a Categorical or Bernoulli distribution, got {observation}.")
    return torch.stack([logsigmoid(-observation.logits), logsigmoid(observation.logits)], dim=-1)


def _stack(distributions: Sequence[Distribution], dim: int, join: Any = torch.stack) -> Distribution:
    first = distributions[0]
    names = [name for name in first.arg_constraints if name in vars(first)]  # those that it was made from
    if not names:
        raise ValueError(f"`keep_draws` cannot store distributions of type {type(first).__name__}.")
    parameters = {name: join([getattr(d, name) for d in distributions], dim) for name in names}
    return type(first)(**parameters, validate_args=False)


def concatenate(predictions: Sequence[Prediction]) -> Prediction:
    """Join predictions for successive batches of data that used the same draws."""
    first = predictions[0]
    joined: dict[str, Any] = {"num_samples": first.num_samples}
    for name, value in vars(first).items():
        parts = [getattr(p, name) for p in predictions]
        data_axis = 1 if name in ("logits", "components") else 0
        if isinstance(value, Tensor):
            joined[name] = torch.cat(parts, data_axis)
        elif isinstance(value, Distribution):
            joined[name] = _stack(parts, data_axis, torch.cat)
        elif value is None:
            joined[name] = None
    return type(first)(**joined)
