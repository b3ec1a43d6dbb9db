"""Potentials recorded as a list of torch operations, which run without Python and autograd.

For small tensors, Python and autograd take more time than the operations. Recording needs no compiler. A leapfrog step
of NUTS with 61, 481 and 1021 weights (100 rows, one thread) takes 175, 237 and 254 microseconds instead of 425, 593 and
558 for one chain, and 268, 418 and 512 instead of 605, 780 and 949 for four chains.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._kernel import Kernel, ValueAndGrad
from ._traced import UnsupportedError, traced, unsupported_if_it_fails

MOST_OPERATIONS = 2000
"""Heuristic: a potential with more operations is not recorded. Recording takes about a millisecond for each."""


class TorchKernel(Kernel):
    """A kernel in torch, with a recorded potential if possible; `not_in_c` is the reason why it does not draw in C."""

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, not_in_c: str) -> None:
        try:
            value_and_grad, path = replayed(value_and_grad, z), f"replayed: {not_in_c}"
        except UnsupportedError as error:
            path = f"eager: {not_in_c}, and {error}"
        super().__init__(value_and_grad, z)
        self.path = path


def replayed(value_and_grad: ValueAndGrad, z: Tensor) -> ValueAndGrad:
    """The potential recorded for points of z's shape.

    Raises:
        UnsupportedError: If it cannot be recorded.
    """
    if z.device.type != "cpu":  # on other devices Python takes little of the time
        raise UnsupportedError(f"records are replayed on a CPU, and the device is {z.device}")
    with unsupported_if_it_fails(), _Counter() as counter:
        value_and_grad(z)
    if counter.count > MOST_OPERATIONS:
        raise UnsupportedError(f"the density has {counter.count} operations, over {MOST_OPERATIONS}")
    graph, constants = traced(value_and_grad, [z])
    names = [f"argument_{number}" for number in range(1 + len(constants))]
    try:  # as in `torch.jit.trace`, whose results torch never frees; these functions are not public
        record, _ = torch._C._create_graph_by_tracing(
            lambda *tensors: tuple(graph(*tensors)), (z, *constants), lambda _: "", True, False, None, names
        )
        run = torch._C._create_function_from_graph("recorded", record)
    except (AttributeError, TypeError, RuntimeError) as error:
        raise UnsupportedError(f"torch {torch.__version__} cannot record operations") from error

    def quick(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            potential, gradient = run(z.contiguous(), *constants)  # views were recorded for contiguous memory
        return potential, gradient

    tolerance = torch.finfo(z.dtype).eps ** 0.5
    for found, expected in zip(quick(z + 0.1), value_and_grad(z + 0.1), strict=True):
        if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise UnsupportedError("a record of the density gives other numbers than the density")
    return quick


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
