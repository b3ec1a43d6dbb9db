"""Comparison of inference methods by their predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core.inputs import Inputs, as_inputs, as_targets, leaves, num_rows
from ..._core.scope import seeded
from ..._core.signatures import explained
from ...inference.guides import GuidePosterior
from ...inference.posterior import Posterior
from ...modelling.model import BayesianModel
from ...scores.metrics import interval_coverage
from ...scores.uncertainty import (
    CensoredPrediction,
    ClassificationPrediction,
    Prediction,
    RegressionPrediction,
    cdf_of_each_draw,
    has_cdf,
    in_double,
)
from ..prediction import new_seed, predict, require_model
from ._result import Comparison, Estimate, Scores

NUM_GROUPS = 20  # heuristic: groups of draws, for the jackknife and the bootstrap

NUM_RESAMPLES = 200  # bootstrap resamples, for a random error of 5 %, which is less than the error by 20 groups

NUM_NODES = 200  # heuristic: values of y per point where distributions are compared, for four digits of a distance
NUM_OBSERVATIONS = 1000  # heuristic: simulated observations per method, whose quantiles are the values of y
COVERAGES = (0.5, 0.9)  # levels of the central intervals whose coverage is measured


class ClassSummary:
    """Class probabilities of a method: first from all draws, then without each group of draws in turn."""

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

    def pair_scores(self, reference: ClassSummary, mask: Tensor) -> dict[str, Estimate]:
        """Return agreement and total variation; see :class:`Scores`."""
        probs, others = self.probs[..., mask], reference.probs[..., mask]
        agree = (probs[0].argmax(0) == others[0].argmax(0)).double().mean()
        resampled = (self.resampled_labels == reference.resampled_labels)[:, mask].double().mean(1)
        variance = resampled.var() * NUM_GROUPS / (NUM_GROUPS - 1)  # a bootstrap divides by G, not G - 1
        return {
            "agreement": Estimate(float(agree), float(variance.sqrt())),
            "total variation": jackknife([float(0.5 * gap.sum(0).mean()) for gap in (probs - others).abs()]),
        }

    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Return entropy, accuracy and NLL; see :class:`Scores`."""
        prediction = self.prediction[mask]
        scores = {"entropy": over_points(prediction.total)}
        if y is not None:
            scores["accuracy"] = over_points((prediction.labels == y[mask]).double())
        return scores | _nll(prediction)


class PredictiveMoments(NamedTuple):
    """Predictive moments and distribution function from some of the draws. The last axis has N points."""

    mean: Tensor  # (O, N), like the two variances
    epistemic: Tensor
    total: Tensor
    nodes: Tensor  # (K, O, N): values of y, the same for all methods
    cdf: Tensor  # (K, O, N)


NUMBER_STATISTICS: dict[str, Callable[[PredictiveMoments, PredictiveMoments], Tensor]] = {
    "rms mean difference": lambda method, reference: (method.mean - reference.mean).square().mean().sqrt(),
    "epistemic sd ratio": lambda method, reference: (method.epistemic.mean() / reference.epistemic.mean()).sqrt(),
    "total sd ratio": lambda method, reference: (method.total.mean() / reference.total.mean()).sqrt(),
    "wasserstein": lambda method, reference: torch.trapezoid(
        (method.cdf - reference.cdf).abs(), method.nodes, dim=0
    ).mean(),
}


