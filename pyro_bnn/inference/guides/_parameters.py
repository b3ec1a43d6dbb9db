"""Parameters of a guide: they have the names of the sites, and lie one after the other in a vector during a fit."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ..joint import Layout


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
        """Make the parameters views of the vector; the values of a parameter that is not one are copied into it."""
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
