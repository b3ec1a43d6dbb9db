"""Prior densities of many points at once, one point per row: differentiable, and without branches on values."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from ...modelling.distributions import ScaleMixtureNormal
from ._densities import LOG_ROOT_TAU, elementwise_prior
from ._layout import Layout
from ._sites import Site


@dataclass(frozen=True)
class Group:
    """Sites on the real line whose elements have independent priors of one kind, as one density of some columns."""

    names: tuple[str, ...]
    columns: Tensor | None  # None means all columns
    log_density: Callable[[Tensor], Tensor]  # from shape (K, columns) to shape (K,)

    def log_prob(self, z: Tensor) -> Tensor:
        return self.log_density(z if self.columns is None else z[:, self.columns])


def groups_of(sites: Sequence[Site], layout: Layout, children: Collection[str]) -> Iterator[Group]:
    """Group the sites with fixed, elementwise priors of the common kinds; all other sites are left out.

    Args:
        sites: All sites.
        layout: Positions of the sites in a row.
        children: Names of the sites whose priors depend on other sites.
    """
    fixed = [site for site in sites if site.name not in children and not site.plates]
    bases: dict[str, Any] = {site.name: elementwise_prior(site) for site in fixed}
    for kind, density in _DENSITIES.items():
        chosen = [site for site in fixed if type(bases[site.name]) is kind]
        if not chosen:
            continue
        parts = [layout.slices[site.name] for site in chosen]
        columns = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        arguments = []
        for name in kind.arg_constraints:
            joined = torch.cat([getattr(bases[s.name], name).expand(s.start.shape).flatten() for s in chosen])
            arguments.append(joined[0] if bool((joined == joined[0]).all()) else joined)  # one number for all
        everything = len(columns) == layout.num_elements
        names = tuple(site.name for site in chosen)
        yield Group(names, None if everything else columns.to(chosen[0].start.device), density(*arguments))


def _normal_density(loc: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
    """The log-density of independent Gaussians, computed as one weighted sum of squares."""
    is_centred, root_precision = not bool(loc.any()), scale.reciprocal()
    log_constant = scale.log() + LOG_ROOT_TAU

    def log_density(z: Tensor) -> Tensor:
        scaled = (z if is_centred else z - loc) * root_precision
        return -0.5 * scaled.square().sum(-1) - log_constant.expand(z.shape[-1]).sum()

    return log_density


def _generic_density(kind: type) -> Callable[..., Callable[[Tensor], Tensor]]:
    def density(*arguments: Tensor) -> Callable[[Tensor], Tensor]:
        prior = kind(*arguments, validate_args=False)
        return lambda z: prior.log_prob(z).sum(-1)

    return density


_DENSITIES: dict[Any, Callable[..., Callable[[Tensor], Tensor]]] = {
    dist.Normal: _normal_density,
    dist.Laplace: _generic_density(dist.Laplace),
    ScaleMixtureNormal: _generic_density(ScaleMixtureNormal),
}
