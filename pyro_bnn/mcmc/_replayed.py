"""Functions recorded as operations that torch runs one after the other, without Python in between.

Small tensors take less time to compute than Python takes to ask for them. No compiler is needed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

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
