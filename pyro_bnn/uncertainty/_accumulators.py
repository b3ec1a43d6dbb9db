"""Running sums over weight draws, from which predictions are made."""

from abc import ABC, abstractmethod
from typing import Generic

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution
from torch.nn.functional import logsigmoid

from ._classification import ClassificationPrediction
from ._entropy import RunningEntropies, single_at_least
from ._parameters import join_distributions
from ._prediction import P_co
from ._regression import MixtureDensityPrediction, RegressionPrediction


class Accumulator(ABC, Generic[P_co]):
    """A running sum over weight draws; its memory does not grow with their number."""

    num_samples: int = 0

    @abstractmethod
    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Add the prediction of one weight draw.

        Args:
            observation: Distribution of the observations, batch shape ``(N, *O)``.
            keep: Whether to keep the prediction of this draw too; memory then grows with the number of draws.
        """

    @abstractmethod
    def prediction(self, log_density: Tensor | None) -> P_co:
        """The prediction from all draws so far; `log_density` is that of the targets, shape (N,), or None."""


class ClassAccumulator(Accumulator[ClassificationPrediction]):
    """Mean probabilities, expected entropy, mutual information, votes and logit variance."""

    def __init__(self) -> None:
        self._entropies = RunningEntropies()
        self._kept: list[Tensor] = []

    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Add the class probabilities of one draw; see :meth:`Accumulator.add`."""
        log_probs = _at_least_single(_log_probs(observation))
        probs = self._entropies.add(log_probs)
        if self.num_samples == 0:
            self._dtype = log_probs.dtype
            self._votes = torch.zeros_like(log_probs, dtype=torch.long)
            self._logit_mean, self._logit_square = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
        self.num_samples += 1
        self._votes.scatter_add_(-1, probs.argmax(-1, keepdim=True), torch.ones_like(self._votes[..., :1]))
        _welford(self._logit_mean, self._logit_square, log_probs - log_probs.mean(-1, keepdim=True), self.num_samples)
        if keep:
            self._kept.append(log_probs)

    def prediction(self, log_density: Tensor | None) -> ClassificationPrediction:
        """The class probabilities and their uncertainty; see :meth:`Accumulator.prediction`."""
        return ClassificationPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            probs=self._entropies.mean.to(self._dtype),
            aleatoric=self._entropies.expected_entropy.to(self._dtype),
            votes=self._votes,
            mutual_information=self._entropies.mutual_information.to(self._dtype) if self.num_samples > 1 else None,
            variance_of_logits=_variance(self._logit_square.mean(-1), self.num_samples),
            logits=torch.stack(self._kept) if self._kept else None,
        )


class MomentAccumulator(Accumulator[RegressionPrediction]):
    """Mean and variances of numbers."""

    def __init__(self) -> None:
        self._kept: list[Distribution] = []

    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Add the means and variances of one draw; see :meth:`Accumulator.add`."""
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
        """The moments of the mixture; see :meth:`Accumulator.prediction`."""
        return RegressionPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            mean=self._mean,
            aleatoric=self._aleatoric,
            variance_of_means=_variance(self._square, self.num_samples),
            components=join_distributions(self._kept, 0) if self._kept else None,
        )


class MixtureAccumulator(Accumulator[MixtureDensityPrediction]):
    """Mean and variances of numbers; the variances within and between components are kept apart."""

    def __init__(self) -> None:
        self._moments = MomentAccumulator()

    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Add one draw's mixture, a :class:`~pyro_bnn.distributions.NormalMixture`; see :meth:`Accumulator.add`."""
        self._moments.add(observation, keep=keep)
        within, between = (_at_least_single(getattr(observation, f"{part}_variance")) for part in ("within", "between"))
        if self.num_samples == 0:
            self._within, self._between = torch.zeros_like(within), torch.zeros_like(between)
        self.num_samples += 1
        self._within += (within - self._within) / self.num_samples
        self._between += (between - self._between) / self.num_samples

    def prediction(self, log_density: Tensor | None) -> MixtureDensityPrediction:
        """The moments of the mixture and the parts of its variance; see :meth:`Accumulator.prediction`."""
        moments = vars(self._moments.prediction(log_density))
        return MixtureDensityPrediction(**moments, within_components=self._within, between_components=self._between)


def _welford(mean: Tensor, square: Tensor, value: Tensor, count: int) -> None:
    """Add one value to a running mean and sum of squared deviations, in place (Welford, 1962)."""
    deviation = value - mean
    mean += deviation / count
    square += deviation * (value - mean)


def _at_least_single(value: Tensor) -> Tensor:
    """The value in single precision at least: half precision has too few digits for sums of many numbers."""
    return value.to(single_at_least(value))


def _variance(square: Tensor, count: int) -> Tensor | None:
    return square / (count - 1) if count > 1 else None


def _log_probs(observation: Distribution) -> Tensor:
    """Log-probabilities of the classes, shape (N, C) or (N, O, 2)."""
    if isinstance(observation, Categorical):
        return observation.logits
    if not isinstance(observation, Bernoulli):
        raise ValueError(f"class predictions need a Categorical or Bernoulli distribution, got {observation}.")
    return torch.stack([logsigmoid(-observation.logits), logsigmoid(observation.logits)], dim=-1)
