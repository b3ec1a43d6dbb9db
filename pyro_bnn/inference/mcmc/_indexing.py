"""Operations that give elements other indices, in C; see `_emit.py`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ._blocks import axis_of
from ._emit import Index, Operation, Value, Writer, broadcast, without
from ._traced import UnsupportedError

Values = Mapping[Node, Any]


def arguments(node: Node) -> tuple[Any, ...]:
    return tuple(node.args)


def shape_of(node: Node, results: Values) -> tuple[int, ...]:
    return tuple(results[node].shape)


def view(indices: Callable[[Node, tuple[int, ...], Index], Index]) -> Operation:
    """An operation that reads its first argument at other indices, a function of the node, its shape and the index."""

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Value:
        source = values[arguments(node)[0]]
        shape = shape_of(node, results)
        return Value(shape, lambda index: source.at(indices(node, source.shape, index)), source.is_stored)

    return write


def same(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    value: Value = values[arguments(node)[0]]
    return value


def expand(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    return broadcast(values[arguments(node)[0]], shape_of(node, results))


def unsqueezed(node: Node, shape: tuple[int, ...], index: Index) -> Index:
    axis = axis_of(arguments(node)[1], len(shape) + 1)
    return [*index[:axis], *index[axis + 1 :]]


def squeeze(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    value = values[arguments(node)[0]]
    given = arguments(node)[1] if len(arguments(node)) > 1 else list(range(len(value.shape)))
    axes = [axis_of(axis, len(value.shape)) for axis in (given if isinstance(given, Sequence) else [given])]
    return without(value, [axis for axis in axes if value.shape[axis] == 1])


def transposed(node: Node, shape: tuple[int, ...], index: Index) -> Index:
    a, b = (axis_of(axis, len(shape)) for axis in (arguments(node)[1:] or (0, -1)))
    result = list(index)
    result[a], result[b] = result[b], result[a]
    return result


def permuted(node: Node, shape: tuple[int, ...], index: Index) -> Index:
    result = ["0"] * len(shape)
    for axis, i in zip(arguments(node)[1], index, strict=True):
        result[axis_of(axis, len(shape))] = i
    return result


def sliced(node: Node, shape: tuple[int, ...], index: Index) -> Index:
    """See `view`."""
    axis, begin, _, step = (list(arguments(node)[1:]) + [0, 0, None, 1][len(arguments(node)) - 1 :])[:4]
    axis, begin = axis_of(axis, len(shape)), int(begin or 0)
    first = begin + shape[axis] if begin < 0 else begin
    return [f"({first} + {step} * ({i}))" if a == axis and shape[a] > 1 else i for a, i in enumerate(index)]


def selected(node: Node, shape: tuple[int, ...], index: Index) -> Index:
    axis, which = axis_of(arguments(node)[1], len(shape)), int(arguments(node)[2])
    return [*index[:axis], str(which % shape[axis]), *index[axis:]]


def reshape(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """The elements, in their order, with other axes; axes of size 1 only come and go in most networks."""
    source, shape = values[arguments(node)[0]], shape_of(node, results)
    from_axes = [axis for axis, n in enumerate(source.shape) if n > 1]
    to_axes = [axis for axis, n in enumerate(shape) if n > 1]
    is_squeezed = [source.shape[axis] for axis in from_axes] == [shape[axis] for axis in to_axes]

    def at(index: Index) -> str:
        result = ["0"] * len(source.shape)
        if is_squeezed:
            for a, b in zip(from_axes, to_axes, strict=True):
                result[a] = index[b]
            return source.at(result)
        position = "0"
        for i, n in zip(index, shape, strict=True):
            position = f"(({position}) * {n} + {i})"
        below = source.size
        for axis in from_axes:
            below //= source.shape[axis]
            inside = position if axis == from_axes[0] else f"({position}) % {below * source.shape[axis]}"
            result[axis] = inside if below == 1 else f"({inside}) / {below}"
        return source.at([f"({i})" for i in result])

    return Value(shape, at, source.is_stored)


def split(writer: Writer, node: Node, values: Values, results: Values) -> list[Value]:
    """Parts of a value along one axis."""
    source = values[arguments(node)[0]]
    axis = axis_of(arguments(node)[2] if len(arguments(node)) > 2 else 0, len(source.shape))
    parts, begin = [], 0
    for part in results[node]:
        parts.append(_part(source, axis, begin, tuple(part.shape)))
        begin += part.shape[axis]
    return parts


def _part(source: Value, axis: int, begin: int, shape: tuple[int, ...]) -> Value:
    def at(index: Index) -> str:
        return source.at([f"({begin} + {i})" if a == axis else i for a, i in enumerate(index)])

    return Value(shape, at, source.is_stored)


def stack(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """Values beside each other along a new axis."""
    result = writer.memory(shape_of(node, results))
    axis = axis_of(arguments(node)[1] if len(arguments(node)) > 1 else 0, len(result.shape))
    for number, part in enumerate(arguments(node)[0]):
        with writer.loops(values[part].shape) as index:
            target = [*index[:axis], str(number), *index[axis:]]
            writer.add(f"{result.at(target)} = {values[part].at(index)};")
    return result


def unbind(writer: Writer, node: Node, values: Values, results: Values) -> list[Value]:
    """The slices along one axis."""
    source = values[arguments(node)[0]]
    axis = axis_of(arguments(node)[1] if len(arguments(node)) > 1 else 0, len(source.shape))
    return [_slice_at(source, axis, number) for number in range(source.shape[axis])]


def _slice_at(source: Value, axis: int, number: int) -> Value:
    shape = (*source.shape[:axis], *source.shape[axis + 1 :])
    return Value(shape, lambda index: source.at([*index[:axis], str(number), *index[axis:]]), source.is_stored)


def select_backward(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """Zeros but for one slice."""
    gradient, _, axis, number = arguments(node)
    source, shape = values[gradient], shape_of(node, results)
    axis = axis_of(axis, len(shape))

    def at(index: Index) -> str:
        inside = source.at([*index[:axis], *index[axis + 1 :]])
        return inside if shape[axis] == 1 else f"where_({index[axis]} == {number % shape[axis]}, {inside}, 0.0)"

    return Value(shape, at)


def slice_backward(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """Zeros but for a slice; torch 2.4 has it where later versions pad."""
    gradient, _, axis, begin, _, step = arguments(node)
    source, result = values[gradient], writer.memory(shape_of(node, results))
    axis = axis_of(axis, len(result.shape))
    first = begin + result.shape[axis] if begin < 0 else begin
    with writer.loops(result.shape) as index:
        writer.add(f"{result.at(index)} = 0.0;")
    with writer.loops(source.shape) as index:
        target = [f"({first} + {step} * ({i}))" if a == axis else i for a, i in enumerate(index)]
        writer.add(f"{result.at(target)} = {source.at(index)};")
    return result


def item(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    value: Value = values[arguments(node)[0]][arguments(node)[1]]
    return value


def cat(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    parts = [values[part] for part in arguments(node)[0]]
    result = writer.memory(shape_of(node, results))
    axis, begin = axis_of(arguments(node)[1] if len(arguments(node)) > 1 else 0, len(result.shape)), 0
    for part in parts:
        with writer.loops(part.shape) as index:
            target = [f"({begin} + {i})" if a == axis else i for a, i in enumerate(index)]
            writer.add(f"{result.at(target)} = {part.at(index)};")
        begin += part.shape[axis]
    return result


def gather(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    source, which = writer.stored(values[arguments(node)[0]]), values[arguments(node)[2]]
    axis = axis_of(arguments(node)[1], len(source.shape))

    def at(index: Index) -> str:
        return source.at([f"(long){which.at(index)}" if a == axis else i for a, i in enumerate(index)])

    return Value(shape_of(node, results), at)


def _one_index(node: Node, indices: Sequence[Node | None], values: Values, results: Values) -> tuple[int, Value]:
    """The axis along which a vector of integers picks elements, and the vector."""
    axes = [axis for axis, which in enumerate(indices) if which is not None]
    if len(axes) != 1:
        raise UnsupportedError(f"{node.target} along {axes}")
    which = indices[axes[0]]
    assert which is not None
    if len(values[which].shape) != 1 or results[which].dtype != torch.int64 or bool((results[which] < 0).any()):
        raise UnsupportedError(f"{node.target} by {results[which].dtype}")
    return axes[0], values[which]


def take(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """Slices that a vector of integers picks along one axis."""
    axis, which = _one_index(node, arguments(node)[1], values, results)
    source = writer.stored(values[arguments(node)[0]])

    def at(index: Index) -> str:
        return source.at([f"(long){which.at([i])}" if a == axis else i for a, i in enumerate(index)])

    return Value(shape_of(node, results), at)


def put(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """A tensor to which slices are added where a vector of integers says, along one axis."""
    base, indices, added, *accumulates = arguments(node)
    axis, which = _one_index(node, indices, values, results)
    shape = shape_of(node, results)
    if accumulates != [True]:
        raise UnsupportedError(f"{node.target} that replaces")
    sizes = tuple(which.size if a == axis else n for a, n in enumerate(shape))
    source, result = broadcast(values[added], sizes), writer.memory(shape)
    with writer.loops(shape) as index:
        writer.add(f"{result.at(index)} = {values[base].at(index)};")
    with writer.loops(sizes) as index:
        target = [f"(long){which.at([i])}" if a == axis else i for a, i in enumerate(index)]
        writer.add(f"{result.at(target)} += {source.at(index)};")
    return result


def scatter_add(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """Where one number per row goes to one of its elements."""
    base, axis, which, source = (values.get(argument, argument) for argument in arguments(node))
    shape = shape_of(node, results)
    axis = axis_of(axis, len(shape))
    if any(n != (1 if a == axis else shape[a]) for a, n in enumerate(which.shape)):
        raise UnsupportedError(f"{node.target} of {which.shape}")

    def at(index: Index) -> str:
        row = [*index[:axis], "0", *index[axis + 1 :]]
        return f"({base.at(index)} + where_((long){which.at(row)} == {index[axis]}, {source.at(row)}, 0.0))"

    return Value(shape, at)
