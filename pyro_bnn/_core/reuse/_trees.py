"""Arguments and results of modules: tensors in tuples, lists and dictionaries."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)
"""Types of values without tensors inside."""


class OpaqueError(Exception):
    """Objects of other types may contain tensors that cannot be found."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a tree."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        yield value
    elif kind in (tuple, list):
        for part in value:
            yield from tensors_in(part)
    elif kind is dict:
        for part in value.values():
            yield from tensors_in(part)
    elif kind not in PLAIN:
        raise OpaqueError


def rebuilt(value: Any, replace: Callable[[Any], Any], kinds: tuple[type, ...]) -> Any:
    """A copy of a tree, with new containers, in which `replace` is applied to each leaf whose type is in `kinds`."""
    if isinstance(value, kinds):
        return replace(value)
    if type(value) in (tuple, list):
        return type(value)(rebuilt(part, replace, kinds) for part in value)
    if type(value) is dict:
        return {key: rebuilt(part, replace, kinds) for key, part in value.items()}
    return value


def described(value: Any) -> Any:
    """The tree with each tensor replaced by its shape, type and device, so that two calls can be compared."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if type(value) in (tuple, list):
        return [described(part) for part in value]
    return {key: described(part) for key, part in value.items()} if type(value) is dict else value
