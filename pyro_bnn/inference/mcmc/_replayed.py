"""Functions recorded as operations that torch runs one after the other, without Python in between.

Small tensors take less time to compute than Python takes to ask for them. No compiler is needed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._kernel import ValueAndGrad
from ._traced import Traced, UnsupportedError, traced, unsupported_if_it_fails

MOST_OPERATIONS = 2000
"""Heuristic: a potential of more operations is not recorded, which takes about a millisecond for each."""

Flat = Callable[..., Sequence[Tensor]]
"""Function of tensors that returns tensors."""


def recorded(function: Flat, example: Sequence[Tensor]) -> Flat:
    """A recorded function of tensors of fixed shapes, without autograd.

    `torch.jit.trace` would do the same, but torch keeps what that returns for ever.

    Args:
        function: Function that neither changes its arguments nor branches on their values. All tensors that it uses are
            arguments.
        example: Arguments to record it with; no two of them are the same tensor.

    Raises:
        UnsupportedError: If this torch cannot record it.
    """
    names = [f"argument_{number}" for number in range(len(example))]
    try:
        graph, _ = torch._C._create_graph_by_tracing(
            lambda *tensors: tuple(function(*tensors)), tuple(example), lambda _: "", True, False, None, names
        )
        run: Flat = torch._C._create_function_from_graph("recorded", graph)
    except (AttributeError, TypeError, RuntimeError) as error:  # these functions of torch are not public
        raise UnsupportedError(f"torch {torch.__version__} cannot record operations") from error
    return run


def agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether two results of a function are equal but for rounding."""
    return all(map(_is_close, found, expected))


def _is_close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def require_agreement(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise an `UnsupportedError` unless a record returns what the recorded function does."""
    if not agree(found, expected):
        raise UnsupportedError("a record of the density gives other numbers than the density")


def require_cpu(z: Tensor) -> None:
    """Raise an `UnsupportedError` unless a tensor is on a CPU: elsewhere it is not Python that takes the time."""
    if z.device.type != "cpu":
        raise UnsupportedError(f"records are replayed on a CPU, and the device is {z.device}")


def graph_of(value_and_grad: ValueAndGrad, z: Tensor) -> Traced:
    """A potential and its gradient without autograd.

    Raises:
        UnsupportedError: If it has too many operations or branches on values.
    """
    with unsupported_if_it_fails(), _Counter() as counter:
        value_and_grad(z)
    if counter.count > MOST_OPERATIONS:
        raise UnsupportedError(f"the density has {counter.count} operations, over {MOST_OPERATIONS}")
    return traced(value_and_grad, [z])


def replayed(value_and_grad: ValueAndGrad, z: Tensor) -> ValueAndGrad:
    """A potential for points of the shape of z, recorded.

    Raises:
        UnsupportedError: If it cannot be.
    """
    require_cpu(z)
    graph, constants = graph_of(value_and_grad, z)
    run = recorded(graph, [z, *constants])

    def quick(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            potential, gradient = run(z.contiguous(), *constants)  # views were recorded for such a memory
        return potential, gradient

    require_agreement(quick(z + 0.1), value_and_grad(z + 0.1))
    return quick


class _Counter(TorchDispatchMode):
    """Counts the operations that are called in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
