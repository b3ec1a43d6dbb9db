r"""The Gaussians of a mean-field guide, one after the other in flat vectors.

With its gradients written out, a step over all weights is some twenty operations on long vectors, none of which
allocates: on a CPU, fresh memory often costs more than the arithmetic.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CHUNK = 2**20
"""Heuristic: elements worked on at once on a CPU, so that a chunk of every vector stays in the cache."""


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in a flat vector.

    Args:
        names: Of the tensors.
        shapes: Of the tensors.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """Numbers of elements."""
        return [shape.numel() for shape in self.shapes]

    def slices(self) -> dict[str, slice]:
        """The part of each tensor."""
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        return {name: slice(end - size, end) for name, size, end in zip(self.names, self.sizes, ends, strict=True)}

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of a flat vector, in their shapes."""
        pieces = flat.split(self.sizes)
        return {n: piece.view(shape) for n, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}


@contextmanager
def flattened(parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Within it, the parameters share one flat vector; afterwards, each has memory of its own again."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    try:
        for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.data = piece.view(parameter.shape)
        yield flat
    finally:
        for parameter in parameters:
            parameter.data = parameter.data.clone()


def leaves(views: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leaves of autograd that lie in given memory, and whose gradients are added up in given memory."""
    result = {name: view.detach().requires_grad_() for name, view in views.items()}
    for name, leaf in result.items():
        leaf.grad = gradients[name]
    return result
