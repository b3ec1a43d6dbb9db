"""What a comparison needs of the predictions of one method."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.scope import seeded
from ...scores.metrics import interval_coverage
from ...scores.uncertainty import CensoredPrediction, ClassificationPrediction, Prediction, RegressionPrediction
from ._result import Estimate

NUM_GROUPS = 20
"""Heuristic: number of groups of draws. The jackknife leaves out each group in turn; the bootstrap resamples them."""

NUM_RESAMPLES = 200
"""Number of bootstrap resamples. This number adds an error of 5 % to a bootstrap standard error, less than the error
from having only 20 groups."""

COVERAGES = (0.5, 0.9)
"""Probabilities of the central intervals whose coverage is measured."""


class ClassSummary:
    """The class probabilities of a method, computed from all draws, and from the draws without each group in turn."""

    def __init__(self, prediction: ClassificationPrediction, seed: int) -> None:
        assert prediction.logits is not None
        logits = prediction.logits.squeeze(2) if prediction.logits.dim() == 4 else prediction.logits
        if logits.dim() > 3:
            raise ValueError(f"classes are compared for one label per input, got {logits.shape[2]} labels.")
        probs = logits.double().softmax(-1).movedim(1, -1)  # (S, C, N)
        groups = _groups(prediction)
        sums = torch.stack([probs[groups == group].sum(0) for group in range(NUM_GROUPS)])  # (G, C, N)
        sizes = torch.bincount(groups)[:, None, None]
        total = sums.sum(0, keepdim=True)
        generator = torch.Generator().manual_seed(seed)
        resamples = torch.randint(NUM_GROUPS, (NUM_RESAMPLES, NUM_GROUPS), generator=generator).to(probs.device)
        self.prediction = prediction
        self.probs = torch.cat([total / len(probs), (total - sums) / (len(probs) - sizes)])  # (G + 1, C, N)
        self.resampled_labels = torch.stack([sums[resample].sum(0).argmax(0) for resample in resamples])  # (B, N)

    def pair_scores(self, reference: "ClassSummary", mask: Tensor) -> dict[str, Estimate]:
        """Return the agreement and the total variation at the points in `mask`; see :class:`Scores`."""
        probs, others = self.probs[..., mask], reference.probs[..., mask]
        agree = (probs[0].argmax(0) == others[0].argmax(0)).double().mean()
        resampled = (self.resampled_labels == reference.resampled_labels)[:, mask].double().mean(1)
        variance = resampled.var() * NUM_GROUPS / (NUM_GROUPS - 1)  # a bootstrap divides by G, not G - 1
        return {
            "agreement": Estimate(float(agree), float(variance.sqrt())),
            "total variation": jackknife([float(0.5 * gap.sum(0).mean()) for gap in (probs - others).abs()]),
        }

    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Return the entropy, accuracy and NLL at the points in `mask`; see :class:`Scores`."""
        prediction = self.prediction[mask]
        scores = {"entropy": over_points(prediction.total)}
        if y is not None:
            scores["accuracy"] = over_points((prediction.labels == y[mask]).double())
        return scores | _nll(prediction)


class PredictiveMoments(NamedTuple):
    """Moments and quantiles of the predictions of some draws; each tensor's last axis is the points."""

    mean: Tensor  # (O, N), like the two variances
    epistemic: Tensor
    total: Tensor
    quantiles: Tensor  # (Q, O, N)


NUMBER_STATISTICS: dict[str, Callable[[PredictiveMoments, PredictiveMoments], Tensor]] = {
    "rms mean difference": lambda method, reference: (method.mean - reference.mean).square().mean().sqrt(),
    "epistemic sd ratio": lambda method, reference: _root_geometric_mean(method.epistemic / reference.epistemic),
    "total sd ratio": lambda method, reference: _root_geometric_mean(method.total / reference.total),
    "wasserstein": lambda method, reference: (method.quantiles - reference.quantiles).abs().mean(),
}


