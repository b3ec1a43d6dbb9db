"""Checks of the chains that a file holds."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import constraints

from .. import _checks
from ..joint import Site
from ..mcmc import ChainStatistics
from ._tensors import check_finite, check_tensor, require_no_more

WHOLE, FLOATS = (torch.int32, torch.int64), (torch.float32, torch.float64)
KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "log_density": FLOATS,
    "energy": FLOATS,
    "accept": FLOATS,
    "diverging": (torch.bool,),
    "num_steps": WHOLE,
    "step_size": FLOATS,
    "inverse_mass": FLOATS,
}
"""Dtypes that each statistic may have."""

BOUNDS = (
    constraints.greater_than,
    constraints.greater_than_eq,
    constraints.less_than,
    constraints.interval,
    constraints.half_open_interval,
)
"""Supports that rounding to another dtype does not leave, as it may leave that of a simplex."""


def check_samples(samples: Mapping[str, Tensor], sites: list[Site] | None, dtype: torch.dtype | None) -> torch.Size:
    """The leading axes (K, S) of draws, after checks.

    Args:
        samples: The draws, ``{site: shape (K, S, *event)}``.
        sites: Latent variables of the model; None if it is no model of this package.
        dtype: Dtype of the model, None likewise.

    Raises:
        ValueError: If there is no draw; if a site is missing or unknown; if draws have another shape or dtype, are not
            finite, or lie outside of the support.
    """
    if not samples:
        raise ValueError("the chains in the file must have at least one latent variable, got none.")
    first = next(iter(samples.values()))
    lead = first.shape[:2]
    if len(lead) < 2 or not lead.numel():
        raise ValueError(f"the chains must have shape (K, S, ...) with K, S >= 1, got {_checks.shape(first)}.")
    for name, value in samples.items():
        kind = dtype if dtype is not None else first.dtype
        check_tensor(f"{name}` of the chains", value, (*lead, *value.shape[2:]), kind)
        if not kind.is_floating_point:
            raise ValueError(f"`{name}` of the chains must be floating point, got {kind}.")
        check_finite(f"{name}` of the chains", value)
    if sites is not None:
        require_no_more("the model", samples, [site.name for site in sites])
        for site in sites:
            if site.name not in samples:
                raise ValueError(f"the chains lack the latent variable `{site.name}` of the model; pass their own.")
            value = samples[site.name]
            check_tensor(f"{site.name}` of the chains", value, (*lead, *site.start.shape), value.dtype)
            _check_support(site, value)
    return lead


def _check_support(site: Site, value: Tensor) -> None:
    support = site.prior.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if isinstance(support, BOUNDS) and not bool(support.check(value.to(site.start)).all()):
        raise ValueError(f"`{site.name}` of the chains must lie in {support}, got {float(value.min()):.4g}.")


def check_statistics(statistics: ChainStatistics, lead: torch.Size, num_dimensions: int | None) -> None:
    """Raise unless statistics fit their chains.

    Args:
        statistics: What the sampler reported.
        lead: The leading axes of all draws, (K, S).
        num_dimensions: Number P of latent numbers; None if unknown.

    Raises:
        ValueError: If a statistic has another shape or dtype, is not finite, or is negative where it cannot be.
    """
    mass = statistics.inverse_mass
    size = num_dimensions if num_dimensions is not None else 0 if mass is None or not mass.dim() else mass.shape[-1]
    shapes = dict.fromkeys(KINDS, tuple(lead)) | {"step_size": (lead[0],), "inverse_mass": (lead[0], size)}
    for name, kinds in KINDS.items():
        value = vars(statistics)[name]
        if value is None:
            continue
        if value.dtype not in kinds:
            raise ValueError(f"`{name}` of the chains must be {' or '.join(map(str, kinds))}, got {value.dtype}.")
        check_tensor(f"{name}` of the chains", value, shapes[name], value.dtype)
        check_finite(f"{name}` of the chains", value)
        least = {"step_size": 0.0, "inverse_mass": 0.0}.get(name)
        if least is not None and not bool((value > least).all()):
            raise ValueError(f"`{name}` of the chains must be above 0, got {float(value.min()):.4g}.")
