"""How far posteriors are from each other, in the space of predictions."""

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._scope import seeded
from .metrics import interval_coverage
from .model import BayesianModel
from .posterior import Posterior
from .prediction import predict
from .uncertainty import ClassificationPrediction, Prediction, RegressionPrediction

__all__ = ["Comparison", "Estimate", "MethodScore", "PairScore", "compare"]

NUM_GROUPS = 20
"""Groups of draws that the jackknife leaves out in turn; heuristic."""

NUM_QUANTILES = 200
"""Of the predictive distributions, for their distance; heuristic."""

COVERAGES = (0.5, 0.9)
"""Probability of the central intervals whose coverage is counted."""

Entry = Posterior | tuple[BayesianModel, Posterior]


@dataclass(frozen=True)
class Estimate:
    """A number with its Monte Carlo error.

    Args:
        value: The estimate.
        standard_error: Its standard error; for a score over test points, that of a mean over them.
    """

    value: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.standard_error:.1g}"


@dataclass(frozen=True)
class MethodScore:
    """What is known of one method, on average over the points of a region.

    Args:
        method: Its name.
        region: Name of the region.
        seconds: Wall time of its inference; None if unknown.
        scores: By name. With targets: ``log_likelihood`` (mean per point, in nats), ``coverage 50%`` and so on, or
            ``accuracy``. Always: ``epistemic sd`` and ``total sd`` (means over points) or ``entropy`` (in nats).
    """

    method: str
    region: str
    seconds: float | None
    scores: dict[str, Estimate]


