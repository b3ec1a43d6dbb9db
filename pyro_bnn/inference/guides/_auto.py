"""Pyro's autoguides, with parameters that exist from the start."""

from typing import TypeVar

import torch
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuide,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch import Tensor
from torch.nn.functional import softplus

from ..._core import checks as _checks
from ..._core.scope import own_parameters, seeded
from ..._core.signatures import explained
from ...modelling.model import BayesianModel
from ..joint import find_sites
from ..scale_maps import Softplus
from ._init import Init, init_or_default, require_model
from ._low_rank import checked_rank

AnyGuide = TypeVar("AnyGuide", bound=AutoGuide)
KINDS = (AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal)
"""Pyro's autoguides with Gaussian marginals."""


@explained("auto_guide(pyro.infer.autoguide.AutoNormal, model)")
def auto_guide(
    kind: type[AnyGuide], model: BayesianModel, *, rank: int | None = None, init: Init | None = None
) -> AnyGuide:
    r"""Make one of Pyro's Gaussian autoguides, whose parameters exist from the start.

    A plain autoguide makes its parameters at its first call, so it cannot load a state dict before this call. For P
    latent numbers in unconstrained space, the guides are

    - ``AutoNormal`` and ``AutoDiagonalNormal``: independent Gaussians, 2 P parameters.
      :class:`~pyro_bnn.MeanFieldGuide` has the same distributions, and closed-form divergences;
    - ``AutoMultivariateNormal``: :math:`N(\mu, D L L^\top D)` with L unit lower triangular. It has P^2 parameters, so
      use it for up to about a thousand latent numbers. It starts without correlations;
    - ``AutoLowRankMultivariateNormal``: :math:`N(\mu, D (I + F F^\top) D)` with F of shape (P, rank). F starts at
      random numbers, because zero would be a saddle point. These numbers depend only on the shape of F.

    Fit these guides with `Trace_ELBO`. `TraceMeanField_ELBO` has no closed form of their KL divergence, and gives wrong
    results for constrained variables. For maximum a posteriori estimation see :class:`~pyro_bnn.DeltaGuide`.

    Args:
        kind: Class of the guide, from `pyro.infer.autoguide`.
        model: The model whose posterior the guide approximates.
        rank: Rank of ``AutoLowRankMultivariateNormal``, by default the rounded square root of P.
        init: Initial locations and marginal scales. By default the guide is centred on the network's present weights.

    Returns:
        A guide that takes the model's arguments.

    Raises:
        ValueError: If `kind` is not one of the classes above, if `rank` is not a whole number from 1 to P, or if `rank`
            is given for a class without a rank.

    Example:
        >>> import torch
        >>> from pyro.infer.autoguide import AutoNormal
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(2, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=8
        ... )
        >>> sorted(pb.auto_guide(AutoNormal, model).median())
        ['net.bias', 'net.weight']
    """
    if not (isinstance(kind, type) and issubclass(kind, KINDS)):
        more = "call `auto_guide(AutoNormal, model)`"
        if isinstance(kind, type) and issubclass(kind, AutoGuide):
            more = "another guide of Pyro can be passed to `fit_svi` as it is, after one call `guide(x, y)`"
        raise ValueError(
            f"`kind` must be one of {', '.join(k.__name__ for k in KINDS)}, got {_checks.described(kind)}; {more}."
        )
    low_rank = issubclass(kind, AutoLowRankMultivariateNormal)
    if rank is not None and not low_rank:
        raise ValueError(
            f"`rank` belongs to AutoLowRankMultivariateNormal, but `kind` is {kind.__name__}; leave it out."
        )
    require_model(model)
    init = init_or_default(init)
    starts = {site.name: init(site) for site in find_sites(model, (), {})}
    loc, rho = (torch.cat([part.flatten() for part in parts]) for parts in zip(*starts.values(), strict=True))
    options = {"rank": None if rank is None else checked_rank(rank, len(loc))} if low_rank else {}
    guide = kind(model.sample_latents, **options)
    with own_parameters(guide), seeded(0):
        guide()  # makes the parameters
    if isinstance(guide, AutoNormal):
        for name, (site_loc, site_rho) in starts.items():
            _set(guide, f"locs.{name}", site_loc)
            _set(guide, f"scales.{name}", site_rho)  # Pyro's scale is also softplus(rho)
        return guide
    if isinstance(guide, AutoLowRankMultivariateNormal):
        with torch.no_grad():
            stretch = (1 + guide.cov_factor.square().sum(-1)).sqrt()  # ratio of marginal standard deviations to scales
        rho = Softplus().inverse(softplus(rho) / stretch)
    _set(guide, "loc", loc)
    _set(guide, "scale", rho)
    return guide


def _set(guide: AutoGuide, name: str, value: Tensor) -> None:
    """Set the unconstrained value of a parameter. Pyro may add `_unconstrained` to the parameter's name."""
    parameters = dict(guide.named_parameters())
    parameter = parameters.get(f"{name}_unconstrained", parameters.get(name))
    assert parameter is not None
    with torch.no_grad():
        parameter.copy_(value)