class NumberSummary:
    """Moments of the predicted numbers from all draws of a method, and from its draws without each group in turn."""

    def __init__(self, prediction: RegressionPrediction, seed: int, num_quantiles: int) -> None:
        components = prediction.components
        assert components is not None
        with seeded(seed, prediction.mean.device):
            observations = components.sample()
        means, variances, observations = (
            v.reshape(*v.shape[:2], -1).movedim(1, -1).double()
            for v in (components.mean, components.variance, observations)
        )  # (S, O, N)
        groups = _groups(prediction)
        self.prediction = prediction
        self.moments: list[PredictiveMoments] = []
        for left_out in range(-1, NUM_GROUPS):  # -1 matches no group, so this uses all draws
            keep = groups != left_out
            epistemic = means[keep].var(0)
            total = epistemic + variances[keep].mean(0)
            ordered = observations[keep].sort(0).values
            rows = ((torch.arange(num_quantiles, device=means.device) + 0.5) / num_quantiles * len(ordered)).long()
            quantiles = ordered[rows]  # exact if `num_quantiles` is the number of draws
            self.moments.append(PredictiveMoments(means[keep].mean(0), epistemic, total, quantiles))

    def pair_scores(self, reference: "NumberSummary", mask: Tensor) -> dict[str, Estimate]:
        """Return distances of means and distributions, and ratios of standard deviations; see :class:`Scores`."""
        own, its = ([PredictiveMoments(*(part[..., mask] for part in m)) for m in s.moments] for s in (self, reference))
        return {
            name: jackknife([float(statistic(*pair)) for pair in zip(own, its, strict=True)])
            for name, statistic in NUMBER_STATISTICS.items()
        }

    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Return standard deviations, the coverage of intervals, and the NLL; see :class:`Scores`."""
        prediction = self.prediction[mask]
        scores = {
            "epistemic sd": over_points(prediction.epistemic.sqrt()),
            "total sd": over_points(prediction.total.sqrt()),
        }
        if y is not None and not isinstance(prediction, CensoredPrediction):  # whose targets may be cut off
            for probability in COVERAGES:
                lower, upper = prediction.quantile([0.5 - probability / 2, 0.5 + probability / 2])
                covered = interval_coverage(lower, upper, y[mask])
                error = math.sqrt(covered * (1 - covered) / y[mask].numel())
                scores[f"coverage_{100 * probability:.0f}"] = Estimate(covered, error)
        return scores | _nll(prediction)


def jackknife(values: Sequence[float]) -> Estimate:
    """Return a score with its jackknife standard error.

    The first of the values comes from all draws, each other value from all draws without one group.
    """
    value, *left_out = values
    variance = torch.tensor(left_out, dtype=torch.float64).var(correction=0) * (NUM_GROUPS - 1)
    return Estimate(value, float(variance.sqrt()))


def over_points(values: Tensor) -> Estimate:
    """Return the mean over points, with its standard error if the values are independent."""
    values = values.double().flatten()
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan)


def _groups(prediction: Prediction) -> Tensor:
    """Return the group of each draw, shape (S,)."""
    num_samples, device = prediction.num_samples, prediction.expectation.device
    return torch.arange(num_samples, device=device) * NUM_GROUPS // num_samples


def _nll(prediction: Prediction) -> dict[str, Estimate]:
    return {} if prediction.log_density is None else {"nll": over_points(-prediction.log_density)}


def _root_geometric_mean(ratios: Tensor) -> Tensor:
    return (0.5 * ratios.log().mean()).exp()


def summarise(predictions: Mapping[str, Prediction], seeds: Sequence[int]) -> dict[str, Any]:
    """Summarise the predictions of each method, and raise unless all of them are of classes, or all of numbers.

    The seeds determine the bootstrap, and the observation drawn for each weight draw.
    """
    num_quantiles = min(prediction.num_samples for prediction in predictions.values())
    summaries: dict[str, ClassSummary | NumberSummary] = {}
    for seed, (name, prediction) in zip(seeds, predictions.items(), strict=True):
        if isinstance(prediction, ClassificationPrediction):
            summaries[name] = ClassSummary(prediction, seed)
        else:
            summaries[name] = NumberSummary(prediction.as_kind(RegressionPrediction), seed, num_quantiles)
    kinds = {name: (type(p).__name__, _checks.shape(p.expectation)) for name, p in predictions.items()}
    if len({(type(summary), kinds[name][1]) for name, summary in summaries.items()}) > 1:
        raise ValueError(f"the posteriors must all predict classes or all numbers, of the same shape, got {kinds}.")
    return summaries