@dataclass(frozen=True)
class PairScore:
    """How one method differs from another one, on average over the points of a region.

    Args:
        reference: Name of the first method.
        method: Name of the second.
        region: Name of the region.
        scores: By name. Numbers: ``mean difference`` (root mean square over points), ``epistemic sd ratio`` and
            ``total sd ratio`` (method over reference, geometric means), ``wasserstein`` (distance between predictive
            distributions, in the units of y). Classes: ``agreement`` (share of points with the same most probable
            class), ``total variation`` (half the summed absolute difference of probabilities).
    """

    reference: str
    method: str
    region: str
    scores: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` returns: tables, and the predictions that they were made of.

    Printed, it shows all methods and, of the pairs, those with the first method; :meth:`rows`, :meth:`to_csv` and
    :meth:`to_json` have all pairs.

    Args:
        methods: One row per region and method.
        pairs: One row per region and pair of methods.
        predictions: The prediction of each method at x.
        x: The inputs, shape (N, ...).
    """

    methods: list[MethodScore]
    pairs: list[PairScore]
    predictions: dict[str, Prediction]
    x: Tensor

    def __str__(self) -> str:
        blocks = []
        for region in dict.fromkeys(row.region for row in self.pairs):
            methods = [_method_cells(row) for row in self.methods if row.region == region]
            reference = self.pairs[0].reference  # every pair would be a long table; `rows` has them all
            pairs = [_pair_cells(row) for row in self.pairs if (row.region, row.reference) == (region, reference)]
            blocks += [f"{region}:\n{_table(['method', 'seconds'], methods)}", _table(["reference", "method"], pairs)]
        return "\n\n".join(blocks)

    def rows(self) -> list[dict[str, object]]:
        """One flat row per number: reference (empty for a single method), method, region, score, value, its error."""
        rows = []
        every: list[MethodScore | PairScore] = [*self.methods, *self.pairs]
        for row in every:
            reference = row.reference if isinstance(row, PairScore) else ""
            named = {"reference": reference, "method": row.method, "region": row.region}
            for score, estimate in row.scores.items():
                numbers = {"value": estimate.value, "standard_error": estimate.standard_error}
                rows.append({**named, "score": score, **numbers})
        return rows

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`rows` as CSV.

        Args:
            path: The file.
        """
        rows = self.rows()
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def to_json(self, path: str | Path) -> None:
        """Write methods and pairs as JSON.

        Args:
            path: The file.
        """
        content = {"methods": [asdict(row) for row in self.methods], "pairs": [asdict(row) for row in self.pairs]}
        Path(path).write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


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
    can. Every number about a pair has a standard error from a grouped jackknife over the draws: they are left out in
    successive groups of 1/20, which for chains are stretches of a chain, so that slow mixing shows. A pair is
    (reference, method) in the order given: name the yardstick, such as NUTS, first. Distances are never negative, so
    noise makes them larger: two sets of draws of the same posterior are not at distance 0. To see that floor, give one
    posterior twice.

    Args:
        model: The model that the posteriors belong to.
        posteriors: By name: a posterior, or a pair (model, posterior) where the model is another one.
        x: Inputs, shape (N, ...).
        y: Targets at x; adds log-likelihood, and coverage or accuracy.
        regions: By name: which points, boolean of shape (N,); by default all.
        num_samples: Draws of each posterior; chains that hold fewer give all that they hold.
        seed: Of the draws; leaves torch's generators as they were.

    Returns:
        Tables and predictions. `print` it, write it with `to_csv` or `to_json`, draw it with
        ``pyro_bnn.plotting.comparison``.

    Raises:
        ValueError: If there are fewer than two posteriors, they predict different kinds of things, or a region is
            empty.

    References:
        Quenouille (1956) and Tukey (1958) for the jackknife.
    """
    _checks.at_least("num_samples", num_samples, 2 * NUM_GROUPS)
    if len(posteriors) < 2:
        raise ValueError(f"`posteriors` must name at least two methods to compare, got {list(posteriors)}.")
    everywhere = torch.ones(len(x), dtype=torch.bool, device=x.device)
    masks = dict(regions) if regions is not None else {"all points": everywhere}
    for name, mask in masks.items():
        if mask.shape != everywhere.shape or mask.dtype != torch.bool or not bool(mask.any()):
            raise ValueError(f"the region {name!r} must be a boolean of shape ({len(x)},) with a true element.")
    entries = {name: entry if isinstance(entry, tuple) else (model, entry) for name, entry in posteriors.items()}
    predictions = {
        name: predict(
            its_model,
            posterior,
            x,
            y=y,
            num_samples=min(num_samples, posterior.num_stored or num_samples),
            keep_draws=True,
            seed=seed + index,  # independent draws for each, even of the same posterior
        )
        for index, (name, (its_model, posterior)) in enumerate(entries.items())
    }
    kinds = {type(prediction).__name__ for prediction in predictions.values()}
    if len(kinds) > 1:
        raise ValueError(f"the posteriors predict different kinds of things: {sorted(kinds)}.")
    summaries = {name: _summaries(p, seed + index) for index, (name, p) in enumerate(predictions.items())}
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


def _summaries(prediction: Prediction, seed: int) -> list[_Summary]:
    """Of all draws, then with each group of draws left out."""
    keeps = [
        torch.arange(prediction.num_samples) * NUM_GROUPS // prediction.num_samples != g for g in range(NUM_GROUPS)
    ]
    keeps.insert(0, torch.ones(prediction.num_samples, dtype=torch.bool))
    if isinstance(prediction, ClassificationPrediction):
        assert prediction.logits is not None
        if prediction.logits.dim() > 3:
            raise ValueError(f"classes are compared for one label per input, got {prediction.logits.shape[2]} labels.")
        probs = prediction.logits.softmax(-1).movedim(1, -1)  # (S, C, N)
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
    levels = (torch.arange(NUM_QUANTILES, dtype=torch.float64) + 0.5).to(means.device) / NUM_QUANTILES
    summaries = []
    for keep in (keep.to(means.device) for keep in keeps):
        epistemic = means[keep].var(0)
        total = epistemic + variances[keep].mean(0)
        quantiles = torch.quantile(observations[keep], levels, dim=0)
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
    "mean difference": lambda a, b: (a.mean - b.mean).square().mean().sqrt(),
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


def _method_cells(row: MethodScore) -> dict[str, str]:
    seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
    return {"method": row.method, "seconds": seconds, **{name: str(value) for name, value in row.scores.items()}}


def _pair_cells(row: PairScore) -> dict[str, str]:
    return {"reference": row.reference, "method": row.method, **{name: str(v) for name, v in row.scores.items()}}


def _table(first: list[str], rows: list[dict[str, str]]) -> str:
    columns = [*first, *dict.fromkeys(name for row in rows for name in row if name not in first)]
    lines = [{name: name for name in columns}, *rows]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in columns}

    def cell(line: dict[str, str], name: str) -> str:
        return f"{line.get(name, ''):{'<' if name in first else '>'}{widths[name]}}"

    return "\n".join("  ".join(cell(line, name) for name in columns) for line in lines)
