"""The joint density of a model's data and latent variables, over flat vectors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._reflection import tensors_of
from .._scope import seeded
from ..model import BayesianModel
from ._densities import Density, density_of
from ._layout import Layout
from ._sites import Site, find_sites

CHUNK = 2**20
"""Heuristic: elements worked on at once on a CPU, so that a chunk of every vector stays in the cache."""


@dataclass(frozen=True)
class Piece:
    """Consecutive numbers of a flat vector that are evaluated together.

    Args:
        part: Where they lie.
        density: Their prior's.
        kind: What a guide said of their sites.
    """

    part: slice
    density: Density
    kind: Any


class Joint:
    r"""The joint density :math:`p(y \mid w)\, p(w)` of a :class:`~pyro_bnn.BayesianModel` with fixed priors.

    The latent variables lie in a flat vector, in unconstrained space and in the order in which the model draws them.

    Args:
        model: The model.
        jacobian: See :class:`AnyDensity`.
    """

    def __init__(self, model: BayesianModel, *, jacobian: bool = True) -> None:
        self.model = model
        with seeded(0, model.device):
            self.sites = find_sites(model, (), {})
            self.densities = {site.name: density_of(site, jacobian=jacobian) for site in self.sites}
        self.layout = Layout({site.name: site.unconstrained_start.shape for site in self.sites})
        self._statements = model.sample_statements
        self._watched = [(tensor, tensor._version) for site in self.sites for tensor in tensors_of(site.prior)]

    def pieces(self, kind: Callable[[Site], Any] = lambda site: None) -> list[Piece]:
        """The priors of the whole vector: neighbours of one kind and density are joined, and long runs cut into chunks.

        Args:
            kind: What else must be equal for two sites to be evaluated together.
        """
        runs: list[Piece] = []
        for site in self.sites:
            part, density, its_kind = self.layout.slices[site.name], self.densities[site.name], kind(site)
            last = runs[-1] if runs else None
            if last and density.key is not None and (density.key, its_kind) == (last.density.key, last.kind):
                runs[-1] = Piece(slice(last.part.start, part.stop), last.density, its_kind)
            elif part.stop > part.start:
                runs.append(Piece(part, density, its_kind))
        return [piece for run in runs for piece in _cut(run, self.model.device)]

    def constrained(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values of the sites from unconstrained ones, differentiable."""
        pairs = ((site, free[site.name]) for site in self.sites)
        return {site.name: value if site.transform is None else site.transform(value) for site, value in pairs}

    def log_likelihood(self, values: Mapping[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        """See :meth:`BayesianModel.log_likelihood`."""
        return self.model.log_likelihood(values, *batch)

    def require_same_priors(self) -> None:
        """Raise a `ValueError` if a prior of the model is not any more what it was when this was made."""
        now, before = self.model.sample_statements, self._statements
        is_same = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        if not is_same or any(tensor._version != version for tensor, version in self._watched):
            raise ValueError("a prior was changed during the fit; make a fit for each, one after the other.")


def _cut(run: Piece, device: torch.device) -> Iterable[Piece]:
    """Chunks of a long run; a density without a key has one number for each weight, and stays whole."""
    size = CHUNK if device.type == "cpu" and run.density.key is not None else run.part.stop - run.part.start
    for start in range(run.part.start, run.part.stop, size):
        yield Piece(slice(start, min(start + size, run.part.stop)), run.density, run.kind)
