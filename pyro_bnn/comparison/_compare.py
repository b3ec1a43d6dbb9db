"""Comparing methods by what they predict."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._scope import seeded
from ..guides import GuidePosterior
from ..metrics import interval_coverage
from ..model import BayesianModel
from ..posterior import Posterior
from ..prediction import predict
from ..uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ._result import Comparison, Estimate, MethodScore, PairScore

NUM_GROUPS = 20
"""Groups of draws that the jackknife leaves out in turn; heuristic."""

COVERAGES = (0.5, 0.9)
"""Probability of the central intervals whose coverage is counted."""

Entry = Posterior | Callable[..., object] | tuple[BayesianModel, Posterior]


def compare(
    model: BayesianModel,
    posteriors: Mapping[str, Entry],
    x: Tensor,
    *,
    y: Tensor | None = None,
    regions: Mapping[str, Tensor] | None = None,
    num_samples: int = 1000,
    seed: int = 0,
) -> Comparison:
    r"""How far methods are from each other where it counts: in what they predict.

    Weights cannot be compared, since permutations and signs of hidden units leave the network as it is; predictions
    can. Every number about a pair has a standard error from a grouped jackknife over the draws, which leaves them out
    in successive groups of 1/20. For chains these are stretches of a chain, so that the error knows about slow mixing,
    as long as a stretch is longer than the chain's memory. A pair is (reference, method) in the order given: name the
    yardstick, such as NUTS, first. Distances are never negative, so noise makes them larger: two sets of draws of the
    same posterior are not at distance 0. To see that floor, give a guide twice, or two runs of a sampler.

    Args:
        model: The model that the posteriors belong to.
        posteriors: By name: a posterior or guide, or a pair (model, posterior) where the model is another one.
        x: Inputs, shape (N, ...).
        y: Targets at x; adds log-likelihood, and coverage or accuracy.
        regions: By name: which points, boolean of shape (N,); by default all.
        num_samples: Draws of each posterior; chains that hold fewer give all that they hold.
        seed: Of the draws; leaves torch's generators as they were.

    Returns:
        Tables and predictions. `print` it, write it with `to_csv` or `to_json`, draw it with
        ``pyro_bnn.plotting.comparison``.

    Raises:
        ValueError: If there are fewer than two posteriors, they predict different kinds of things or numbers of
            outputs, or a region is empty.

    References:
        Quenouille (1956) and Tukey (1958) for the jackknife.
    """
    _checks.at_least("num_samples", num_samples, 2 * NUM_GROUPS)
    _checks.kind("x", x, Tensor, "a tensor")
    if len(posteriors) < 2:
        raise ValueError(f"`posteriors` must name at least two methods to compare, got {list(posteriors)}.")
    masks = _masks(regions, x)
    entries = {name: _entry(name, entry, model) for name, entry in posteriors.items()}
    for name, (_, posterior) in entries.items():
        if posterior.num_stored is not None:
            _checks.at_least(f"the number of draws that {name!r} holds", posterior.num_stored, 2 * NUM_GROUPS)
    seeds = torch.randint(2**62, (len(entries),), generator=torch.Generator().manual_seed(seed)).tolist()
    predictions = {
        name: predict(
            its_model,
            posterior,
            x,
            y=y,
            num_samples=min(num_samples, posterior.num_stored or num_samples),
            keep_draws=True,
            seed=its_seed,  # independent draws for each, even of the same guide
        )
        for its_seed, (name, (its_model, posterior)) in zip(seeds, entries.items(), strict=True)
    }
    _check_same_kind(predictions)
    num_quantiles = min(prediction.num_samples for prediction in predictions.values())
    summaries = {
        name: _summaries(prediction, its_seed, num_quantiles)
        for its_seed, (name, prediction) in zip(seeds, predictions.items(), strict=True)
    }
    pairs = [
        PairScore(a, b, region, _pair_scores(summaries[a], summaries[b], mask))
        for region, mask in masks.items()
        for a, b in combinations(posteriors, 2)
    ]
    methods = [
        MethodScore(name, region, entries[name][1].seconds, _scores(prediction, y, mask))
        for region, mask in masks.items()
        for name, prediction in predictions.items()
    ]
    return Comparison(methods, pairs, predictions, x)


def _masks(regions: Mapping[str, Tensor] | None, x: Tensor) -> dict[str, Tensor]:
    if regions is None:
        return {"all points": torch.ones(len(x), dtype=torch.bool, device=x.device)}
    if not regions:
        raise ValueError("`regions` is empty; leave it out to compare at all points.")
    for name, mask in regions.items():
        _checks.kind(f"regions[{name!r}]", mask, Tensor, "a boolean tensor")
        if mask.shape != (len(x),) or mask.dtype != torch.bool or not bool(mask.any()):
            raise ValueError(f"the region {name!r} must be a boolean of shape ({len(x)},) with a true element.")
    return dict(regions)


def _entry(name: str, entry: object, model: BayesianModel) -> tuple[BayesianModel, Posterior]:
    """A model and its posterior; a bare guide becomes one."""
    its_model, posterior = entry if isinstance(entry, tuple) and len(entry) == 2 else (model, entry)
    if not isinstance(posterior, Posterior) and callable(posterior) and not isinstance(posterior, BayesianModel):
        posterior = GuidePosterior(posterior)
    if not isinstance(its_model, BayesianModel) or not isinstance(posterior, Posterior):
        raise ValueError(
            f"`posteriors[{name!r}]` must be a posterior, a guide, or a pair (model, posterior), got "
            f"{type(entry).__name__}."
        )
    return its_model, posterior


def _check_same_kind(predictions: Mapping[str, Prediction]) -> None:
    kinds = {}
    for name, prediction in predictions.items():
        is_class = isinstance(prediction, ClassificationPrediction)
        values = prediction.probs if isinstance(prediction, ClassificationPrediction) else vars(prediction)["mean"]
        kinds[name] = ("classes" if is_class else "numbers", _checks.shape(values))
    if len(set(kinds.values())) > 1:
        raise ValueError(f"the posteriors predict different kinds of things, or of different shapes: {kinds}.")


@dataclass(frozen=True)
class _Summary:
    """What some draws predict: class probabilities, or moments and quantiles; the last axis of each is the points."""

    probs: Tensor | None = None  # (C, N)
    mean: Tensor | None = None  # (O, N), like the variances
    epistemic: Tensor | None = None
    total: Tensor | None = None
    quantiles: Tensor | None = None  # (Q, O, N)

    def at(self, mask: Tensor) -> "_Summary":
        """At some of the points."""
        values = (getattr(self, field.name) for field in fields(self))
        return _Summary(*(None if value is None else value[..., mask] for value in values))


def _summaries(prediction: Prediction, seed: int, num_quantiles: int) -> list[_Summary]:
    """Of all draws, then with each group of draws left out."""
    groups = torch.arange(prediction.num_samples) * NUM_GROUPS // prediction.num_samples
    keeps = [groups != left_out for left_out in range(-1, NUM_GROUPS)]  # there is no group -1
    if isinstance(prediction, ClassificationPrediction):
        assert prediction.logits is not None
        logits = prediction.logits.squeeze(2) if prediction.logits.dim() == 4 else prediction.logits
        if logits.dim() > 3:
            raise ValueError(f"classes are compared for one label per input, got {logits.shape[2]} labels.")
        probs = logits.softmax(-1).movedim(1, -1)  # (S, C, N)
        return [_Summary(probs=probs[keep.to(probs.device)].mean(0)) for keep in keeps]
    assert isinstance(prediction, RegressionPrediction)
    components = prediction.components
    assert components is not None
    with seeded(seed, components.mean.device):
        observations = components.sample()
    means, variances, observations = (
        v.reshape(*v.shape[:2], -1).movedim(1, -1).double()
        for v in (components.mean, components.variance, observations)
    )  # (S, O, N)
    summaries = []
    for keep in (keep.to(means.device) for keep in keeps):
        epistemic = means[keep].var(0)
        total = epistemic + variances[keep].mean(0)
        ordered = observations[keep].sort(0).values
        rows = ((torch.arange(num_quantiles, device=means.device) + 0.5) / num_quantiles * len(ordered)).long()
        quantiles = ordered[rows]  # of as many draws all of them, and so the exact distance
        summaries.append(_Summary(None, means[keep].mean(0), epistemic, total, quantiles))
    return summaries


def _pair_scores(a: list[_Summary], b: list[_Summary], mask: Tensor) -> dict[str, Estimate]:
    pairs = [(first.at(mask), second.at(mask)) for first, second in zip(a, b, strict=True)]
    scores = {}
    for name, statistic in (CLASS_STATISTICS if a[0].probs is not None else NUMBER_STATISTICS).items():
        value, *left_out = (float(statistic(first, second)) for first, second in pairs)
        spread = torch.tensor(left_out, dtype=torch.float64).var(correction=0) * (NUM_GROUPS - 1)
        scores[name] = Estimate(value, float(spread.sqrt()))
    return scores


def _root_geometric_mean(ratios: Tensor) -> Tensor:
    return (0.5 * ratios.log().mean()).exp()


Statistic = Callable[[Any, Any], Tensor]

CLASS_STATISTICS: dict[str, Statistic] = {
    "agreement": lambda a, b: (a.probs.argmax(0) == b.probs.argmax(0)).double().mean(),
    "total variation": lambda a, b: 0.5 * (a.probs - b.probs).abs().sum(0).mean(),
}

NUMBER_STATISTICS: dict[str, Statistic] = {
    "rms mean difference": lambda a, b: (a.mean - b.mean).square().mean().sqrt(),
    "epistemic sd ratio": lambda a, b: _root_geometric_mean(b.epistemic / a.epistemic),
    "total sd ratio": lambda a, b: _root_geometric_mean(b.total / a.total),
    "wasserstein": lambda a, b: (a.quantiles - b.quantiles).abs().mean(),
}


def _scores(prediction: Prediction, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
    scores: dict[str, Estimate] = {}
    if isinstance(prediction, ClassificationPrediction):
        scores["entropy"] = _over_points(prediction.total[mask])
        if y is not None:
            scores["accuracy"] = _over_points((prediction.labels == y)[mask].double())
    else:
        assert isinstance(prediction, RegressionPrediction)
        scores["epistemic sd"] = _over_points(prediction.epistemic.sqrt()[mask])
        scores["total sd"] = _over_points(prediction.total.sqrt()[mask])
        for probability in COVERAGES if y is not None else ():
            assert y is not None
            lower, upper = (prediction.quantile(0.5 + sign * probability / 2) for sign in (-1, 1))
            covered = interval_coverage(lower[mask], upper[mask], y[mask])
            error = math.sqrt(covered * (1 - covered) / y[mask].numel())
            scores[f"coverage {probability:.0%}"] = Estimate(covered, error)
    if prediction.log_density is not None:
        scores["log_likelihood"] = _over_points(prediction.log_density[mask])
    return scores


def _over_points(values: Tensor) -> Estimate:
    values = values.double().flatten()
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan)
