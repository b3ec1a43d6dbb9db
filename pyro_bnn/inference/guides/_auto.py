"""Pyro's autoguides, with all parameters from the start.

A plain autoguide makes its parameters at its first call. Before that call no state dict can be loaded into it, and if
the call has no targets, the observed site becomes a latent one. The guides of this module see only the latent
variables. Their parameters start at the values of `init`, and never at values from Pyro's global store.
"""

from typing import TypeVar

import torch
from pyro.infer.autoguide import AutoGuide, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import Tensor
from torch.nn.functional import softplus

from ..._core.scope import own_parameters, seeded
from ...modelling.model import BayesianModel
from ..joint import Site, find_sites
from ..scale_maps import Softplus
from ._delta import DeltaGuide
from ._init import Init, init_or_default, require_model
from ._low_rank import checked_rank

AnyGuide = TypeVar("AnyGuide", bound=AutoGuide)


def auto_normal(model: BayesianModel, *, init: Init | None = None) -> AutoNormal:
    """Pyro's `AutoNormal`: one independent Gaussian per element, in unconstrained space.

    Use `Trace_ELBO` with any AutoNormal: `TraceMeanField_ELBO` finds no closed form for it, and is wrong for
    constrained variables. :class:`~pyro_bnn.MeanFieldGuide` is the same distribution without this limitation.

    Args:
        model: The model to guide.
        init: First locations and scales; by default centred on the network's own weights.

    Returns:
        A guide that takes the model's arguments and has all its parameters from the start.
    """
    starts = _starts(model, init)
    guide = _complete(AutoNormal(model.sample_latents))
    for site, loc, rho in starts:
        _set(guide, f"locs.{site.name}", loc)
        _set(guide, f"scales.{site.name}", rho)  # AutoNormal also computes its scale as softplus(rho)
    return guide


def auto_delta(model: BayesianModel, *, init: Init | None = None) -> DeltaGuide:
    r"""A guide that is one point, for maximum a posteriori estimation, or maximum likelihood with ``kl_weight=0``.

    A fit records

    .. math:: \mathrm{ELBO} = \log p(y \mid w) + \log p(w), \qquad \mathrm{KL} = -\log p(w).

    These omit the entropy of a point, which is minus infinity. So the KL can be negative, and cannot be compared with
    the KL of another guide. The point is the mode of the density in *constrained* space, as in Pyro's `AutoDelta`: for
    a latent noise scale it is the maximum of p(scale | y), which differs from the mode of the density of log(scale).
    For weights, which are unconstrained, there is no such difference.

    Args:
        model: The model to guide.
        init: First locations (its scales are not used); by default the network's own weights.

    Returns:
        A guide that takes the model's arguments. All its draws are the same, so predictions have no epistemic
        uncertainty, unless the network itself is random (:class:`~pyro_bnn.nets.MCDropout`).
    """
    return DeltaGuide(model, init=init)


def auto_multivariate_normal(model: BayesianModel, *, init: Init | None = None) -> AutoMultivariateNormal:
    r"""Pyro's `AutoMultivariateNormal`: one Gaussian with full covariance over all latent variables.

    .. math:: q(w) = N(\mu, D L L^\top D), \qquad D = \mathrm{diag}(\sigma), \; L \text{ unit lower triangular}.

    It starts uncorrelated. P latent numbers take P^2 parameters, and as many gradients and optimizer states. This works
    for a thousand latent numbers. For a hundred thousand use :func:`auto_low_rank_multivariate_normal`.

    Args:
        model: The model to guide.
        init: First locations and scales; by default centred on the network's own weights.

    Returns:
        A guide that takes the model's arguments and has all its parameters from the start; for use with `Trace_ELBO`.
    """
    loc, rho = _flat_starts(model, init)
    guide = _complete(AutoMultivariateNormal(model.sample_latents))
    _set(guide, "loc", loc)
    _set(guide, "scale", rho)
    return guide


def auto_low_rank_multivariate_normal(
    model: BayesianModel, *, rank: int | None = None, init: Init | None = None
) -> AutoLowRankMultivariateNormal:
    r"""Pyro's `AutoLowRankMultivariateNormal`: its covariance is a diagonal matrix plus a matrix of low rank.

    .. math:: q(w) = N(\mu, D (I + F F^\top) D), \qquad D = \mathrm{diag}(\sigma), \; F \in R^{P \times \text{rank}}.

    The factor F starts at random numbers, since zero would be a saddle point. They are the same for every guide of the
    same shape. The first marginal standard deviations are exactly those of `init`.

    Args:
        model: The model to guide.
        rank: Rank of the second matrix, from 1 to P; None is the square root of P, rounded.
        init: First locations and marginal scales; by default centred on the network's own weights.

    Returns:
        A guide that takes the model's arguments and has all its parameters from the start; for use with `Trace_ELBO`.

    Raises:
        ValueError: If `rank` is not a whole number from 1 to the number of latent numbers.
    """
    loc, rho = _flat_starts(model, init)
    rank = None if rank is None else checked_rank(rank, len(loc))
    guide = _complete(AutoLowRankMultivariateNormal(model.sample_latents, rank=rank))
    with torch.no_grad():
        stretch = (1 + guide.cov_factor.square().sum(-1)).sqrt()  # ratio of marginal standard deviations to scales
    _set(guide, "loc", loc)
    _set(guide, "scale", Softplus().inverse(softplus(rho) / stretch))
    return guide


def _starts(model: BayesianModel, init: Init | None) -> list[tuple[Site, Tensor, Tensor]]:
    """The latent variables in the order of a guide's flat vector, each with its first location and rho."""
    require_model(model)
    init = init_or_default(init)
    return [(site, *init(site)) for site in find_sites(model, (), {})]


def _flat_starts(model: BayesianModel, init: Init | None) -> tuple[Tensor, Tensor]:
    starts = _starts(model, init)
    return torch.cat([loc.flatten() for _, loc, _ in starts]), torch.cat([rho.flatten() for _, _, rho in starts])


def _complete(guide: AnyGuide) -> AnyGuide:
    """Call a guide once to create its parameters."""
    with own_parameters(guide), seeded(0):
        guide()
    return guide


def _set(guide: AutoGuide, name: str, value: Tensor) -> None:
    """Set the unconstrained value of a parameter; Pyro adds `_unconstrained` to the names of constrained ones."""
    parameters = dict(guide.named_parameters())
    parameter = parameters.get(f"{name}_unconstrained", parameters.get(name))
    assert parameter is not None
    with torch.no_grad():
        parameter.copy_(value)
