"""The Gaussian priors of a model's weights, and which weights share a precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from ..._core.reflection import unwrap
from ...modelling.model import BayesianModel

Per = Literal["network", "layer", "parameter"]


@dataclass(frozen=True)
class GaussianPrior:
    """Independent Gaussians on all random weights, in one vector and in double precision.

    Args:
        means: Their means, shape (P,).
        precisions: One over their variances, shape (P,).
    """

    means: Tensor
    precisions: Tensor


def gaussian_prior(model: BayesianModel, sites: Sequence[str], *, is_kronecker: bool) -> GaussianPrior:
    """The prior of some sites of a model.

    Raises:
        ValueError: If it is not Gaussian and fixed, or, for Kronecker factors, not the same in all of a parameter.
    """
    remedy = "use NormalPrior, FanInNormalPrior, NetworkNormalPrior or PosteriorPrior, or `fit_laplace` or `fit_svi`"
    if not model.has_fixed_priors:
        raise ValueError(
            "the prior must be Gaussian and fixed, got one that depends on latent variables or on learned numbers; "
            f'{remedy}. A fixed prior whose precision the data choose is `prior_precision="evidence"`.'
        )
    means, precisions = [], []
    for name in sites:
        prior, shape = unwrap(model.prior_of(name)), model.initial_value(name).shape
        if type(prior) is not dist.Normal:
            raise ValueError(f"the prior of `{name}` must be Gaussian, got {type(prior).__name__}; {remedy}.")
        scales = prior.scale.expand(shape).double().flatten()
        if is_kronecker and bool((scales != scales[0]).any()):
            raise ValueError(
                f"Kronecker factors need the same prior scale for all weights of `{name}`, got "
                f"{float(scales.min()):.4g} to {float(scales.max()):.4g}; "
                'use structure="diagonal", or a `prior_precision`.'
            )
        means.append(prior.loc.expand(shape).double().flatten())
        precisions.append(scales.square().reciprocal())
    return GaussianPrior(torch.cat(means), torch.cat(precisions))


def groups_of(sites: Sequence[str], per: Per) -> dict[str, list[str]]:
    """The sites that share a prior precision, by a name for them.

    Example:
        >>> groups_of(["net.0.weight", "net.0.bias", "net.2.weight"], "layer")
        {'net.0': ['net.0.weight', 'net.0.bias'], 'net.2': ['net.2.weight']}
    """
    groups: dict[str, list[str]] = {}
    for site in sites:
        name = {"network": "all weights", "layer": site.rpartition(".")[0], "parameter": site}[per]
        groups.setdefault(name, []).append(site)
    return groups