class NumberSummary:
    """Predictive moments of a method in regression: first from all draws, then without each group in turn."""

    def __init__(self, prediction: RegressionPrediction, seed: int, nodes: Tensor) -> None:
        assert prediction.components is not None
        components = in_double(prediction.components)
        means, variances = (_points_last(value) for value in (components.mean, components.variance))  # (S, O, N)
        groups = _groups(prediction)
        sizes = torch.bincount(groups, minlength=NUM_GROUPS)[:, None, None, None]
        sums = _cdf_sums(components, prediction, nodes, groups, seed)
        total_cdf = sums.sum(0, keepdim=True)
        cdfs = torch.cat([total_cdf / len(means), (total_cdf - sums) / (len(means) - sizes)])
        self.prediction = prediction
        self.moments: list[PredictiveMoments] = []
        for left_out, cdf in zip(range(-1, NUM_GROUPS), cdfs, strict=True):  # -1 matches no group: all draws
            keep = groups != left_out
            epistemic = means[keep].var(0)
            total = epistemic + variances[keep].mean(0)
            self.moments.append(PredictiveMoments(means[keep].mean(0), epistemic, total, nodes, cdf))

    def pair_scores(self, reference: NumberSummary, mask: Tensor) -> dict[str, Estimate]:
        """Return distances of means and distributions, and ratios of standard deviations."""
        own, its = ([PredictiveMoments(*(part[..., mask] for part in m)) for m in s.moments] for s in (self, reference))
        scores = {
            name: jackknife([float(statistic(*pair)) for pair in zip(own, its, strict=True)])
            for name, statistic in NUMBER_STATISTICS.items()
        }
        for part in ("epistemic", "total"):
            ratios = (getattr(own[0], part) / getattr(its[0], part)).sqrt().flatten()
            low, high = ratios.quantile(ratios.new_tensor([0.1, 0.9])).tolist()
            name = f"{part} sd ratio"
            scores[name] = replace(scores[name], quantile_10=low, quantile_90=high)
        return scores

    def method_scores(self, y: Tensor | None, mask: Tensor) -> dict[str, Estimate]:
        """Return standard deviations, coverage and NLL; see :class:`Scores`."""
        prediction = self.prediction[mask]
        scores = {"epistemic sd": _root_mean(prediction.epistemic), "total sd": _root_mean(prediction.total)}
        if y is not None and not isinstance(prediction, CensoredPrediction):  # whose targets may be cut off
            for probability in COVERAGES:
                lower, upper = prediction.quantile([0.5 - probability / 2, 0.5 + probability / 2])
                covered = interval_coverage(lower, upper, y[mask])
                error = math.sqrt(covered * (1 - covered) / y[mask].numel())
                scores[f"coverage_{100 * probability:.0f}"] = Estimate(covered, error)
        return scores | _nll(prediction)


def jackknife(values: Sequence[float]) -> Estimate:
    """Return a score and its standard error. The first value uses all draws; each other value lacks one group."""
    value, *left_out = values
    variance = torch.tensor(left_out, dtype=torch.float64).var(correction=0) * (NUM_GROUPS - 1)
    return Estimate(value, float(variance.sqrt()))


def over_points(values: Tensor) -> Estimate:
    """Return the mean over points, with its standard error for independent points."""
    values = values.double().flatten()
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan)


def _root_mean(variances: Tensor) -> Estimate:
    """Return the square root of the mean variance, and its standard error."""
    mean = over_points(variances)
    root = math.sqrt(mean.value)
    return Estimate(root, mean.standard_error / (2 * root) if root else 0.0)


def _groups(prediction: Prediction) -> Tensor:
    num_samples, device = prediction.num_samples, prediction.expectation.device
    return torch.arange(num_samples, device=device) * NUM_GROUPS // num_samples


def _points_last(values: Tensor) -> Tensor:
    """Convert ``(S, N, *O)`` values to (S, O, N), in double precision."""
    return values.reshape(*values.shape[:2], -1).movedim(1, -1).double()


def _cdf_sums(
    components: Distribution, prediction: RegressionPrediction, nodes: Tensor, groups: Tensor, seed: int
) -> Tensor:
    """Return, for each group, the sum of its draws' distribution functions at the nodes, shape (G, K, O, N)."""
    sums = nodes.new_zeros(NUM_GROUPS, *nodes.shape)
    observations = None if has_cdf(components) else _observations(prediction, seed)
    for k, node in enumerate(nodes):
        y = node.movedim(-1, 0).reshape(prediction.mean.shape)
        below = cdf_of_each_draw(components, y) if observations is None else (observations <= y).double().mean(0)
        sums[:, k].index_add_(0, groups, _points_last(below))
    return sums


