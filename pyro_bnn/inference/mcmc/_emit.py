"""Writes recorded functions of small tensors as loops in C, without calls, allocations or transposed copies.

A value is a C expression for its element at given indices. Most operations only combine such expressions. A result is
written to memory if it is used more than once, or if its operation runs over an axis. The longest axis is innermost, so
that the C compiler can vectorise over it. `_operations.py` has the operations.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from ._blocks import STEP, VALUELESS, VIEWS, Blocks, blocks_of
from ._traced import UnsupportedError

Index = Sequence[str]


@dataclass(frozen=True)
class Value:
    """A tensor in C."""

    shape: tuple[int, ...]
    at: Callable[[Index], str]  # the element's expression, from one expression per axis
    is_stored: bool = False  # whether the element is in memory, so that using it often is cheap
    is_scratch: bool = False  # whether that memory may be written to
    is_filled: bool = False  # whether zeros follow the rows of a block
    example: Tensor | None = None  # the tensor of the example run, once it is known

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def read_at(self, shape: Sequence[int], index_of: Callable[[Index], Index]) -> "Value":
        """A tensor of another shape that reads this one at other indices."""
        return replace(self, shape=tuple(shape), at=lambda index: self.at(index_of(index)), example=None)


def constant(number: float, shape: Sequence[int]) -> Value:
    """A tensor of equal numbers."""
    return Value(tuple(shape), lambda _: literal(number), is_stored=True)


def literal(number: float) -> str:
    """A number in C."""
    number = float(number)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    return f"((real){number!r})"


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """The value broadcast to a shape: new leading axes, and axes of size 1 repeated."""
    lead, own = len(shape) - len(value.shape), value.shape
    result = value.read_at(shape, lambda index: ["0" if n == 1 else i for n, i in zip(own, index[lead:], strict=True)])
    return replace(result, is_scratch=value.is_scratch and own == tuple(shape[lead:]))


def strides(shape: Sequence[int]) -> list[int]:
    """Strides of a tensor whose longest axis is innermost."""
    result, stride = [0] * len(shape), 1
    for axis in reversed(order(shape)):
        result[axis], stride = stride, stride * shape[axis]
    return result


def order(shape: Sequence[int]) -> list[int]:
    """Axes from the outermost to the innermost loop: the longest comes last."""
    return sorted(range(len(shape)), key=lambda axis: shape[axis])


def in_memory(name: str, offset: int, shape: Sequence[int]) -> Value:
    """A tensor that begins at an element of an array."""
    steps = strides(shape)

    def at(index: Index) -> str:
        terms = [i if step == 1 else f"{step} * ({i})" for i, step, n in zip(index, steps, shape, strict=True) if n > 1]
        return f"{name}[{' + '.join([str(offset), *terms])}]"

    return Value(tuple(shape), at, is_stored=True)


class Writer:
    """The text of a C function so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.num_scratch = 0
        self.num_products = 0
        self.size = 0  # rows that fit into the block that is being written; 0 outside of blocks
        self._count = 0

    def name(self, prefix: str) -> str:
        """A new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def memory(self, shape: Sequence[int]) -> Value:
        """A new tensor in memory, to be written."""
        value = replace(in_memory("w", self.num_scratch, shape), is_scratch=True)
        self.num_scratch += -(-value.size // 8) * 8  # whole cache lines
        return value

    @contextmanager
    def loops(
        self, shape: Sequence[int], axes: Sequence[int] | None = None, *, pragma: str = "", rows: str = "room"
    ) -> Iterator[list[str]]:
        """Loops over some axes, all by default; yields an index for each axis, 0 for the others.

        `pragma` is for the innermost loop. `rows` is the C variable with the rows of a block; "room" is rounded up.
        """
        index = ["0"] * len(shape)
        opened = [axis for axis in (order(shape) if axes is None else axes) if shape[axis] > 1]
        for axis in opened:
            index[axis] = name = self.name("i")
            if pragma and axis == opened[-1]:
                self.add(f'_Pragma("{pragma}")')
            end = rows if shape[axis] == self.size else shape[axis]
            self.add(f"for (long {name} = 0; {name} < {end}; ++{name}) {{")
        yield index
        self.add("}" * len(opened))

    @contextmanager
    def each(self, shape: Sequence[int]) -> Iterator[list[str]]:
        """Loops over all axes for a line that computes each element independently of the others.

        Where the length of the loop is known, a compiler sees this independence without a pragma.
        """
        is_known = self.size == 0 or self.size != max(shape, default=0)
        with self.loops(shape, pragma="" if is_known else "omp simd") as index:
            yield index

    def fill(self, value: Value, axis: int) -> bool:
        """Write zeros after the last row of a block along an axis, if possible; returns whether zeros are there."""
        if not value.is_scratch:
            return value.is_filled
        self.add("if (rows < room) {")
        with self.loops(value.shape, [other for other in order(value.shape) if other != axis]) as index:
            self.add('_Pragma("omp simd")')
            self.add(f"for (long last = room - {STEP}; last < room; ++last) {{")
            element = value.at([*index[:axis], "last", *index[axis + 1 :]])
            self.add(f"{element} = where_(last < rows, {element}, 0.0f);")
            self.add("}")
        self.add("}")
        return True

    def stored(self, value: Value) -> Value:
        """The value in memory, or in a variable if it is one number."""
        if value.is_stored:
            return value
        if value.size == 1:
            name = self.name("s")
            self.add(f"const real {name} = {value.at(['0'] * len(value.shape))};")
            return Value(value.shape, lambda _: name, is_stored=True)
        result = self.memory(value.shape)
        with self.each(value.shape) as index:
            self.add(f"{result.at(index)} = {value.at(index)};")
        return result

    def sum(self, value: Value, axes: Sequence[int], keeps: bool) -> Value:
        """Sum over some axes. A short sum is one expression, so the loop around it can run over the longest axis."""
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(value.shape))
        inner = [axis for axis in order(value.shape) if axis in axes and value.shape[axis] > 1]
        if len(inner) == 1 and value.shape[inner[0]] <= 16 and value.shape[inner[0]] != self.size:
            (axis,) = inner

            def at(index: Index) -> str:
                parts = (value.at([*index[:axis], str(i), *index[axis + 1 :]]) for i in range(value.shape[axis]))
                return f"({' + '.join(parts)})"

            result = self.stored(Value(shape, at))
        else:
            result = self.memory(shape)
            with self.loops(shape) as index:
                name = self.name("sum")
                self.add(f"real {name} = 0.0f;")
                with self.reduction(value.shape, inner, [name]) as own:
                    full = [own[axis] if axis in axes else i for axis, i in enumerate(index)]
                    self.add(f"{name} += {value.at(full)};")
                self.add(f"{result.at(index)} = {name};")
        return result if keeps else without(result, axes)

    @contextmanager
    def reduction(
        self, shape: Sequence[int], axes: Sequence[int], names: Sequence[str], rows: str = "rows"
    ) -> Iterator[list[str]]:
        """Loops over axes that add to variables; the compiler may add the terms in any order."""
        if not axes:
            yield ["0"] * len(shape)
            return
        pragma = f"omp simd reduction(+ : {', '.join(names)})"
        with (
            self.loops(shape, axes[:-1], rows=rows) as outer,
            self.loops(shape, axes[-1:], pragma=pragma, rows=rows) as inner,
        ):
            yield [b if axis == axes[-1] else a for axis, (a, b) in enumerate(zip(outer, inner, strict=True))]


def without(value: Value, axes: Sequence[int]) -> Value:
    """The value without some axes, which have size 1."""
    kept = [axis for axis in range(len(value.shape)) if axis not in axes]

    def full(index: Index) -> Index:
        given = dict(zip(kept, index, strict=True))
        return [given.get(axis, "0") for axis in range(len(value.shape))]

    return value.read_at([value.shape[axis] for axis in kept], full)


class _Recorder(Interpreter):
    """Runs a graph, and keeps what each node returns."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.results: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        self.results[n] = result = super().run_node(n)
        return result


