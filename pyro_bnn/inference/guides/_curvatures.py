"""Second derivatives of the loss in the latent variables of a likelihood, such as a noise scale."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..joint import Joint

MOST = 16
"""Heuristic: numbers in a latent variable up to which second derivatives are computed, each by a pass of its own."""


class Curvature:
    """Second derivatives of the loss in each number of one latent variable, at fixed outputs of the network."""

    def __init__(self, name: str, part: slice) -> None:
        self.name, self.part = name, part
        self._leaf: Tensor | None = None
        self._sum = self._excess = torch.empty(0)

    def begin(self, leaves: Mapping[str, Tensor]) -> None:
        """Begin a draw with these unconstrained values of all sites, from which the loss will be computed."""
        self._leaf = leaves[self.name]
        self._sum = torch.zeros_like(self._leaf).reshape(-1)

    def add(self, loss: Tensor) -> None:
        """Add the second derivatives of a loss, whose graph is kept for the backward pass."""
        assert self._leaf is not None
        (slopes,) = torch.autograd.grad(loss, self._leaf, create_graph=True, allow_unused=True)
        if slopes is None or not slopes.requires_grad:
            return
        for index, slope in enumerate(slopes.reshape(-1)):
            (row,) = torch.autograd.grad(slope, self._leaf, retain_graph=True, allow_unused=True)
            if row is not None:
                self._sum[index] += row.reshape(-1)[index]

    def end(self, deviations: Tensor, gradients: Tensor, precisions: Tensor) -> None:
        """End a draw, given its deviations from the means, the gradients of the loss, and the guide's precisions S."""
        self._leaf = None
        self._excess = self._sum / precisions - deviations * gradients

    def add_to(self, products: Tensor, part: slice) -> None:
        r"""Turn products :math:`g\,(w - m)` in a part of all values into second derivatives divided by S."""
        begin, end = max(self.part.start, part.start), min(self.part.stop, part.stop)
        if begin < end:
            own = self._excess[begin - self.part.start : end - self.part.start]
            products[begin - part.start : end - part.start].add_(own)


def curvatures(joint: Joint) -> list[Curvature]:
    """One for each latent variable that the network does not have, but for large ones."""
    of_network, shapes = {*joint.model.site_names}, joint.layout.shapes
    return [
        Curvature(name, part)
        for name, part in joint.layout.slices.items()
        if name not in of_network and shapes[name].numel() <= MOST
    ]
