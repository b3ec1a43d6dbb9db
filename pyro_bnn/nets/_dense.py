"""Fully connected networks."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from .._core import checks as _checks
from ._layers import MCDropout


def mlp(
    sizes: Sequence[int],
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
    first: Sequence[nn.Module] = (),
    dropout: float | None = None,
) -> nn.Sequential:
    """A fully connected network.

    Args:
        sizes: Number of inputs, number of units of each hidden layer, and number of outputs.
        activation: Function that makes the activation module after each hidden layer.
        first: Modules put before the first layer, such as `nn.Flatten()` or :class:`Standardize`.
        dropout: Probability of an :class:`MCDropout` after each activation; None for no dropout.

    Example:
        >>> [tuple(p.shape) for p in mlp([784, 400, 10]).parameters()]
        [(400, 784), (400,), (10, 400), (10,)]
    """
    sizes = _checks.items("sizes", sizes, "a list of whole numbers, such as [784, 400, 10]")
    if len(sizes) < 2:
        raise ValueError(f"`sizes` must name inputs and outputs at least, got {list(sizes)}.")
    first = checked_modules("first", first)
    if not callable(activation) or isinstance(activation, nn.Module):
        got = f"the module {activation}" if isinstance(activation, nn.Module) else _checks.described(activation)
        raise ValueError(f"`activation` must be a function that makes a module, such as nn.ReLU, got {got}.")
    _checks.kind("activation", activation(), nn.Module, "a function that makes a module, such as nn.ReLU")
    sizes = [_checks.at_least("sizes", size, 1) for size in sizes]
    for num_in, num_out in itertools.pairwise(sizes):
        _checks.in_memory("sizes", num_out, num_in * torch.get_default_dtype().itemsize, "choose fewer")
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        if layers:
            layers += [activation()] if dropout is None else [activation(), MCDropout(dropout)]
        layers.append(nn.Linear(num_in, num_out))
    return nn.Sequential(*first, *layers)


def checked_modules(name: str, values: object) -> list[nn.Module]:
    """The modules of a list."""
    example = "a list of modules, such as [nn.Flatten()]"
    found = _checks.items(name, values, example)
    for module in found:
        _checks.kind(name, module, nn.Module, example)
    return found
