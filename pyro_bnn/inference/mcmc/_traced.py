"""Records functions as graphs of tensor operations; constant tensors become additional arguments of the graphs.

A sampler in torch repeats only the recorded operations of the potential. This saves the Python code of the model, of
Pyro and of autograd, which on small tensors takes longer than the operations. Recording needs no compiler. For networks
of 61 to 1021 weights and 100 rows of data, a leapfrog step of NUTS then takes 0.40 to 0.54 times as long.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from ..._core.functional import ordinary_attention
from ._kernel import Kernel, ValueAndGrad

MOST_OPERATIONS = 2000  # heuristic: largest number of operations in a record; each takes about a millisecond to record


class UnsupportedError(Exception):
    """Raised if a density cannot be recorded or written in C. The message is a clause."""


class CompilerError(UnsupportedError):
    """Raised if the C compiler is missing, fails or takes too long, which the user can change."""


@contextmanager
def unsupported_if_it_fails() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a user's model raises
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(f"the density cannot be recorded ({type(error).__name__}: {reason})") from error


class Traced(NamedTuple):
    """A recorded function, and its constants, such as data. The code of a graph does not contain the constants."""

    graph: GraphModule  # called with the arguments, then the constants
    constants: list[Tensor]  # no two of them share memory


def traced(
    function: Callable[..., Any],
    example: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Traced:
    """Record a function as plain tensor operations; what depends only on constants is computed once."""
    with unsupported_if_it_fails(), ordinary_attention():
        graph = make_fx(lambda *tensors: function(*tensors), decomposition_table=decompositions)(*example)
    graph.graph.eliminate_dead_code()
    constants = _lift(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Traced(graph, constants)


def _lift(graph: GraphModule) -> list[Tensor]:
    """Turn the constants of a graph into its last arguments, and return the constants."""
    values = _constant_values(graph)
    own: dict[Node, Tensor] = {}  # constants with memory of their own
    memories: set[int] = set()
    for node, value in values.items():
        if isinstance(value, Tensor) and (memory := value.untyped_storage().data_ptr()) not in memories:
            memories.add(memory)
            own[node] = value
        elif node.op == "get_attr":
            own[node] = value.clone()
    kept: set[Node] = set()  # views of constants, which stay in the graph
    for node in reversed(values):
        if node not in own and any(user not in values or user in kept for user in node.users):
            kept.add(node)
    lifted = [node for node in own if any(user not in values or user in kept for user in node.users)]
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for number, node in enumerate(lifted):
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"constant_{number}")
        node.replace_all_uses_with(last)
    return [own[node] for node in lifted]


def _constant_values(graph: GraphModule) -> dict[Node, Any]:
    """Return the values of all nodes that do not depend on the graph's arguments."""
    values: dict[Node, Any] = {}
    first: dict[int, Node] = {}  # by `id`: a tensor that was used several times is one constant
    is_pure = not any(node.op == "call_function" and node.is_impure() for node in graph.graph.nodes)
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            value = getattr(graph, str(node.target))
            if id(value) in first:
                node.replace_all_uses_with(first[id(value)])
                continue
            first[id(value)] = node
            values[node] = value
        elif node.op == "call_function" and is_pure and _is_constant(node, values):
            arguments, keywords = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*arguments, **keywords)
    return values


def _is_constant(node: Node, values: dict[Node, Any]) -> bool:
    """Whether all inputs of a node are constant; False for a node without inputs, which may draw random numbers."""
    return bool(node.all_input_nodes) and all(source in values for source in node.all_input_nodes)


class TorchKernel(Kernel):
    """A kernel in torch. The potential is computed in C if `not_in_c` is empty; else it is recorded if possible."""

    fields: tuple[str, ...] = ()
    """Names of the state's entries. The attribute for each entry has an underscore, such as ``_z`` for ``"z"``."""

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, not_in_c: str) -> None:
        path = "C"
        if not_in_c:
            try:
                value_and_grad, path = replayed(value_and_grad, z), f"replayed: {not_in_c}"
            except UnsupportedError as error:
                path = f"eager: {not_in_c}, and {error}"
        super().__init__(value_and_grad, z)
        self.path = path

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}") for name in self.fields}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in self.fields:
            self.require_own(state, name)
            setattr(self, f"_{name}", state[name].to(self.inverse_mass, copy=True))


def replayed(value_and_grad: ValueAndGrad, z: Tensor) -> ValueAndGrad:
    """Record the potential, and return a function that replays it for inputs of the shape of z."""
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
