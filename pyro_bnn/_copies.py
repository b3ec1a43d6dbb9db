"""Copies of modules as they are after a call, when some hold tensors of that call."""

import copy
from collections.abc import Iterator, Mapping
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """A deep copy of a module, also of one that keeps tensors of its last call.

    Layers with `torch.nn.utils.weight_norm` or `torch.nn.utils.prune` keep the weight that they computed, and some
    networks keep their attention or their output. torch refuses to copy such tensors, because they have a history; here
    the copy gets their values.

    Raises:
        ValueError: If such a tensor is inside an object of another class, where it cannot be found.
    """
    parts = (value for part in module.modules() for value in vars(part).values())
    kept = {id(tensor): tensor.detach().clone() for value in parts for tensor in _with_history(value)}
    try:
        return copy.deepcopy(module, kept)
    except RuntimeError as error:
        if not str(error).startswith("Only Tensors created explicitly by the user"):
            raise
        raise ValueError(
            f"{type(module).__name__} must be a module that can be copied, but it keeps tensors of its last call in an "
            "object of its own; make it keep `tensor.detach()`."
        ) from error


def _with_history(value: object) -> Iterator[Tensor]:
    """The tensors with a history in a value, and in lists, tuples and dictionaries at any depth."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _with_history(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _with_history(part)
