"""Running sums over weight draws, from which predictions are made."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution
from torch.nn.functional import logsigmoid

from ._classification import ClassificationPrediction
from ._entropy import RunningEntropies, single_at_least
from ._parameters import in_double, join_distributions
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

    def add_draws(self, joint: Distribution, singles: Iterable[Distribution], *, keep: bool) -> None:
        """Add the predictions of several weight draws.

        Args:
            joint: Distribution of the observations in all draws, batch shape ``(S, N, *O)``.
            singles: The same for one draw after the other, each as :meth:`add` takes it.
            keep: Whether to keep the prediction of each draw.
        """
        for single in singles:
            self.add(single, keep=keep)

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
        self._begin(log_probs)
        self.num_samples += 1
        self._votes.scatter_add_(-1, probs.argmax(-1, keepdim=True), torch.ones_like(self._votes[..., :1]))
        _welford(self._logit_mean, self._logit_square, log_probs - log_probs.mean(-1, keepdim=True), self.num_samples)
        if keep:
            self._kept.append(log_probs)

    def add_draws(self, joint: Distribution, singles: Iterable[Distribution], *, keep: bool) -> None:
        """Add the class probabilities of several draws; see :meth:`Accumulator.add_draws`."""
        if keep:
            super().add_draws(joint, singles, keep=keep)
            return
        log_probs = _at_least_single(_log_probs(joint))  # (S, N, C)
        probs = self._entropies.add_draws(log_probs)
        self._begin(log_probs[0])
        self.num_samples += len(log_probs)
        chosen = probs.argmax(-1, keepdim=True)
        self._votes += torch.zeros_like(probs, dtype=torch.long).scatter_(-1, chosen, 1).sum(0)
        centred = log_probs - log_probs.mean(-1, keepdim=True)
        _welford_draws(self._logit_mean, self._logit_square, centred, self.num_samples)

    def _begin(self, log_probs: Tensor) -> None:
        """Set all sums to zero if this is the first draw."""
        if self.num_samples == 0:
            self._dtype = log_probs.dtype
            self._votes = torch.zeros_like(log_probs, dtype=torch.long)
            self._logit_mean, self._logit_square = torch.zeros_like(log_probs), torch.zeros_like(log_probs)

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
        mean, variance = self._moments(observation)
        self._begin(mean, variance)
        self.num_samples += 1
        self._aleatoric += (variance - self._aleatoric) / self.num_samples
        _welford(self._mean, self._square, mean, self.num_samples)
        if keep:
            self._kept.append(observation)

    def add_draws(self, joint: Distribution, singles: Iterable[Distribution], *, keep: bool) -> None:
        """Add the means and variances of several draws; see :meth:`Accumulator.add_draws`."""
        if keep:
            super().add_draws(joint, singles, keep=keep)
            return
        mean, variance = self._moments(joint)  # (S, N, *O)
        self._begin(mean[0], variance[0])
        self.num_samples += len(mean)
        self._aleatoric += (variance.mean(0) - self._aleatoric) * (len(mean) / self.num_samples)
        _welford_draws(self._mean, self._square, mean, self.num_samples)

    def _moments(self, observation: Distribution) -> tuple[Tensor, Tensor]:
        self._dtype = single_at_least(observation.mean)
        observation = in_double(observation)
        return observation.mean, observation.variance

    def _begin(self, mean: Tensor, variance: Tensor) -> None:
        """Set all sums to zero if this is the first draw."""
        if self.num_samples == 0:
            self._mean, self._square = torch.zeros_like(mean), torch.zeros_like(mean)
            self._aleatoric = torch.zeros_like(variance)

    def prediction(self, log_density: Tensor | None) -> RegressionPrediction:
        """The moments of the mixture; see :meth:`Accumulator.prediction`."""
        return RegressionPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            mean=self._mean.to(self._dtype),
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
        mixture: Any = in_double(observation)
        within, between = mixture.within_variance, mixture.between_variance
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


def _welford_draws(mean: Tensor, square: Tensor, values: Tensor, count: int) -> None:
    """Add several values, shape (S, ...), as :func:`_welford` would; `count` is their number with all before.

    Reference:
        Chan, Golub and LeVeque (1983), Algorithms for computing the sample variance.
    """
    num_new = len(values)
    new = values.mean(0)
    deviation = new - mean
    mean += deviation * (num_new / count)
    square += (values - new).square().sum(0) + deviation.square() * (num_new * (count - num_new) / count)


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
