"""Nested modules with a tensor under each dotted name."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def tree(values: Mapping[str, Tensor]) -> nn.Module:
    """Nested modules with a copy of each tensor under its dotted name: a buffer if boolean, else a parameter."""
    root = nn.Module()
    for name, value in values.items():
        plant(root, name, value)
    return root


def plant(root: nn.Module, name: str, value: Tensor) -> None:
    """Add a copy of one tensor to nested modules; see :func:`tree`."""
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
