"""Comparison of inference methods by their predictions."""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import Inputs, as_inputs, as_targets, leaves, num_rows
from ..._core.signatures import explained
from ...inference.guides import GuidePosterior
from ...inference.posterior import Posterior
from ...modelling.model import BayesianModel
from ...scores.uncertainty import Prediction
from ..prediction import new_seed, predict, require_model
from ._result import Comparison
from ._scores import Scores
from ._summary import NUM_GROUPS, summarise

Model = BayesianModel | Callable[..., object]
Entry = Posterior | Callable[..., object] | tuple[Model, Posterior]


@explained('compare(model, {"nuts": exact, "mean-field": posterior}, x)')
def compare(
    model: Model,
    posteriors: Mapping[str, Entry],
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
    function. The method that comes first in a pair is its reference, so pass the most accurate method, such as NUTS,
    before all other methods.

    Every number about a pair has a Monte Carlo standard error. The standard error comes from a jackknife over 20
    successive groups of draws. The score ``agreement`` changes in jumps, so its standard error comes from a bootstrap
    of the 20 groups. For MCMC, each group is a part of a chain. If the groups are longer than the correlation time of
    the chains, the standard error accounts for slow mixing.

    Distances are never negative, so Monte Carlo noise makes them larger: two sets of draws from one posterior have a
    distance above 0. To measure the noise level of a distance, pass the same guide twice, or two runs of the same
    sampler. Near the noise level the standard errors are up to 1.7 times too large; at much larger distances the
    standard errors are right.

    Args:
        model: The model of the posteriors: a :class:`~pyro_bnn.BayesianModel`, or a Pyro model of your own.
        posteriors: The methods by name. A method is a posterior or a guide. If the posterior belongs to another model
            than `model`, pass a pair (model, posterior). The model in a pair may be a :class:`~pyro_bnn.BayesianModel`
            or a Pyro model.
        x: Inputs, shape (N, ...).
        y: Targets at x, for the NLL and for coverage or accuracy.
        regions: Regions by name, each a boolean mask of points, shape (N,); by default one region with all points.
        num_samples: Number of draws from each posterior. If a posterior stores fewer draws, all of them are used.
        site: For Pyro models of your own, the observed site whose distribution is compared; None means the only
            observed site.
        seed: Seed of the draws; torch's generators do not change. None draws a seed.

    Returns:
        Tables and predictions. Print the result, write it with `to_csv` or `to_json`, or draw it with
        ``pyro_bnn.plotting.comparison``.

    Raises:
        ValueError: If there are fewer than two posteriors, if only some of them predict classes, if their outputs have
            different shapes, if a posterior stores fewer than 40 draws, or if a region is empty.

    References:
        Quenouille (1956) and Tukey (1958) for the jackknife; Efron (1979) for the bootstrap.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> laplace = pb.fit_laplace(model, (x, 2 * x))
        >>> result = pb.compare(
        ...     model,
        ...     {"laplace": laplace, "start": pb.MeanFieldGuide(model)},
        ...     x,
        ...     num_samples=100,
        ...     seed=0,
        ... )
        >>> list(result.predictions)
        ['laplace', 'start']
        >>> [*result.pairs[0].scores]
        ['rms mean difference', 'epistemic sd ratio', 'total sd ratio', 'wasserstein']
    """
    num_samples = _checks.at_least("num_samples", num_samples, 2 * NUM_GROUPS)
    require_model(model)
    like = model.like if isinstance(model, BayesianModel) else None
    x, y = as_inputs("x", x, like), None if y is None else as_targets("y", y, like)
    _checks.kind("posteriors", posteriors, Mapping, 'a dict of posteriors by name, such as {"NUTS": a, "guide": b}')
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
    for name, mask in regions.items():
        _checks.tensor(f"regions[{name!r}]", mask)
        if mask.shape != (num_rows(x),) or mask.dtype != torch.bool or not bool(mask.any()):
            raise ValueError(
                f"the region {name!r} must be a boolean of shape ({num_rows(x)},) with a true element, got "
                f"{mask.dtype} of shape {_checks.shape(mask)}."
            )
    return dict(regions)


def _entry(name: str, entry: object, model: Model) -> tuple[Model, Posterior]:
    """Return the model and the posterior of an entry of `posteriors`."""
    its_model, posterior = entry if isinstance(entry, tuple) and len(entry) == 2 else (model, entry)
    if not isinstance(posterior, Posterior) and callable(posterior) and not isinstance(posterior, BayesianModel):
        posterior = GuidePosterior(posterior)
    if not callable(its_model) or not isinstance(posterior, Posterior):
        raise ValueError(
            f"`posteriors[{name!r}]` must be a posterior, a guide, or a pair (model, posterior), got "
            f"{type(entry).__name__}."
        )
    return its_model, posterior
