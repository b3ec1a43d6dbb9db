"""Functions of tensors, compiled for fixed shapes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function: Callable[..., Any], example: Sequence[Tensor]) -> Callable[..., Any]:
    """A function as plain tensor operations, gradients included: a compiler sees neither Pyro nor autograd.

    Args:
        function: From tensors to tensors; it must not branch on values.
        example: Its arguments.

    Raises:
        RuntimeError: If it does branch.
    """
    with _explained():
        graph = make_fx(lambda *tensors: function(*tensors))(*example)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return graph


def compiler_loop() -> Callable[..., Any]:
    """A loop that can be compiled: ``loop(goes_on, step, state)``. A prototype of torch's, so imported when needed."""
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop


def compiled(function: Callable[..., Any], example: Sequence[Any], *, loops: bool = False) -> Callable[..., Any]:
    """A function compiled for the shapes of example arguments.

    Args:
        function: What to compile; all that it calls is made of tensor operations or :func:`traced`.
        example: Its arguments.
        loops: Whether it spends its time in a loop on a CPU, whose steps then go without Python between them.

    Raises:
        RuntimeError: If compilation fails, as it does without a C++ compiler.
    """

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__code__ = call.__code__.replace()  # a copy: the compiler counts the versions of one code, up to a limit
    with _explained():
        result = torch.compile(call, fullgraph=True, dynamic=False, options={"cpp_wrapper": True} if loops else None)
        result(*example)
    return result


@contextmanager
def _explained() -> Iterator[None]:
    validates = Distribution._validate_args
    try:
        yield
    except Exception as error:  # the compiler's errors have no common class
        raise RuntimeError(
            f"torch.compile failed ({type(error).__name__}: {error}); it needs a C++ compiler, and densities without "
            "branches. Use `compile=False`."
        ) from error
    finally:
        Distribution.set_default_validate_args(validates)  # which the compiler turns off for good
