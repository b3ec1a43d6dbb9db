"""Running sums over draws of the weights, from which predictions are made."""

from abc import ABC, abstractmethod
from typing import Any, Generic

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution
from torch.nn.functional import logsigmoid

from ._classification import ClassificationPrediction
from ._entropy import RunningEntropies, single_at_least
from ._prediction import P_co, in_double, join_distributions
from ._regression import RegressionPrediction
from ._special import MixtureDensityPrediction


class Accumulator(ABC, Generic[P_co]):
    """A running sum over draws of the weights."""

    num_samples: int = 0

    @abstractmethod
    def add_draws(self, observations: Distribution, *, keep: bool) -> None:
        """Add the predictions of S draws of the weights.

        Args:
            observations: Distribution of the observations, batch shape ``(S, N, *O)``.
            keep: Whether to keep the prediction of each draw, too.
        """

    def add(self, observation: Distribution, *, keep: bool) -> None:
        """Add the prediction of one draw of the weights, batch shape ``(N, *O)``."""
        self.add_draws(observation.expand(torch.Size([1, *observation.batch_shape])), keep=keep)

    @abstractmethod
    def prediction(self, log_density: Tensor | None) -> P_co:
        """Return the prediction from all draws added so far.

        Args:
            log_density: Log-density of the targets, shape (N,); None without targets.
        """


class ClassAccumulator(Accumulator[ClassificationPrediction]):
    """Running sums of predictions in classification."""

    def __init__(self) -> None:
        self._entropies, self._logits = RunningEntropies(), RunningMoments()
        self._votes: Any = 0
        self._kept: list[Tensor] = []

    def add_draws(self, observations: Distribution, *, keep: bool) -> None:
        log_probs = _log_probs(observations)  # (S, N, C)
        self._dtype = single_at_least(log_probs)  # half precision has too few digits for sums of many numbers
        log_probs = log_probs.to(self._dtype)
        probs = self._entropies.add(log_probs)
        chosen = probs.argmax(-1, keepdim=True)
        self._votes = self._votes + torch.zeros_like(probs, dtype=torch.long).scatter_(-1, chosen, 1).sum(0)
        self._logits.add(log_probs - log_probs.mean(-1, keepdim=True))
        self.num_samples = self._logits.count
        if keep:
            self._kept.append(log_probs)

    def prediction(self, log_density: Tensor | None) -> ClassificationPrediction:
        variance, information = self._logits.variance, self._entropies.mutual_information
        return ClassificationPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            probs=self._entropies.mean.to(self._dtype),
            aleatoric=self._entropies.expected_entropy.to(self._dtype),
            votes=self._votes,
            mutual_information=None if variance is None else information.to(self._dtype),
            variance_of_logits=None if variance is None else variance.mean(-1),
            logits=torch.cat(self._kept) if self._kept else None,
        )


class MomentAccumulator(Accumulator[RegressionPrediction]):
    """Running sums of predictions in regression."""

    def __init__(self) -> None:
        self._means, self._variances = RunningMoments(), RunningMoments()
        self._kept: list[Distribution] = []

    def add_draws(self, observations: Distribution, *, keep: bool) -> None:
        self._dtype = single_at_least(observations.mean)
        if keep:
            self._kept.append(observations)
        observations = in_double(observations)
        self._means.add(observations.mean)  # (S, N, *O)
        self._variances.add_to_mean(observations.variance)
        self.num_samples = self._means.count

    def prediction(self, log_density: Tensor | None) -> RegressionPrediction:
        return RegressionPrediction(
            num_samples=self.num_samples,
            log_density=log_density,
            mean=self._means.mean.to(self._dtype),
            aleatoric=self._variances.mean,
            variance_of_means=self._means.variance,
            components=join_distributions(self._kept, 0) if self._kept else None,
        )


class MixtureAccumulator(Accumulator[MixtureDensityPrediction]):
    """Running sums of predictions by mixtures."""

    def __init__(self) -> None:
        self._moments, self._within, self._between = MomentAccumulator(), RunningMoments(), RunningMoments()

    def add_draws(self, observations: Distribution, *, keep: bool) -> None:
        self._moments.add_draws(observations, keep=keep)
        self.num_samples = self._moments.num_samples
        mixture: Any = in_double(observations)
        self._within.add_to_mean(mixture.within_variance)
        self._between.add_to_mean(mixture.between_variance)

    def prediction(self, log_density: Tensor | None) -> MixtureDensityPrediction:
        moments = vars(self._moments.prediction(log_density))
        parts = {"within_components": self._within.mean, "between_components": self._between.mean}
        return MixtureDensityPrediction(**moments, **parts)


class RunningMoments:
    """Mean and unbiased variance of values that arrive in blocks (S, ...); see Chan, Golub and LeVeque (1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self._sum: Any = 0.0
        self._squares: Any = 0.0

    def add_to_mean(self, values: Tensor) -> Tensor:
        """Include values in the mean, not in the variance. Return their own mean minus the earlier mean."""
        self.count += len(values)
        deviation: Tensor = values.mean(0) - self.mean
        self._sum = self._sum + values.sum(0)  # infinite for infinite values; a running mean would be NaN
        self.mean = self._sum / self.count
        return deviation

    def add(self, values: Tensor) -> None:
        num_old = self.count
        deviation = self.add_to_mean(values)
        within = (values - values.mean(0)).square().sum(0)
        self._squares = self._squares + within + deviation.square() * (len(values) * num_old / self.count)

    @property
    def variance(self) -> Tensor | None:
        return self._squares / (self.count - 1) if self.count > 1 else None


def _log_probs(observation: Distribution) -> Tensor:
    """Return log-probabilities, shape (S, N, C) or (S, N, O, 2)."""
    if isinstance(observation, Categorical):
        return observation.logits
    if not isinstance(observation, Bernoulli):
        raise ValueError(f"class predictions need a Categorical or Bernoulli distribution, got {observation}.")
    return torch.stack([logsigmoid(-observation.logits), logsigmoid(observation.logits)], dim=-1)
