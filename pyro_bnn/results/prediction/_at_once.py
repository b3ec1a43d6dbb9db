"""Several draws of a small network in one run."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..._core.functional import BatchedNetwork, as_chain, call, ordinary_attention
from ..._core.inputs import Inputs
from ..._core.scope import filtered_warnings
from ..._core.tensors import tensors_within


def faster(
    net: nn.Module,
    example: Mapping[str, Tensor],
    x: Inputs,
    expected: Tensor,
    replayed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[BatchedNetwork, int] | None:
    """A function that runs a network for many weight draws at once, and the largest tensor's bytes per draw.

    The result is None if there is no function that gives the expected outputs, shape (K, N, ...), up to rounding, for
    the example: K draws of all random weights, by path. `replayed` makes the context of one run.
    """

    def vectorised(tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
        with ordinary_attention():
            return torch.func.vmap(lambda row: call(net, row, x))(dict(tensors))

    if expected.is_meta:  # there are no numbers to compare
        return None
    tolerance = torch.finfo(expected.dtype).eps ** 0.75 * _magnitudes(expected)
    with filtered_warnings("error", "There is a performance drop"):  # then vmap is a loop too
        for run in (as_chain(net, set(example), x), vectorised):
            if run is None:
                continue
            try:
                with replayed(), _Largest() as largest:
                    found = run(example, x)
            except (RuntimeError, ValueError, NotImplementedError, UserWarning):
                continue
            if found.shape == expected.shape and bool(((found - expected).abs() <= tolerance).all()):
                return run, largest.num_bytes // len(expected)
    return None


class _Largest(TorchDispatchMode):
    """Watches operations for the largest memory of a tensor that they make."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = (tensor.untyped_storage().nbytes() for tensor in tensors_within(result))
        self.num_bytes = max(self.num_bytes, *sizes, 0)
        return result


def _magnitudes(outputs: Tensor) -> Tensor:
    """How large each output is, at least the lower quartile of all, where differences of large terms may be small."""
    sizes = outputs.abs()
    quartile = sizes.flatten().kthvalue((sizes.numel() + 3) // 4).values  # not that of a mask such as -1e9
    return sizes.clamp(min=quartile)
