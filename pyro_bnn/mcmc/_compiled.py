"""Functions of tensors, compiled for fixed shapes: once in a process, however often they are asked for."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from .._scope import ProcessLock

NUM_KEPT = 32
"""Number of compiled functions that are kept; those used last. Each takes some megabytes."""

_LOCK = ProcessLock()
kept: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()


def loop_operation() -> Callable[..., Any]:
    """A loop that can be compiled, ``loop(goes_on, step, state, fixed)``; ``goes_on(*state, *fixed)``, so does `step`.

    It sees only its arguments. Imported when needed: torch calls it a prototype.
    """
    from torch._higher_order_ops.while_loop import while_loop_op

    return while_loop_op


def compiled(function: Callable[..., Any], example: Sequence[Tensor], *, loops: bool = False) -> Callable[..., Any]:
    """A function compiled for the shapes, strides and types of example arguments, which are not checked again.

    It is recorded each time, which is quick. The text of what was recorded says all that the compiled function depends
    on, but for its arguments. Functions with one text are compiled once.

    Args:
        function: Function to compile, made of tensor operations; all tensors that it uses are arguments. It does not
            branch on values.
        example: Arguments of the shapes to compile for; no two of them are the same tensor.
        loops: Whether its time goes into a loop on a CPU, which is then compiled to run without Python in between.

    Raises:
        RuntimeError: If it cannot be recorded, or compilation fails, as it does without a C++ compiler.
    """
    with explained(), _LOCK:
        graph = make_fx(lambda *tensors: function(*tensors), tracing_mode="fake")(*example)
        key = key_of(graph, example, loops)
        result = kept.pop(key, None) or _compile(graph, example, loops)
        kept[key] = result
        while len(kept) > NUM_KEPT:
            kept.popitem(last=False)
    return result


def key_of(graph: GraphModule, example: Sequence[Tensor], loops: bool) -> Hashable:
    """What a compiled function depends on: equal for two graphs only if one function serves both.

    Numbers are in the text of a graph. Tensors are not, so a graph must have no tensors of its own.
    """
    modules = [module for module in graph.modules() if isinstance(module, GraphModule)]
    for module in modules:
        own = [
            n.target for n in module.graph.nodes if n.op == "get_attr" and isinstance(getattr(module, n.target), Tensor)
        ]
        if own:
            raise ValueError(f"a compiled function must get all tensors as arguments, but it has some itself: {own}.")
    kinds = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in example]
    return (*(module.code for module in modules), *kinds, loops, torch.get_num_threads())


def _compile(graph: GraphModule, example: Sequence[Tensor], loops: bool) -> Callable[..., Any]:
    from torch import _inductor  # imported when needed: it takes a second

    options: dict[str, Any] = {}
    if loops:
        # Kernels and what calls them are compiled apart, side by side, the latter with less optimisation. Headers are
        # not compiled beforehand, which would take longer than it saves unless one compiles many functions.
        options = {"cpp_wrapper": True, "cpp_wrapper_build_separate": True, "cpp_cache_precompile_headers": False}
        # The compiler would compile and load a test program for each instruction set, ten seconds in all.
        options["cpp.vec_isa_ok"] = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
        known = set(_inductor.list_options())
        options = {name: value for name, value in options.items() if name in known}
    with _without_collections():
        result: Callable[..., Any] = _inductor.compile(graph, list(example), options=options)
        result(*example)
    return result


@contextmanager
def _without_collections() -> Iterator[None]:
    """A context without garbage collections, which find little among a compiler's objects: a tenth less time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def explained() -> Iterator[None]:
    """A context whose errors say what the compiler needs."""
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
