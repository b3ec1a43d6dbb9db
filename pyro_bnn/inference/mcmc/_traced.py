"""Records functions as graphs of tensor operations, with constant tensors as further arguments."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from ..._core.functional import ordinary_attention


class UnsupportedError(Exception):
    """A faster way to compute is not possible; the message is the reason, as a clause without a full stop."""


@contextmanager
def unsupported_if_it_fails() -> Iterator[None]:
    """A context in which a density is traced; its errors become an `UnsupportedError`."""
    try:
        yield
    except Exception as error:  # whatever a user's model raises
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(f"the density cannot be recorded ({type(error).__name__}: {reason})") from error


class Traced(NamedTuple):
    """A recorded function and its constants: the tensors that it used besides its arguments, such as data and buffers.

    Functions that differ only in the values of their constants have the same graph, so C is compiled once for them.
    """

    graph: GraphModule  # called with the arguments, then the constants
    constants: list[Tensor]  # no two of them share memory


def traced(
    function: Callable[..., Any],
    example: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Traced:
    """A function recorded as plain tensor operations, without Pyro and autograd.

    `decompositions` are functions that are recorded in place of some operations, and consist of simpler ones.

    Results that depend only on constants, such as the normaliser of a likelihood, are computed here, once.

    Raises:
        UnsupportedError: If the function cannot be recorded, for example because it branches on a value.
    """
    with unsupported_if_it_fails(), ordinary_attention():
        graph = make_fx(lambda *tensors: function(*tensors), decomposition_table=decompositions)(*example)
    graph.graph.eliminate_dead_code()
    constants = _lift(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Traced(graph, constants)


def _lift(graph: GraphModule) -> list[Tensor]:
    """Make the constants of a graph its last arguments, and return them."""
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
    """Values of all nodes that do not depend on the graph's arguments, in the order of the graph."""
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
    """Whether a node depends on constants alone. A node without inputs does not count: it may draw random numbers."""
    return bool(node.all_input_nodes) and all(source in values for source in node.all_input_nodes)
