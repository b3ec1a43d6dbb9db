"""Selects stored draws, and checks whether the draws in a file fit a model."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributions import constraints

from ..._core import checks as _checks
from ..._core.records import check_finite, check_tensor, require_no_more
from ..joint import Site

Draw = dict[str, Tensor]
"""One value of each latent variable, by site."""

BOUNDS = (
    constraints.greater_than,
    constraints.greater_than_eq,
    constraints.less_than,
    constraints.interval,
    constraints.half_open_interval,
)
"""Supports that are checked. Others, such as a simplex, are not: values rounded to another dtype can lie outside."""


def spaced(samples: Mapping[str, Tensor], num_samples: int, *, remedy: str) -> Iterator[Draw]:
    """Evenly spaced rows of stored draws, ``{site: shape (S, *event)}``, each at most once.

    `remedy` ends the error message if more draws are requested than stored.
    """
    num_samples, stored = _checks.at_least("num_samples", num_samples, 1), len(next(iter(samples.values())))
    if num_samples > stored:
        raise ValueError(
            f"`num_samples` is {num_samples} but only {stored} draws are stored; request at most {stored}, or {remedy}."
        )
    for index in range(num_samples):
        row = (2 * index + 1) * stored // (2 * num_samples)
        yield {name: value[row] for name, value in samples.items()}


def check_samples(samples: Mapping[str, Tensor], sites: list[Site] | None, dtype: torch.dtype | None) -> torch.Size:
    """The leading axes (K, S) of draws, ``{site: shape (K, S, *event)}``, after checks.

    `sites` and `dtype` are those of a :class:`BayesianModel`; for any other model pass None.
    """
    if not samples:
        raise ValueError("the chains in the file must have at least one latent variable, got none.")
    first = next(iter(samples.values()))
    lead = first.shape[:2]
    if len(lead) < 2 or not lead.numel():
        raise ValueError(f"the chains must have shape (K, S, ...) with K, S >= 1, got {_checks.shape(first)}.")
    kind = dtype if dtype is not None else first.dtype
    if not kind.is_floating_point:
        raise ValueError(f"the chains must be floating point, got {kind}.")
    for name, value in samples.items():
        check_tensor(f"`{name}` of the chains", value, (*lead, *value.shape[2:]), kind)
        check_finite(f"`{name}` of the chains", value)
    if sites is not None:
        require_no_more("the model", samples, [site.name for site in sites])
        for site in sites:
            if site.name not in samples:
                raise ValueError(f"the chains lack the latent variable `{site.name}`; pass the model of the chains.")
            value = samples[site.name]
            check_tensor(f"`{site.name}` of the chains", value, (*lead, *site.start.shape), value.dtype)
            support = site.prior.support
            while isinstance(support, constraints.independent):
                support = support.base_constraint
            if isinstance(support, BOUNDS) and not bool(support.check(value.to(site.start)).all()):
                raise ValueError(f"`{site.name}` of the chains must lie in {support}, got {float(value.min()):.4g}.")
    return lead
