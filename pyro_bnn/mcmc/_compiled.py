"""Functions of tensors, compiled for fixed shapes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import make_fx


def compiled(function: Callable[..., Any], example: Sequence[Tensor]) -> Callable[..., Any]:
    """A function compiled for the shapes of example arguments.

    It is first unrolled into plain tensor operations, gradients included, so that the compiler sees neither Pyro nor
    autograd; it must not branch on values.

    Args:
        function: From tensors to a tuple of tensors.
        example: Its arguments.

    Raises:
        RuntimeError: If compilation fails, as it does without a C++ compiler.
    """
    example = [tensor.clone() for tensor in example]  # a tensor that is there twice would count as one argument
    validates = Distribution._validate_args
    try:
        graph = make_fx(lambda *tensors: function(*tensors))(*example)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        result = torch.compile(graph, fullgraph=True)
        result(*example)
    except Exception as error:  # the compiler's errors have no common class
        raise RuntimeError(
            f"torch.compile failed ({type(error).__name__}: {error}); it needs a C++ compiler, and densities without "
            "branches. Use `compile=False`."
        ) from error
    finally:
        Distribution.set_default_validate_args(validates)  # which the compiler turns off for good
    return result
