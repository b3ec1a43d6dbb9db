"""Parameters of a guide, which have the names of the sites, and their vectors and gradients during a step."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ..joint import Joint, Layout, Site

LARGE = 2**16
"""Heuristic: number of elements from which on a site has a tensor of its own on a CPU."""


def tree(values: Mapping[str, Tensor]) -> nn.Module:
    """Nested modules with one parameter per dotted name, a copy; a boolean tensor becomes a buffer instead."""
    root = nn.Module()
    for name, value in values.items():
        plant(root, name, value)
    return root


def plant(root: nn.Module, name: str, value: Tensor) -> None:
    """Add a copy of one tensor to such a tree."""
    *path, leaf = name.split(".")
    module = root
    try:
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        value = value.detach().clone()
        if value.dtype == torch.bool:
            module.register_buffer(leaf, value)
        else:
            module.register_parameter(leaf, nn.Parameter(value))
    except KeyError as error:
        raise ValueError(
            f"cannot name a parameter after the site `{name}` ({error.args[0]}); rename the site: its name must be "
            "neither an attribute of nn.Module nor the beginning of another site's name."
        ) from error


class ParameterVector:
    """Parameters of a tree, one after the other in a vector, until :meth:`close` gives each its own memory again.

    A step over all weights is then some fifteen operations on long vectors, and none of these allocates memory: on a
    CPU, new memory often costs more time than the arithmetic. The vector lies in `memory`, if that is given.
    """

    def __init__(self, tree: nn.Module, names: Iterable[str], memory: Tensor | None = None) -> None:
        places = [name.rpartition(".") for name in names]
        self._owners = [(tree.get_submodule(path), leaf) for path, _, leaf in places]
        self._formats = [torch.empty_like(parameter, device="meta") for parameter in self.parameters]
        self._layout = Layout({str(index): parameter.shape for index, parameter in enumerate(self.parameters)})
        self.value = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters], out=memory)
        self._views = list(self._layout.views(self.value).values())
        self._gradients: list[Tensor] = []
        self.link()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the guide has at present."""
        found = (owner._parameters[leaf] for owner, leaf in self._owners)  # `get_parameter` takes ten times as long
        return [parameter for parameter in found if parameter is not None]

    @torch.no_grad()
    def link(self) -> None:
        """Make the parameters views of the vector; values of a parameter that was no view are copied into it."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                if (parameter.dtype, parameter.device) != (view.dtype, view.device):
                    raise ValueError(
                        f"parameters of the guide were moved from {view.dtype} on {view.device} to {parameter.dtype} "
                        f"on {parameter.device} in the context of a step; leave the context first, and open a new one."
                    )
                view.copy_(parameter)
                parameter.data = view

    def set_gradient(self, gradient: Tensor) -> None:
        """Set the vector, shape (P,), that holds the gradients of all parameters."""
        self._gradients = list(self._layout.views(gradient).values())

    def give_gradients(self) -> None:
        """Set the `grad` of each parameter to its part of that vector, if there is one."""
        if self._gradients:
            self.give_once(self._gradients)

    def give_once(self, gradients: Iterable[Tensor]) -> None:
        """Set the `grad` of each parameter to a tensor of its shape that belongs to this step alone."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None

    def copy_gradients(self) -> None:
        """Give the gradients memory of their own."""
        self._gradients = []
        for parameter in self.parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()

    def close(self) -> None:
        """Give every parameter memory of its own, in the memory format that it had."""
        for parameter, view, example in zip(self.parameters, self._views, self._formats, strict=True):
            if parameter.data_ptr() == view.data_ptr():
                parameter.data = torch.empty_like(example, device=view.device).copy_(view)
        self._views, self.value = [], self.value.new_empty(0)  # the memory is free for the next vector's parameters


class DrawGradients:
    """Gradients of minus the log-likelihood in a draw: large sites have tensors of their own, the others a vector.

    The backward pass adds what it computes to a vector: that takes memory for both, and the time of a sum. A tensor of
    a site's own is the one that the backward pass made. Small sites are worth a vector, since they are updated
    together. On a GPU each operation costs time, so there only sites of at least `large_on_gpu` elements have their own
    tensor, and with None no site has.
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
