"""The model and guides into which a posterior is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributions import constraints

from ..._core import checks as _checks
from ..._core.records import check_finite, check_tensor, require_no_more
from ..._core.reflection import unwrap_support
from ...modelling.model import BayesianModel
from ..joint import Site, find_sites

BOUNDS = (
    constraints.greater_than,
    constraints.greater_than_eq,
    constraints.less_than,
    constraints.interval,
    constraints.half_open_interval,
)
"""Kinds of supports for which loaded values are checked. Other supports, such as a simplex, are not checked, since
rounding can move values out of them."""


@dataclass
class Destination:
    """The model and guides into which a posterior is loaded.

    For a Pyro model of the user, `model` is None, and `own_sites` has the model's latent variables if they are known.
    """

    model: BayesianModel | None
    guides: Sequence[nn.Module] | None = None
    """Guides that receive the saved states, in this order; None to make them from the file."""
    pending: list[tuple[nn.Module, dict[str, Tensor]]] = field(default_factory=list)
    """Modules that will change if all checks pass, each with its new state."""
    own_sites: Sequence[Site] | None = None

    @property
    def sites(self) -> list[Site] | None:
        """The latent variables of the model; None without a model."""
        if self.own_sites is not None:
            return list(self.own_sites)
        return None if self.model is None else find_sites(self.model, (), {})

    @property
    def device(self) -> torch.device:
        """The device of the model, or the CPU without a model."""
        if self.own_sites:
            return self.own_sites[0].start.device
        return torch.device("cpu") if self.model is None else self.model.device

    @property
    def dtype(self) -> torch.dtype | None:
        """The floating-point type of the model; None without a model."""
        return None if self.model is None else self.model.dtype

    def model_for(self, what: str) -> BayesianModel:
        """Return the model; raise if none was given."""
        if self.model is None:
            raise ValueError(f"{what} needs its model; pass `model`.")
        return self.model

    def next_guide(self) -> nn.Module | None:
        """Return the guide that receives the next saved state; None if no guides were given."""
        if self.guides is None:
            return None
        if len(self.pending) == len(self.guides):
            raise ValueError(f"it holds more guides than `guide`, which has {len(self.guides)}; pass one for each.")
        return self.guides[len(self.pending)]

    def check_samples(self, samples: Mapping[str, Tensor]) -> torch.Size:
        """Check draws, ``{site: shape (K, S, *event)}``, and return their leading axes (K, S)."""
        if not samples:
            raise ValueError("the chains in the file must have at least one latent variable, got none.")
        first, sites = next(iter(samples.values())), self.sites
        lead, dtype = first.shape[:2], self.dtype or first.dtype
        if len(lead) < 2 or not lead.numel():
            raise ValueError(f"the chains must have shape (K, S, ...) with K, S >= 1, got {_checks.shape(first)}.")
        if not dtype.is_floating_point:
            raise ValueError(f"the chains must be floating point, got {dtype}.")
        for name, value in samples.items():
            check_tensor(f"`{name}` of the chains", value, (*lead, *value.shape[2:]), dtype)
            check_finite(f"`{name}` of the chains", value)
        if sites is None:
            return lead
        require_no_more("the model", samples, [site.name for site in sites])
        for site in sites:
            if site.name not in samples:
                raise ValueError(f"the chains lack the latent variable `{site.name}`; pass the model of the chains.")
            value, support = samples[site.name], unwrap_support(site.prior.support)
            check_tensor(f"`{site.name}` of the chains", value, (*lead, *site.start.shape), dtype)
            if isinstance(support, BOUNDS) and not bool(support.check(value.to(site.start)).all()):
                raise ValueError(f"`{site.name}` of the chains must lie in {support}, got {float(value.min()):.4g}.")
        return lead
