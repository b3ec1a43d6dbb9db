"""Summaries of the predictions of one method, in the form that comparisons need."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.scope import seeded
from ...scores.metrics import interval_coverage
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ._result import Estimate

NUM_GROUPS = 20
"""Heuristic: number of groups of draws; the jackknife leaves out each in turn, the bootstrap resamples them."""

NUM_RESAMPLES = 200
"""Number of bootstrap resamples; they add an error of 5 % to a standard error, less than the 20 groups do."""

COVERAGES = (0.5, 0.9)
"""Probabilities of the central intervals whose coverage is counted."""


class Summary(ABC):
    """Predictions from all draws of a method, and from its draws without each group in turn."""

    kind: ClassVar[str]
    """Kind of prediction, for an error message."""

    @abstractmethod
    def pair_scores(self, reference: "Summary", mask: Tensor) -> dict[str, Estimate]:
        """Differences from a reference of the same kind, at the points in `mask`, boolean of shape (N,)."""

    @abstractmethod
    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Scores of this method alone, at the points in `mask`, boolean of shape (N,)."""


@singledispatch
def summarise(prediction: Prediction, seed: int, num_quantiles: int) -> Summary:
    """The summary of a prediction that has kept its draws.

    Args:
        prediction: A prediction made with `keep_draws`.
        seed: Seed of the bootstrap, and of the observation that is drawn for each weight draw.
        num_quantiles: Number of quantiles at which numbers are compared.
    """
    raise ValueError(f"predictions of type {type(prediction).__name__} cannot be compared.")


@dataclass(frozen=True)
class ClassSummary(Summary):
    """Summary of class probabilities.

    Args:
        prediction: The prediction from all draws.
        probs: Mean probabilities of all draws, then without each group in turn, shape (G + 1, C, N).
        resampled_labels: Most probable class for each bootstrap resample of the groups, shape (B, N).
    """

    kind = "classes"
    prediction: ClassificationPrediction
    probs: Tensor
    resampled_labels: Tensor

    def pair_scores(self, reference: Summary, mask: Tensor) -> dict[str, Estimate]:
        """Agreement and total variation; see :class:`PairScore`."""
        assert isinstance(reference, ClassSummary)
        probs, others = self.probs[..., mask], reference.probs[..., mask]
        agree = (probs[0].argmax(0) == others[0].argmax(0)).double().mean()
        resampled = (self.resampled_labels == reference.resampled_labels)[:, mask].double().mean(1)
        variance = resampled.var() * NUM_GROUPS / (NUM_GROUPS - 1)  # a bootstrap divides by G, not G - 1
        return {
            "agreement": Estimate(float(agree), float(variance.sqrt())),
            "total variation": jackknife([float(0.5 * gap.sum(0).mean()) for gap in (probs - others).abs()]),
        }

    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Entropy, accuracy and log-likelihood; see :class:`MethodScore`."""
        prediction = self.prediction[mask]
        scores = {"entropy": over_points(prediction.total)}
        if y is not None:
            scores["accuracy"] = over_points((prediction.labels == y[mask]).double())
        return scores | _log_likelihood(prediction)


@summarise.register
def _summarise_classes(prediction: ClassificationPrediction, seed: int, num_quantiles: int) -> ClassSummary:
    assert prediction.logits is not None
    logits = prediction.logits.squeeze(2) if prediction.logits.dim() == 4 else prediction.logits
    if logits.dim() > 3:
        raise ValueError(f"classes are compared for one label per input, got {logits.shape[2]} labels.")
    probs = logits.double().softmax(-1).movedim(1, -1)  # (S, C, N)
    groups = _groups(prediction.num_samples).to(probs.device)
    sums = torch.stack([probs[groups == group].sum(0) for group in range(NUM_GROUPS)])  # (G, C, N)
    sizes = torch.bincount(groups)[:, None, None]
    total = sums.sum(0, keepdim=True)
    means = torch.cat([total / len(probs), (total - sums) / (len(probs) - sizes)])
    generator = torch.Generator().manual_seed(seed)
    resamples = torch.randint(NUM_GROUPS, (NUM_RESAMPLES, NUM_GROUPS), generator=generator).to(probs.device)
    labels = torch.stack([sums[resample].sum(0).argmax(0) for resample in resamples])
    return ClassSummary(prediction, means, labels)


@dataclass(frozen=True)
class Moments:
    """Moments and quantiles of the predictions of some draws; the last axis of each tensor is the points."""

    mean: Tensor  # (O, N), like the two variances
    epistemic: Tensor
    total: Tensor
    quantiles: Tensor  # (Q, O, N)

    def at(self, mask: Tensor) -> "Moments":
        """The moments at the points in `mask`."""
        parts = (self.mean, self.epistemic, self.total, self.quantiles)
        return Moments(*(part[..., mask] for part in parts))


NUMBER_STATISTICS: dict[str, Callable[[Moments, Moments], Tensor]] = {
    "rms mean difference": lambda method, reference: (method.mean - reference.mean).square().mean().sqrt(),
    "epistemic sd ratio": lambda method, reference: _root_geometric_mean(method.epistemic / reference.epistemic),
    "total sd ratio": lambda method, reference: _root_geometric_mean(method.total / reference.total),
    "wasserstein": lambda method, reference: (method.quantiles - reference.quantiles).abs().mean(),
}


@dataclass(frozen=True)
class NumberSummary(Summary):
    """Summary of predicted numbers.

    Args:
        prediction: The prediction from all draws.
        moments: Moments of all draws, then without each group in turn, G + 1 entries.
    """

    kind = "numbers"
    prediction: RegressionPrediction
    moments: list[Moments]

    def pair_scores(self, reference: Summary, mask: Tensor) -> dict[str, Estimate]:
        """Distances of means and distributions, ratios of standard deviations; see :class:`PairScore`."""
        assert isinstance(reference, NumberSummary)
        pairs = [(own.at(mask), its.at(mask)) for own, its in zip(self.moments, reference.moments, strict=True)]
        return {
            name: jackknife([float(statistic(own, its)) for own, its in pairs])
            for name, statistic in NUMBER_STATISTICS.items()
        }

    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Standard deviations, coverage of intervals, and log-likelihood; see :class:`MethodScore`."""
        prediction = self.prediction[mask]
        scores = {
            "epistemic sd": over_points(prediction.epistemic.sqrt()),
            "total sd": over_points(prediction.total.sqrt()),
        }
        for probability in COVERAGES if y is not None else ():
            assert y is not None
            lower, upper = prediction.quantile([0.5 - probability / 2, 0.5 + probability / 2])
            covered = interval_coverage(lower, upper, y[mask])
            error = math.sqrt(covered * (1 - covered) / y[mask].numel())
            scores[f"coverage {probability:.0%}"] = Estimate(covered, error)
        return scores | _log_likelihood(prediction)


