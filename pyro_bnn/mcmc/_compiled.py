"""Functions of tensors, compiled for fixed shapes."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function: Callable[..., Any], example: Sequence[Tensor]) -> Callable[..., Any]:
    """A function recorded as plain tensor operations, so that a compiler sees neither Pyro nor autograd.

    Args:
        function: Function of tensors that returns tensors and does not branch on values.
        example: Arguments to record it with.

    Raises:
        RuntimeError: If it branches on a value.
    """
    with _explained():
        graph = make_fx(lambda *tensors: function(*tensors))(*example)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return graph


def compiler_loop() -> Callable[..., Any]:
    """A loop that can be compiled, ``loop(goes_on, step, state)``. Imported when needed: torch calls it a prototype."""
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop


def compiled(function: Callable[..., Any], example: Sequence[Any], *, loops: bool = False) -> Callable[..., Any]:
    """A function compiled for the shapes of example arguments.

    Args:
        function: Function to compile; it must consist of tensor operations and of :func:`traced` functions.
        example: Arguments of the shapes to compile for.
        loops: Whether its time goes into a loop on a CPU, which is then compiled to run without Python in between.

    Raises:
        RuntimeError: If compilation fails, as it does without a C++ compiler.
    """

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    from torch._dynamo.eval_frame import remove_from_cache  # imported when needed: it takes a second

    code = call.__code__ = call.__code__.replace()  # a copy: the compiler makes only so many versions of one code
    with _explained():
        result = torch.compile(call, fullgraph=True, dynamic=False, options={"cpp_wrapper": True} if loops else None)
        result(*example)
    # What the compiler has made refers to the code and is kept as long as the code: 3 MB for each sampler, for ever.
    weakref.finalize(result, remove_from_cache, code).atexit = False
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
        Distribution.set_default_validate_args(validates)  # the compiler turns it off and leaves it so
