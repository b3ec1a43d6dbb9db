"""Copies of modules that keep tensors of their last call."""

import copy
from typing import TypeVar

from torch import nn

from .scope import EXCLUSIVE
from .tensors import tensors_within

M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """A deep copy of a module, even if it keeps tensors of its last call.

    Layers with `torch.nn.utils.weight_norm` or `torch.nn.utils.prune` keep the weight that they computed, and some
    networks keep their attention or their output. torch does not copy such tensors, because they have a gradient
    function. Here the copy gets their values.
    """
    try:
        with EXCLUSIVE:  # a prediction in another thread may have put a draw into the module
            tensors = tensors_within([vars(part) for part in module.modules()])
            kept = {id(tensor): tensor.detach().clone() for tensor in tensors if tensor.grad_fn is not None}
            return copy.deepcopy(module, kept)
    except RuntimeError as error:
        if not str(error).startswith("Only Tensors created explicitly by the user"):
            raise
        raise ValueError(
            f"{type(module).__name__} must be a module that can be copied, but it keeps tensors of its last call in an "
            "object of its own; make it keep `tensor.detach()`."
        ) from error