@summarise.register
def _summarise_numbers(prediction: RegressionPrediction, seed: int, num_quantiles: int) -> NumberSummary:
    components = prediction.components
    assert components is not None
    with seeded(seed, prediction.mean.device):
        observations = components.sample()
    means, variances, observations = (
        v.reshape(*v.shape[:2], -1).movedim(1, -1).double()
        for v in (components.mean, components.variance, observations)
    )  # (S, O, N)
    groups = _groups(prediction.num_samples).to(means.device)
    moments = []
    for left_out in range(-1, NUM_GROUPS):  # -1 is no group: all draws
        keep = groups != left_out
        epistemic = means[keep].var(0)
        total = epistemic + variances[keep].mean(0)
        ordered = observations[keep].sort(0).values
        rows = ((torch.arange(num_quantiles, device=means.device) + 0.5) / num_quantiles * len(ordered)).long()
        quantiles = ordered[rows]  # all draws if their number is `num_quantiles`: an exact distance
        moments.append(Moments(means[keep].mean(0), epistemic, total, quantiles))
    return NumberSummary(prediction, moments)


def jackknife(values: Sequence[float]) -> Estimate:
    """The jackknife estimate; the first value is of all draws, the others are of the draws without one group each."""
    value, *left_out = values
    variance = torch.tensor(left_out, dtype=torch.float64).var(correction=0) * (NUM_GROUPS - 1)
    return Estimate(value, float(variance.sqrt()))


def over_points(values: Tensor) -> Estimate:
    """Mean over points, with the standard error that it would have if the values were independent."""
    values = values.double().flatten()
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan)


def check_same_kind(summaries: dict[str, Summary], predictions: dict[str, Prediction]) -> None:
    """Raise unless the predictions of all methods are of one kind and one shape."""
    kinds = {name: (s.kind, _checks.shape(predictions[name].expectation)) for name, s in summaries.items()}
    if len(set(kinds.values())) > 1:
        raise ValueError(f"the posteriors predict different kinds of things, or of different shapes: {kinds}.")


def _groups(num_samples: int) -> Tensor:
    return torch.arange(num_samples) * NUM_GROUPS // num_samples


def _log_likelihood(prediction: Prediction) -> dict[str, Estimate]:
    return {} if prediction.log_density is None else {"log_likelihood": over_points(prediction.log_density)}


def _root_geometric_mean(ratios: Tensor) -> Tensor:
    return (0.5 * ratios.log().mean()).exp()
