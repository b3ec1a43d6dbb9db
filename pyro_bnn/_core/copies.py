"""Copies of modules, and modules that hold tensors under dotted names."""

import copy
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from .reflection import tensors_within
from .scope import EXCLUSIVE

M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """Copy a module deeply, including computed tensors such as the weights of `weight_norm`."""
    try:
        with EXCLUSIVE:  # a prediction in another thread may have put a draw into the module
            tensors = tensors_within([vars(part) for part in module.modules()])
            kept = {id(tensor): tensor.detach().clone() for tensor in tensors if tensor.grad_fn is not None}
            return copy.deepcopy(module, kept)
    except RuntimeError as error:
        if not str(error).startswith("Only Tensors created explicitly by the user"):
            raise
        raise ValueError(
            f"{type(module).__name__} must be a module that can be copied, but an object inside it keeps tensors that "
            "its last call computed; make that object keep `tensor.detach()`."
        ) from error


def tree(values: Mapping[str, Tensor]) -> nn.Module:
    """Return nested modules with copies of tensors: booleans become buffers, all others parameters."""
    root = nn.Module()
    for name, value in values.items():
        plant(root, name, value)
    return root


def plant(root: nn.Module, name: str, value: Tensor) -> None:
    """Add a copy of a tensor under a dotted name, as in :func:`tree`."""
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
            "neither an attribute of nn.Module nor the start of another site's name."
        ) from error