def _observations(prediction: RegressionPrediction, seed: int) -> Tensor:
    """Simulate at least 1000 observations of each target: R from each of S draws, shape ``(R, S, N, *O)``."""
    assert prediction.components is not None
    with seeded(seed, prediction.mean.device):
        return prediction.components.sample(torch.Size([-(-NUM_OBSERVATIONS // prediction.num_samples)])).double()


def _integration_nodes(predictions: Sequence[RegressionPrediction], seeds: Sequence[int]) -> Tensor:
    """Return the values of y at which distributions are compared: sorted quantiles of observations, shape (K, O, N)."""
    nodes = []
    for prediction, seed in zip(predictions, seeds, strict=True):
        ordered = _points_last(_observations(prediction, seed).flatten(0, 1)).sort(0).values
        count = max(NUM_NODES // len(predictions), 20)
        nodes.append(ordered[torch.linspace(0, len(ordered) - 1, count, device=ordered.device).round().long()])
    return torch.cat(nodes).sort(0).values


def _nll(prediction: Prediction) -> dict[str, Estimate]:
    return {} if prediction.log_density is None else {"nll": over_points(-prediction.log_density)}


def summarise(predictions: Mapping[str, Prediction], seeds: Sequence[int]) -> dict[str, Any]:
    """Summarise the predictions of each method, which must be of one kind and shape."""
    classes = {n: p for n, p in predictions.items() if isinstance(p, ClassificationPrediction)}
    numbers = {n: p.as_kind(RegressionPrediction) for n, p in predictions.items() if n not in classes}
    shapes = {name: (type(p).__name__, _checks.shape(p.expectation)) for name, p in predictions.items()}
    if (classes and numbers) or len({shape for _, shape in shapes.values()}) > 1:
        raise ValueError(f"the posteriors must all predict classes or all numbers, of the same shape, got {shapes}.")
    if classes:
        return {name: ClassSummary(p, seed) for (name, p), seed in zip(classes.items(), seeds, strict=True)}
    nodes = _integration_nodes(list(numbers.values()), seeds)
    return {name: NumberSummary(p, seed, nodes) for (name, p), seed in zip(numbers.items(), seeds, strict=True)}


Model = BayesianModel | Callable[..., object]


EXAMPLE = 'compare(model, {"nuts": nuts, "mean-field": posterior}, x)'


@explained(EXAMPLE)
def compare(
    model: Model,
    posteriors: Mapping[str, Posterior | Callable[..., object] | tuple[Model, Posterior]],
    x: Inputs,
    *,
    y: Tensor | None = None,
    regions: Mapping[str, Tensor] | None = None,
    num_samples: int = 1000,
    site: str | None = None,
    seed: int | None = None,
) -> Comparison:
    r"""Compare methods by their predictions: distances between each pair, and scores of each method.

    Predictions are compared instead of weights, since permuting hidden units changes the weights but not the network's
    function. The first method of a pair is its reference, so pass the most accurate method, such as NUTS, first. The
    scores of a pair have Monte Carlo standard errors (see the notes).

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or a Pyro model of your own.
        posteriors: The methods by name, each a posterior or a guide. For a posterior of another model, pass a pair
            (model, posterior).
        x: Inputs, shape (N, ...).
        y: Targets at x, for the NLL and for coverage or accuracy.
        regions: Boolean masks of points by name, shape (N,); by default one region with all points.
        num_samples: Number of draws from each posterior, or all if it stores fewer.
        site: For your own Pyro models, the observed site to compare, if there are several.
        seed: Seed of the draws; with ``None``, a seed is drawn.

    Returns:
        Tables and predictions. Print the result, write it with `to_csv` or `to_json`, or draw it with
        ``pyro_bnn.plotting.comparison``.

    Raises:
        ValueError: If there are fewer than two posteriors, if predictions differ in kind or shape, if a posterior
            stores fewer than 40 draws, or if a region is empty.

    References:
        Quenouille (1956) and Tukey (1958) for the jackknife; Efron (1979) for the bootstrap.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(0, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> prior = pb.NormalPrior(1.0)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> exact = pb.fit_laplace(model, (x, 2 * x))  # exact for a linear network
        >>> simple = pb.fit(model, (x, 2 * x), method="svi", seed=0)
        >>> methods = {"exact": exact, "mean field": simple}
        >>> result = pb.compare(model, methods, torch.tensor([[2.0]]), seed=0)
        >>> ratio = result.pairs[0].scores["epistemic sd ratio"]
        >>> print(f"{ratio.value:.1f} ± {ratio.standard_error:.1f}")  # too sure
        0.7 ± 0.0

    Notes:
        The standard error of a pair's score comes from a jackknife over 20 successive groups of draws. Only the
        standard error of ``agreement`` comes from a bootstrap of the groups, since this score changes in jumps. For
        MCMC, each group is a part of a chain. If the groups are longer than the correlation time of the chain, the
        standard error accounts for slow mixing.

        Distances are never negative, so Monte Carlo noise makes them larger, even between draws from one posterior. To
        measure the noise level, pass the same guide twice, or two runs of the same sampler. Near the noise level the
        standard errors are up to 1.7 times too large; at much larger distances they are right.
    """
    num_samples = _checks.at_least("num_samples", num_samples, 2 * NUM_GROUPS)
    if not isinstance(posteriors, Mapping):
        found = _checks.described(posteriors)
        raise ValueError(f"`posteriors` must be a dict of posteriors by name, got {found}; call `{EXAMPLE}`.")
    require_model(model)
    like = model.like if isinstance(model, BayesianModel) else None
    x, y = as_inputs("x", x, like), None if y is None else as_targets("y", y, like)
    for name in posteriors:
        _checks.kind("posteriors", name, str, "a dict whose keys are names, as text")
    if len(posteriors) < 2:
        raise ValueError(
            f"`posteriors` must name at least two methods to compare, got {list(posteriors)}; add a reference, such as "
            '"nuts": pyro_bnn.fit_nuts(model, (x, y)).'
        )
    masks = _masks(regions, x)
    entries = {name: _entry(name, entry, model) for name, entry in posteriors.items()}
    for name, (_, posterior) in entries.items():
        if posterior.num_stored is not None:
            _checks.at_least(f"the number of draws that {name!r} stores", posterior.num_stored, 2 * NUM_GROUPS)
    seed = new_seed(seed)
    seeds = torch.randint(2**62, (len(entries),), generator=torch.Generator().manual_seed(seed)).tolist()
    named_site: Any = {} if site is None else {"site": site}
    predictions: dict[str, Prediction] = {
        name: predict(
            its_model,
            posterior,
            x,
            y=y,
            num_samples=min(num_samples, posterior.num_stored or num_samples),
            keep_draws=True,
            **named_site,
            seed=its_seed,  # independent draws for each method, even if two methods are the same guide
        )
        for its_seed, (name, (its_model, posterior)) in zip(seeds, entries.items(), strict=True)
    }
    summaries = summarise(predictions, seeds)
    pairs = [
        Scores(method, region, summaries[method].pair_scores(summaries[reference], mask), reference)
        for region, mask in masks.items()
        for reference, method in combinations(posteriors, 2)
    ]
    methods = [
        Scores(name, region, summary.method_scores(y, mask), seconds=entries[name][1].seconds)
        for region, mask in masks.items()
        for name, summary in summaries.items()
    ]
    (_, status), *others = [(name, posterior.status) for name, (_, posterior) in entries.items()]
    return Comparison(methods, pairs, predictions, x, status, dict(others))


def _masks(regions: Mapping[str, Tensor] | None, x: Inputs) -> dict[str, Tensor]:
    if regions is None:
        return {"all points": torch.ones(num_rows(x), dtype=torch.bool, device=leaves(x)[0].device)}
    _checks.kind("regions", regions, Mapping, "a dict of boolean masks by name")
    if not regions:
        raise ValueError("`regions` is empty; leave it out to compare at all points.")
    masks = {name: as_targets(f"regions[{name!r}]", mask, leaves(x)[0]) for name, mask in regions.items()}
    for name, mask in masks.items():
        if mask.shape != (num_rows(x),) or mask.dtype != torch.bool or not bool(mask.any()):
            raise ValueError(
                f"the region {name!r} must be a boolean of shape ({num_rows(x)},) with a true element, got "
                f"{mask.dtype} of shape {_checks.shape(mask)}."
            )
    return masks


def _entry(name: str, entry: object, model: Model) -> tuple[Model, Posterior]:
    its_model, posterior = entry if isinstance(entry, tuple) and len(entry) == 2 else (model, entry)
    if not isinstance(posterior, Posterior) and callable(posterior) and not isinstance(posterior, BayesianModel):
        posterior = GuidePosterior(posterior)
    if not callable(its_model) or not isinstance(posterior, Posterior):
        raise ValueError(
            f"`posteriors[{name!r}]` must be a posterior, a guide, or a pair (model, posterior), got "
            f"{type(entry).__name__}."
        )
    return its_model, posterior
