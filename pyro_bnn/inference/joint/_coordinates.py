"""Converts latent variables to flat vectors in unconstrained space, and back."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.reflection import unvalidated
from ._sites import Site, constrained

Draw = dict[str, Tensor]
"""One draw: the value of each latent variable, by the name of its site."""


class Layout:
    """Joins named tensors in a vector of P numbers: each tensor has its slice, and the slices are in order."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self._sizes = [shape.numel() for shape in self.shapes.values()]
        ends = itertools.accumulate(self._sizes)
        parts = zip(self.shapes, self._sizes, ends, strict=True)
        self.slices = {name: slice(end - size, end) for name, size, end in parts}
        self.num_elements = sum(self._sizes)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors in a vector of shape (..., P) as views, ``{name: shape (..., *shape)}``."""
        lead, pieces = vector.shape[:-1], vector.split(self._sizes, -1)
        return {n: piece.view(lead + shape) for (n, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:
        """Join the tensors in a new vector of shape (..., P): the inverse of :meth:`views`."""
        parts = []
        for name, shape in self.shapes.items():
            value = values[name]
            parts.append(value.reshape(*value.shape[: value.dim() - len(shape)], -1))
        return torch.cat(parts, -1)


class Coordinates:
    """The map between values of all latent variables and unconstrained vectors z, shape (K, P)."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites = [replace(site, prior=unvalidated(site.prior)) for site in sites]
        starts = {site.name: site.unconstrained_start for site in sites}
        self.layout = Layout({name: start.shape for name, start in starts.items()})
        self.start = self.layout.pack(starts)
        """The initial values of all sites in unconstrained space, shape (P,), such as a network's own weights."""
        self.like = self.start[:0]  # an empty tensor with the right device and dtype

    @property
    def num_dimensions(self) -> int:
        """The length P of a flat vector."""
        return self.layout.num_elements

    def constrain(self, z: Tensor) -> Draw:
        """Return the values of the sites at z, ``{site: shape (K, *event)}``."""
        return constrained(self.sites, self.layout.views(z))

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return z, shape (K, P), for values of the sites: the inverse of :meth:`constrain`."""
        parts = []
        for site in self.sites:
            got = values.get(site.name)
            if got is None or got.shape[1:] != site.start.shape:
                raise ValueError(
                    f"the start is from another model: `{site.name}` must have a value of shape "
                    f"{_checks.shape(site.start)}, got {'none' if got is None else _checks.shape(got[0])}."
                )
            value = got.to(self.like)
            value = value if site.transform is None else site.transform.inv(value)
            parts.append(value.reshape(len(value), -1))
        return torch.cat(parts, 1)
