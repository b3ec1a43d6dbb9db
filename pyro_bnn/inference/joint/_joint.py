"""The joint density of a model's data and latent variables, as a function of a flat vector."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core.scope import seeded
from ...modelling.model import BayesianModel
from ._coordinates import Layout
from ._densities import Density, density_of
from ._sites import Site, constrained, find_sites

CHUNK = 2**20
"""Heuristic: largest length of a piece on a CPU. One piece of each vector then fits in the cache."""


@dataclass(frozen=True)
class Piece:
    """A part of a flat vector whose numbers are evaluated together."""

    part: slice  # of the vector
    density: Density
    kind: Any  # label of the sites; see `Joint.pieces`


class Joint:
    r"""The joint density :math:`p(y \mid w)\, p(w)` of a :class:`~pyro_bnn.BayesianModel` with fixed priors.

    A flat vector holds the latent variables in unconstrained space, in the order in which the model draws them.
    """

    def __init__(self, model: BayesianModel, *, jacobian: bool = True) -> None:
        self.model = model
        with seeded(0, model.device):
            self.sites = find_sites(model, (), {})
            self.densities = {site.name: density_of(site, jacobian=jacobian) for site in self.sites}
        self.layout = Layout({site.name: site.unconstrained_start.shape for site in self.sites})

    def pieces(self, kind: Callable[[Site], Any] = lambda site: None, *, longest: int = CHUNK) -> list[Piece]:
        """Divide the vector into pieces with one prior density each.

        Neighbouring sites with equal densities and equal labels by `kind` share a piece. On a CPU, pieces longer than
        `longest` are cut.
        """
        runs: list[Piece] = []
        for site in self.sites:
            part, density, its_kind = self.layout.slices[site.name], self.densities[site.name], kind(site)
            last = runs[-1] if runs else None
            if last and density.key is not None and (density.key, its_kind) == (last.density.key, last.kind):
                runs[-1] = Piece(slice(last.part.start, part.stop), last.density, its_kind)
            elif part.stop > part.start:
                runs.append(Piece(part, density, its_kind))
        return [piece for run in runs for piece in _cut(run, self.model.device, longest)]

    def constrained(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the values of the sites, given their unconstrained values. The result is differentiable."""
        return constrained(self.sites, free)


def _cut(run: Piece, device: torch.device, longest: int) -> Iterable[Piece]:
    """On a CPU, cut a piece. One without a `key` stays whole, since its density may have parameters for each weight."""
    size = longest if device.type == "cpu" and run.density.key is not None else run.part.stop - run.part.start
    for start in range(run.part.start, run.part.stop, size):
        yield Piece(slice(start, min(start + size, run.part.stop)), run.density, run.kind)
