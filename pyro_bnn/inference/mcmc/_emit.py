"""Writes recorded functions of small tensors as loops in C, without calls, allocations or transposed copies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from ._blocks import STEP, VALUELESS, VIEWS, Blocks, blocks_of
from ._operations import OPERATIONS
from ._traced import UnsupportedError
from ._writer import Value, Writer, in_memory, order


@dataclass(frozen=True)
class Emitted:
    text: str  # its definition
    num_scratch: int  # size of its working memory, in numbers
    num_products: int  # multiplications in its matrix products, in one block if it has blocks
    blocks: Blocks | None  # its blocks of rows, if it has any
    constants: Sequence[Node]  # its arguments after the point

    @property
    def num_rows(self) -> int:
        """Number of rows; 0 without blocks of rows."""
        return 0 if self.blocks is None else self.blocks.num_rows

    def laid_out(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the constants in C's layout: the longest axis innermost, and rows cut into blocks."""
        result = []
        for node, value in zip(self.constants, values, strict=True):
            if self.blocks is None or node not in self.blocks.with_rows:
                axes, whole = order(value.shape), value
            else:
                axes = [0, *(1 + axis for axis in order(self.blocks.shape(value.shape)))]
                whole = self.blocks.cut(value)
            result.append(whole.permute(axes).contiguous())
        return result


Values = dict[Node, Any]
Results = Mapping[Node, Any]


def emitted(graph: GraphModule, example: Sequence[Tensor]) -> Emitted:
    """Write C code for a recorded function that maps a point, shape (1, P), and constants to a value and a gradient."""
    *nodes, output = graph.graph.nodes
    placeholders = [node for node in nodes if node.op == "placeholder"]
    rest = nodes[len(placeholders) :]
    for node in graph.graph.nodes:
        node.meta["packet"] = getattr(node.target, "overloadpacket", node.target)  # the same for all overloads
    for node in rest:
        if node.op != "call_function" or node.meta["packet"] not in OPERATIONS:
            raise UnsupportedError(str(node.target))
    interpreter, writer = Interpreter(graph, garbage_collect_values=False), Writer()
    interpreter.run(*example)
    results = interpreter.env
    arrays = ["z", *(f"data->constants[{number}]" for number in range(len(example) - 1))]
    names = dict(zip(placeholders, arrays, strict=True))
    values: Values = {
        node: replace(in_memory(names[node], 0, value.shape), example=value)
        for node, value in zip(placeholders, example, strict=True)
    }
    blocks = blocks_of(nodes, results)
    _write(writer, rest if blocks is None else blocks.before, values, results)
    if blocks is not None:
        _write_blocks(writer, blocks, names, values, results)
        _write(writer, blocks.after, values, results)
    number, gradient = (values[node] for node in output.args[0])
    writer.add(f"*value = {number.at(['0'] * len(number.shape))};")
    with writer.loops(gradient.shape) as index:
        writer.add(f"gradient[{index[1]}] = {gradient.at(index)};")
    parameters = "const real *restrict z, real *restrict value, real *restrict gradient, real *restrict w"
    lines = "\n".join(f"    {line}" for line in writer.lines)
    text = f"static void value_and_grad({parameters}, const Data *data) {{\n{lines}\n}}\n"
    return Emitted(text, writer.num_scratch, writer.num_products, blocks, placeholders[1:])


def _write(writer: Writer, nodes: Sequence[Node], values: Values, results: Results) -> None:
    for node in nodes:
        is_shared = _num_uses(node) > 1
        try:
            arguments = map_arg(_arguments(node), values.get)  # None for an argument of `zeros_like` without values
            value = OPERATIONS[node.meta["packet"]](writer, results[node], *arguments)
        except UnsupportedError as error:
            raise UnsupportedError(f"{node.target} {error}") from error
        if isinstance(value, Value):
            value = writer.stored(value) if is_shared or math.prod(value.shape) == 1 else value
            value = replace(value, example=results[node])
        values[node] = value


def _write_blocks(writer: Writer, blocks: Blocks, names: Mapping[Node, str], values: Values, results: Results) -> None:
    """Write a loop over the blocks, which adds up the sums over the rows of each block."""
    totals = {node: writer.memory(results[node].shape) for node in blocks.inside if node in blocks.sums}
    for total in totals.values():
        with writer.loops(total.shape) as index:
            writer.add(f"{total.at(index)} = 0.0f;")
    writer.add(f"const long num_blocks = (data->num_rows + {blocks.size - 1}) / {blocks.size};")
    writer.add(f"const long num_steps = (data->num_rows + {STEP - 1}) / {STEP};")
    writer.add("for (long block = 0; block < num_blocks; ++block) {")
    writer.add(f"const long begin = block * num_steps / num_blocks * {STEP};")
    writer.add(f"const long end = (block + 1) * num_steps / num_blocks * {STEP};")
    writer.add("const long room = end - begin, rows = block + 1 < num_blocks ? room : data->num_rows - begin;")
    writer.size = blocks.size
    own, cut = dict(values), dict(results)
    for node in blocks.with_rows:
        cut[node] = _cut(results[node], blocks)
    for node in names:
        if node in blocks.with_rows:
            block, shape = writer.name("d"), cut[node].shape
            writer.add(f"const real *restrict {block} = {names[node]} + block * {math.prod(shape)};")
            own[node] = replace(in_memory(block, 0, shape), example=results[node], is_filled=True)
    for node in blocks.inside:
        _write(writer, [node], own, cut)
        if node in totals:
            with writer.loops(totals[node].shape) as index:
                writer.add(f"{totals[node].at(index)} += {own[node].at(index)};")
    writer.size = 0
    writer.add("}")
    values.update(totals)


def _arguments(node: Node) -> tuple[Any, ...]:
    """Return the positional arguments of an operation, including defaults."""
    target: Any = node.target
    if target is getitem:
        return node.args
    schema = target._schema
    if schema.is_mutable:
        source: Any = node.args[0]
        if source.op != "call_function" or source.meta["packet"] in VIEWS or len(source.users) > 1:
            raise UnsupportedError("on a tensor that is used elsewhere")
    if node.kwargs and node.meta["packet"] not in VIEWS | VALUELESS:
        raise UnsupportedError(f"with {node.kwargs}")
    missing = schema.arguments[len(node.args) :]
    return (*node.args, *(argument.default_value for argument in missing if not argument.kwarg_only))


def _cut(result: Any, blocks: Blocks) -> Any:
    if isinstance(result, tuple | list):
        return [_cut(part, blocks) for part in result]
    return result.new_empty(blocks.shape(result.shape), device="meta")


def _num_uses(node: Node) -> int:
    """Return the number of operations that read a result or a view of it."""
    return sum(max(1, _num_uses(user)) if user.meta["packet"] in VIEWS else 1 for user in node.users)
