"""Gradients in a draw, for families of guides that update one vector of them."""

from bisect import bisect_right
from collections.abc import Iterator

import torch
from torch import Tensor

from ..joint import Joint, Layout, Site

LARGE = 2**16
"""Heuristic: number of elements from which on a site has a tensor of its own on a CPU."""


class DrawGradients:
    """Gradients of minus the log-likelihood in a draw: large sites have tensors of their own, the others a vector.

    The backward pass adds what it computes to a vector: that takes memory for both, and the time of a sum. A tensor of
    a site's own is the one that the backward pass made. Small sites are worth a vector, since they are updated
    together. On a GPU, where each operation has its price, sites have one from `large_on_gpu` elements on, if that is
    not None.
    """

    def __init__(self, joint: Joint, like: Tensor, *, large_on_gpu: int | None) -> None:
        self._layout, shapes = joint.layout, joint.layout.shapes
        large = LARGE if like.device.type == "cpu" else large_on_gpu
        self._large = {name for name, shape in shapes.items() if large is not None and shape.numel() >= large}
        small = Layout({name: shape for name, shape in shapes.items() if name not in self._large})
        self._joined = like.new_zeros(small.num_elements)
        self._views = small.views(self._joined) if small.shapes else {}
        self._runs: list[tuple[int, str | None, int]] = []  # begin of a run, its site if large, and begin in its tensor
        for name, part in joint.layout.slices.items():
            if name in self._large:
                self._runs.append((part.start, name, 0))
            elif not self._runs or self._runs[-1][1] is not None:
                self._runs.append((part.start, None, small.slices[name].start))
        self._begins = [begin for begin, _, _ in self._runs]
        self._leaves: dict[str, Tensor] = {}
        self._own: dict[str, Tensor] = {}

    def label(self, site: Site) -> str | None:
        """Label of a site for :meth:`Joint.pieces`, with which a piece lies in one tensor."""
        return site.name if site.name in self._large else None

    def leaves(self, vector: Tensor) -> dict[str, Tensor]:
        """New leaves of autograd, one per site, that are views of `vector`; all gradients begin at zero."""
        self._own.clear()
        self._joined.zero_()
        self._leaves = {name: view.detach().requires_grad_() for name, view in self._layout.views(vector).items()}
        for name, view in self._views.items():
            self._leaves[name].grad = view
        return dict(self._leaves)

    def take(self) -> None:
        """Take over what the backward pass has computed for the last leaves."""
        for name, leaf in self._leaves.items():
            if name in self._large:
                gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                self._own[name] = (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
        self._leaves = {}

    @property
    def tensors(self) -> list[Tensor]:
        """All gradients, as few long vectors; valid after :meth:`take`."""
        return [*self._own.values(), *([self._joined] if len(self._joined) else [])]

    def by_site(self) -> Iterator[Tensor]:
        """The gradient of each site, in its shape and without a copy; valid after :meth:`take`."""
        for name, shape in self._layout.shapes.items():
            yield self._own[name].view(shape) if name in self._large else self._views[name]

    def of(self, part: slice) -> Tensor:
        """The gradients in a part of the vector of all values, which must be in one piece; valid after :meth:`take`."""
        begin, name, offset = self._runs[bisect_right(self._begins, part.start) - 1]
        tensor = self._joined if name is None else self._own[name]
        return tensor[part.start - begin + offset : part.stop - begin + offset]
