"""What `predict` returns."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Poisson

from .. import _checks
from .._scope import seeded
from ._entropy import entropy, require_two
from ._parameters import join_distributions, take_rows


def _require_variance(spread: Tensor | None) -> Tensor:
    if spread is None:
        require_two(1)
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
        require_two(self.num_samples)
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

    def _aligned(self, y: Tensor) -> Tensor:
        """Values for each row and output, whatever is left of them in leading axes."""
        expected = f"(..., {', '.join(map(str, self.mean.shape))})"
        if not isinstance(y, Tensor):
            raise ValueError(f"`y` must be a tensor of shape {expected}, got {type(y).__name__}.")
        try:
            y = y.to(self.mean).expand(torch.broadcast_shapes(y.shape, self.mean.shape))
        except RuntimeError:
            raise ValueError(f"`y` must have shape {expected}, got {_checks.shape(y)}.") from None
        if y.shape[y.dim() - self.mean.dim() :] != self.mean.shape:
            raise ValueError(f"`y` must have shape {expected}, got one that broadcasts to {_checks.shape(y)}.")
        return y

    def log_prob(self, y: Tensor) -> Tensor:
        r"""Log-density or log-probability of y under the mixture, in nats, jointly over the outputs of a row.

        .. math:: \log p(y \mid x) = \log \tfrac1S \sum_s \prod_o p(y_o \mid f_{w_s}(x)).

        At the targets this is `log_density`; with more leading axes it is a table, such as the density on a grid.

        Args:
            y: Shape ``(..., N, *O)`` or anything that broadcasts to it.

        Returns:
            Shape ``(..., N)``.
        """
        components = self._mixture()
        y = self._aligned(y)
        lead = y.shape[: y.dim() - self.mean.dim()]
        rows = [  # one at a time: memory does not grow with the table
            components.log_prob(row).flatten(2).sum(-1) if row.dim() > 1 else components.log_prob(row)  # (S, N)
            for row in y.reshape(-1, *self.mean.shape)
        ]
        densities = [row.logsumexp(0) - math.log(self.num_samples) for row in rows]
        return torch.stack(densities).reshape(*lead, len(self)) if rows else self.mean.new_zeros(*lead, len(self))

    def sample(self, num_samples: int, *, seed: int | None = None) -> Tensor:
        """Independent draws from the mixture: of the weights, from those kept, and then of one observation per row.

        Args:
            num_samples: How many.
            seed: Makes the draws repeatable and leaves torch's generators as they were.

        Returns:
            Shape ``(num_samples, N, *O)``; within a slice, all rows have the same weights.
        """
        components = self._mixture()
        _checks.at_least("num_samples", num_samples, 1)
        device = self.mean.device
        with seeded(seed, device):
            index = torch.randint(self.num_samples, (num_samples,), device=device)
            return take_rows(components, index).sample()

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


@dataclass(frozen=True)
class MixtureDensityPrediction(RegressionPrediction):
    r"""A prediction whose draws are themselves mixtures, so that its variance has three parts.

    With components m of weight :math:`\pi_{sm}`, mean :math:`\mu_{sm}` and variance :math:`\sigma_{sm}^2` in draw s,
    the law of total variance, applied twice, says

    .. math:: \mathrm{Var}[y] =
        \underbrace{\tfrac1S \sum_s \sum_m \pi_{sm} \sigma_{sm}^2}_\text{within components}
        + \underbrace{\tfrac1S \sum_s \sum_m \pi_{sm} (\mu_{sm} - \bar\mu_s)^2}_\text{between components}
        + \underbrace{\mathrm{Var}_s[\bar\mu_s]}_\text{between draws}, \qquad
        \bar\mu_s = \sum_m \pi_{sm} \mu_{sm}.

    The first two are `aleatoric` (noise, and several answers to one question), the last is `epistemic`.

    Args:
        within_components: Mean over draws of the variance within components, shape ``(N, *O)``.
        between_components: Mean over draws of the variance between components, shape ``(N, *O)``.

    References:
        Choi et al. (2018), Uncertainty-Aware Learning from Demonstration using Mixture Density Networks with
        Sampling-Free Variance Modeling, https://arxiv.org/abs/1709.02249, for the split of one network's variance.
    """

    within_components: Tensor
    between_components: Tensor


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
            joined[name] = join_distributions(parts, data_axis, torch.cat)
        elif value is None:
            joined[name] = None
    return type(first)(**joined)
