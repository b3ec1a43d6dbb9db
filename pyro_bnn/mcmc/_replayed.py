"""Functions recorded as operations that torch runs one after the other, without Python in between.

Small tensors take less time to compute than Python takes to ask for them. No compiler is needed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._kernel import ValueAndGrad
from ._traced import Traced, traced

MOST_OPERATIONS = 2000
"""Heuristic: a potential of more operations is not recorded, which takes about a millisecond for each."""

Flat = Callable[..., Sequence[Tensor]]
"""Function of tensors that returns tensors."""


def recorded(function: Flat, example: Sequence[Tensor]) -> Flat | None:
    """A recorded function of tensors of fixed shapes, without autograd; None if this torch cannot record it.

    `torch.jit.trace` would do the same, but torch keeps what that returns for ever.

    Args:
        function: Function that neither changes its arguments nor branches on their values. All tensors that it uses are
            arguments.
        example: Arguments to record it with; no two of them are the same tensor.
    """
    names = [f"argument_{number}" for number in range(len(example))]
    try:
        graph, _ = torch._C._create_graph_by_tracing(
            lambda *tensors: tuple(function(*tensors)), tuple(example), lambda _: "", True, False, None, names
        )
        run: Flat = torch._C._create_function_from_graph("recorded", graph)
    except (AttributeError, TypeError, RuntimeError):  # these functions of torch are not public
        return None
    return run


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two results of a function are equal but for rounding."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def graph_of(value_and_grad: ValueAndGrad, z: Tensor) -> Traced | None:
    """A potential and its gradient without autograd; None if it branches on values or has too many operations."""
    try:
        with _Counter() as counter:
            value_and_grad(z)
        return traced(value_and_grad, [z]) if counter.count <= MOST_OPERATIONS else None
    except Exception:  # called by itself, it will say so
        return None


def replayed(value_and_grad: ValueAndGrad, z: Tensor) -> ValueAndGrad:
    """A potential for points of the shape of z, replayed if it is on a CPU and can be recorded; else as it is."""
    found = None if z.device.type != "cpu" else graph_of(value_and_grad, z)
    run = None if found is None else recorded(found.graph, [z, *found.constants])
    if found is None or run is None:
        return value_and_grad

    def quick(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            potential, gradient = run(z.contiguous(), *found.constants)  # views were recorded for such a memory
        return potential, gradient

    return quick if all(map(agree, quick(z + 0.1), value_and_grad(z + 0.1))) else value_and_grad


class _Counter(TorchDispatchMode):
    """Counts the operations that are called in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
