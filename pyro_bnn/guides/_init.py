"""First locations and scales of a guide."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _checks
from ..joint import Site
from ..scale_maps import Softplus


class Init(ABC):
    """Gives the first location and scale of each site, in unconstrained space."""

    @abstractmethod
    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        """First location and rho of a site, with scale = softplus(rho), both of the site's unconstrained shape."""


@dataclass(frozen=True)
class UniformInit(Init):
    """Uniform location and rho.

    Args:
        loc: Range of the location.
        rho: Range of rho; (-5, -4) means scales from 0.0067 to 0.018.
    """

    loc: tuple[float, float] = (-0.2, 0.2)
    rho: tuple[float, float] = (-5.0, -4.0)

    def __post_init__(self) -> None:
        for name, bounds in (("loc", self.loc), ("rho", self.rho)):
            found = _checks.items(name, bounds, "a range (low, high)")
            if len(found) != 2:
                raise ValueError(f"`{name}` must be a range (low, high) of two numbers, got {len(found)}.")
            low, high = (_checks.number(name, bound) for bound in found)
            if not low <= high:
                raise ValueError(f"`{name}` must be a range (low, high) with low <= high, got ({low}, {high}).")

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        """A uniform draw of the location and one of rho; see :meth:`Init.__call__`."""
        like = site.unconstrained_start
        return torch.empty_like(like).uniform_(*self.loc), torch.empty_like(like).uniform_(*self.rho)


@dataclass(frozen=True)
class NormalInit(Init):
    """Gaussian location and rho.

    Args:
        loc_scale: Standard deviation of the location around 0.
        rho: Mean of rho; -3 means a scale of 0.049.
        rho_scale: Standard deviation of rho.
    """

    loc_scale: float = 0.1
    rho: float = -3.0
    rho_scale: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("loc_scale", self.loc_scale), ("rho_scale", self.rho_scale)):
            _checks.not_negative(name, value)
        _checks.number("rho", self.rho)

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        """A Gaussian draw of the location and one of rho; see :meth:`Init.__call__`."""
        like = site.unconstrained_start
        return self.loc_scale * torch.randn_like(like), self.rho + self.rho_scale * torch.randn_like(like)


@dataclass(frozen=True)
class NetworkInit(Init):
    """Locations at the network's own weights, fresh or pretrained, and one scale for all.

    A latent variable that is not a weight starts at its prior's median, estimated from a few draws.

    Args:
        scale: First standard deviation of every weight, above 0.
        prior_fraction: Ratio, above 0, of the first standard deviation to that of the prior; it replaces `scale` where
            the prior's standard deviation is finite. None uses `scale` everywhere.
    """

    scale: float = 0.01
    prior_fraction: float | None = None

    def __post_init__(self) -> None:
        _checks.positive("scale", self.scale)
        if self.prior_fraction is not None:
            _checks.positive("prior_fraction", self.prior_fraction)

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        """The network's weights and a small scale; see :meth:`Init.__call__`."""
        loc = site.unconstrained_start.clone()
        scale = torch.full_like(loc, self.scale)
        if self.prior_fraction is not None and site.transform is None:
            scale = torch.where(site.prior.stddev.isfinite(), self.prior_fraction * site.prior.stddev, scale)
        return loc, Softplus().inverse(scale)
