"""Positions of variables in a flat vector."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Layout:
    """Positions of tensors with given names and shapes, one after the other in a vector of P numbers.

    Args:
        shapes: The shape of each variable, in order.
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self._sizes = [shape.numel() for shape in self.shapes.values()]
        self.slices: dict[str, slice] = {}
        end = 0
        for name, size in zip(self.shapes, self._sizes, strict=True):
            self.slices[name] = slice(end, end + size)
            end += size
        self.num_elements = end

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector of shape (..., P), without a copy: ``{name: shape (..., *shape)}``."""
        lead, pieces = vector.shape[:-1], vector.split(self._sizes, -1)
        return {n: piece.view(lead + shape) for (n, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:
        """A new vector of shape (..., P) from the parts: the inverse of :meth:`views`."""
        parts = []
        for name, shape in self.shapes.items():
            value = values[name]
            parts.append(value.reshape(*value.shape[: value.dim() - len(shape)], -1))
        return torch.cat(parts, -1)
