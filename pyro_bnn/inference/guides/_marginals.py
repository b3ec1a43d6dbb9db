"""The Gaussian that a guide gives to each single weight, beside the prior of that weight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuide,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..._core.reflection import element_of, move_distribution, tensors_of, unwrap
from ..._core.scope import own_parameters
from ...modelling.model import BayesianModel
from ..joint import find_sites
from ._flat import FlatGuide, GaussianGuide
from ._mean_field import MeanFieldGuide

STOCK_GAUSSIANS = (AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal)
"""Guides of Pyro with Gaussian marginals."""

ONE_SIGMA = 0.5 * (1 + math.erf(math.sqrt(0.5)))
"""Probability that a Gaussian lies below its mean plus one standard deviation."""


@dataclass(frozen=True)
class Marginals:
    """The weights of one site, each with a Gaussian of its own; correlations are left out.

    Args:
        site: Name of the site.
        dim: Number of dimensions of the parameter.
        loc: Means, shape (P,), in double precision.
        scale: Standard deviations, shape (P,), in double precision.
        prior: Prior of the single weights, shape (P,), or the one prior of all of them, shape (), in double precision.
        resolution: Relative distance of neighbouring numbers in the dtype of the guide.
    """

    site: str
    dim: int
    loc: Tensor
    scale: Tensor
    prior: Distribution
    resolution: float


@torch.no_grad()
def weight_marginals(guide: object, model: BayesianModel | None) -> tuple[list[Marginals], dict[str, str]]:
    """The marginals of all weights of a guide that were not removed.

    Args:
        guide: The guide.
        model: The model; None takes the priors that the guide met when it was built.

    Returns:
        The marginals by site, and the reason for each site that is left out, ``{site: reason}``.

    Raises:
        ValueError: If the guide has no Gaussian marginals, or if the model is needed but was not given.
    """
    locations, scales = _locations_and_scales(guide)
    priors = _priors_of_guide(guide) if model is None else _priors_of_model(guide, model)
    found, left_out = [], {}
    for name, prior in priors.items():
        if reason := _obstacle(prior, locations[name]):
            left_out[name] = reason
            continue
        loc, scale = (values[name].reshape(-1) for values in (locations, scales))
        keep = guide.kept(name).reshape(-1) if isinstance(guide, MeanFieldGuide) else slice(None)
        if len(loc[keep]):
            precise = move_distribution(unwrap(prior), loc.double())
            pair = loc[keep].double(), scale[keep].double()
            single = _single(precise, locations[name].shape, keep)
            found.append(Marginals(name, locations[name].dim(), *pair, single, torch.finfo(loc.dtype).eps))
        else:
            left_out[name] = "all of its weights were removed"
    return found, left_out


def has_marginals(guide: object) -> bool:
    """Whether a guide has Gaussian marginals that :func:`weight_marginals` can read."""
    return isinstance(guide, (GaussianGuide, *STOCK_GAUSSIANS))


def _locations_and_scales(guide: object) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    if isinstance(guide, GaussianGuide):
        return guide.locations(), guide.scales()
    if not isinstance(guide, STOCK_GAUSSIANS):
        raise ValueError(
            f"`diagnose` needs a guide with Gaussian marginals, such as MeanFieldGuide, LowRankGuide or AutoNormal, "
            f"got {type(guide).__name__}; look at draws of `posterior.sample` instead."
        )
    with own_parameters(guide):
        pairs = guide.quantiles([0.5, ONE_SIGMA])  # of weights, which are real numbers: mean, and mean plus scale
    return {n: v[0] for n, v in pairs.items()}, {n: v[1] - v[0] for n, v in pairs.items()}


def _priors_of_guide(guide: object) -> dict[str, Distribution]:
    if not isinstance(guide, FlatGuide) or not all(site.is_fixed for site in guide.sites):
        raise ValueError(
            "`model` must be given if the guide is one of Pyro's, or if a prior is learned or depends on other "
            "variables; call `posterior.diagnose(model)`."
        )
    return {site.name: site.prior for site in guide.sites}


def _priors_of_model(guide: object, model: BayesianModel) -> dict[str, Distribution]:
    """The priors of the network's sites; those that depend on other variables are given the medians of these."""
    medians: Mapping[str, Tensor] = {}
    if any(model.parents_of(name) for name in model.site_names) and isinstance(guide, (FlatGuide, AutoGuide)):
        with own_parameters(guide):
            medians = guide.median()
    own = {name: model.prior_given(name, medians) for name in model.site_names}
    return {site.name: own.get(site.name, site.prior) for site in find_sites(model, (), {})}


def _obstacle(prior: Distribution, loc: Tensor) -> str | None:
    """Why the weights of a site cannot be compared with their prior one by one, in words; None if they can."""
    single = unwrap(prior)
    if single.event_shape or (single.batch_shape and single.batch_shape != loc.shape):
        return "its elements depend on each other under the prior"
    if single.support is not constraints.real:
        return "it is not a site of real numbers"
    if type(single) is not dist.Normal and not all(map(_is_constant, tensors_of(single))):
        return "its prior is not Gaussian and not the same for all elements"
    return None


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() < 2 or bool((tensor == tensor.reshape(-1)[0]).all())


def _single(prior: Distribution, shape: torch.Size, keep: Tensor | slice) -> Distribution:
    """The prior of the kept weights, shape (P,), if it is Gaussian, or the one prior of them all, of shape ()."""
    if type(prior) is dist.Normal:
        loc, scale = (part.expand(shape).reshape(-1)[keep] for part in (prior.loc, prior.scale))
        return dist.Normal(loc, scale)
    return element_of(prior, (0,) * len(prior.batch_shape))