@dataclass(frozen=True)
class Emitted:
    """A function in C."""

    text: str  # its definition
    num_scratch: int  # how many numbers its working memory holds
    num_products: int  # multiplications in its matrix products, for one block if it has blocks
    blocks: Blocks | None  # its blocks of rows, if it has any
    constants: Sequence[Node]  # its arguments after the point

    @property
    def has_blocks(self) -> bool:
        """Whether it computes block by block, and takes the number of rows as an argument."""
        return self.blocks is not None

    @property
    def num_rows(self) -> int:
        """Number of rows; 0 if it has no blocks."""
        return 0 if self.blocks is None else self.blocks.num_rows

    def laid_out(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The constants as C reads them: in the order of `strides`, and block by block if they have rows."""
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
"""The value in C of each node so far; a list for a node with several results."""

Results = Mapping[Node, Any]
"""What each node returns for the example."""

Operation = Callable[..., Any]
"""Writes one operation in C. Arguments: the writer, the result for the example, the operation's own arguments."""


def emitted(graph: GraphModule, example: Sequence[Tensor], operations: Mapping[Any, Operation]) -> Emitted:
    """Write a recorded function in C. It maps one point, shape (1, P), and constants to a number and its gradient.

    C reads the constants from `data`; see :meth:`Emitted.laid_out`.

    Raises:
        UnsupportedError: If an operation is not in the table of operations; the message names it.
    """
    recorder = _Recorder(graph)
    recorder.run(*example)
    results, writer = recorder.results, Writer()
    *nodes, output = graph.graph.nodes
    placeholders = [node for node in nodes if node.op == "placeholder"]
    rest = nodes[len(placeholders) :]
    for node in graph.graph.nodes:
        node.meta["packet"] = getattr(node.target, "overloadpacket", node.target)  # the same for all overloads
    for node in rest:
        if node.op != "call_function" or node.meta["packet"] not in operations:
            raise UnsupportedError(str(node.target))
    arrays = ["z", *(f"data->constants[{number}]" for number in range(len(example) - 1))]
    names = dict(zip(placeholders, arrays, strict=True))
    values: Values = {
        node: replace(in_memory(names[node], 0, value.shape), example=value)
        for node, value in zip(placeholders, example, strict=True)
    }
    blocks = blocks_of(nodes, results)
    _write(writer, operations, rest if blocks is None else blocks.before, values, results)
    if blocks is not None:
        _write_blocks(writer, operations, blocks, names, values, results)
        _write(writer, operations, blocks.after, values, results)
    number, gradient = (values[node] for node in output.args[0])
    writer.add(f"*value = {number.at(['0'] * len(number.shape))};")
    with writer.loops(gradient.shape) as index:
        writer.add(f"gradient[{index[1]}] = {gradient.at(index)};")
    parameters = "const real *restrict z, real *restrict value, real *restrict gradient, real *restrict w"
    lines = "\n".join(f"    {line}" for line in writer.lines)
    text = f"static void value_and_grad({parameters}, const Data *data) {{\n{lines}\n}}\n"
    return Emitted(text, writer.num_scratch, writer.num_products, blocks, placeholders[1:])


def _write(
    writer: Writer, operations: Mapping[Any, Operation], nodes: Sequence[Node], values: Values, results: Results
) -> None:
    """Write operations one after the other, and add their values to `values`."""
    for node in nodes:
        try:
            arguments = map_arg(_arguments(node), values.get)  # `zeros_like` may come before its argument
            value = operations[node.meta["packet"]](writer, results[node], *arguments)
        except UnsupportedError as error:
            raise UnsupportedError(f"{node.target} {error}") from error
        if isinstance(value, Value):
            is_shared = _num_uses(node) > 1 or value.size == 1
            value = replace(writer.stored(value) if is_shared else value, example=results[node])
        values[node] = value


def _write_blocks(
    writer: Writer,
    operations: Mapping[Any, Operation],
    blocks: Blocks,
    names: Mapping[Node, str],
    values: Values,
    results: Results,
) -> None:
    """Write operations on rows as a loop over blocks, and add up the sums. `Blocks.bounds` has the same blocks."""
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
        _write(writer, operations, [node], own, cut)
        if node in totals:
            with writer.loops(totals[node].shape) as index:
                writer.add(f"{totals[node].at(index)} += {own[node].at(index)};")
    writer.size = 0
    writer.add("}")
    values.update(totals)


def _arguments(node: Node) -> tuple[Any, ...]:
    """The positional arguments of an operation, with defaults for missing ones."""
    schema: Any = getattr(node.target, "_schema", None)  # Python's `getitem` has none
    if schema is None:
        return node.args
    if schema.is_mutable:
        source: Any = node.args[0]
        if source.op != "call_function" or source.meta["packet"] in VIEWS or len(source.users) > 1:
            raise UnsupportedError("on a tensor that is used elsewhere")
    if node.kwargs and node.meta["packet"] not in VIEWS | VALUELESS:
        raise UnsupportedError(f"with {node.kwargs}")
    missing = schema.arguments[len(node.args) :]
    return (*node.args, *(argument.default_value for argument in missing if not argument.kwarg_only))


def _cut(result: Any, blocks: Blocks) -> Any:
    """Tensors without values, with the shape and type that a result with rows has in a block."""
    if isinstance(result, tuple | list):
        return [_cut(part, blocks) for part in result]
    return result.new_empty(blocks.shape(result.shape), device="meta")


def _num_uses(node: Node) -> int:
    """Number of operations that read a result, directly or through views."""
    return sum(max(1, _num_uses(user)) if user.meta["packet"] in VIEWS else 1 for user in node.users)
