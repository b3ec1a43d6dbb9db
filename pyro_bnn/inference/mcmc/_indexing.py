"""Operations that change the indices of elements, in C; `_operations.py` has the table of all operations.

An operation is a function that takes the writer, the operation's result in the example run, and the operation's
arguments, with values in C in place of tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ._emit import Index, Value, Writer, broadcast, without
from ._traced import UnsupportedError


def moved(index: Index, axis: int, text: str) -> list[str]:
    """The index with another text for one axis."""
    return [*index[:axis], text, *index[axis + 1 :]]


def shifted(axis: int, begin: int) -> Callable[[Index], Index]:
    return lambda index: moved(index, axis, f"({begin} + {index[axis]})")


def inserted(axis: int, number: int) -> Callable[[Index], Index]:
    return lambda index: [*index[:axis], str(number), *index[axis:]]


def view(indices: Callable[..., Index]) -> Callable[..., Value]:
    """An operation that reads its first argument where `indices` says, from index, shape and other arguments."""

    def write(writer: Writer, result: Tensor, source: Value, *others: Any) -> Value:
        return source.read_at(result.shape, lambda index: indices(index, source.shape, *others))

    return write


def same(index: Index, shape: Sequence[int], *_: Any) -> Index:
    return index


def unsqueezed(index: Index, shape: Sequence[int], axis: int) -> Index:
    axis = axis % (len(shape) + 1)
    return [*index[:axis], *index[axis + 1 :]]


def transposed(index: Index, shape: Sequence[int], first: int = 0, second: int = -1) -> Index:
    a, b = first % len(shape), second % len(shape)
    result = list(index)
    result[a], result[b] = result[b], result[a]
    return result


def permuted(index: Index, shape: Sequence[int], axes: Sequence[int]) -> Index:
    result = ["0"] * len(shape)
    for axis, i in zip(axes, index, strict=True):
        result[axis % len(shape)] = i
    return result


def sliced(index: Index, shape: Sequence[int], axis: int, begin: int | None, _: Any, step: int) -> Index:
    axis, begin = axis % len(shape), begin or 0
    first = begin + shape[axis] if begin < 0 else begin
    return moved(index, axis, f"({first} + {step} * ({index[axis]}))") if shape[axis] > 1 else index


def selected(index: Index, shape: Sequence[int], axis: int, number: int) -> Index:
    axis = axis % len(shape)
    return inserted(axis, number % shape[axis])(index)


def expand(writer: Writer, result: Tensor, source: Value, *_: Any) -> Value:
    return broadcast(source, result.shape)


def squeeze(writer: Writer, result: Tensor, source: Value, axes: Any = None) -> Value:
    given = range(len(source.shape)) if axes is None else axes if isinstance(axes, Sequence) else [axes]
    numbers = [axis % len(source.shape) for axis in given]
    return without(source, [axis for axis in numbers if source.shape[axis] == 1])


def reshape(writer: Writer, result: Tensor, source: Value, *_: Any) -> Value:
    """The elements in the same order with other axes; in most networks only axes of size 1 are added or removed."""
    shape = tuple(result.shape)
    from_axes = [axis for axis, n in enumerate(source.shape) if n > 1]
    to_axes = [axis for axis, n in enumerate(shape) if n > 1]
    is_squeezed = [source.shape[axis] for axis in from_axes] == [shape[axis] for axis in to_axes]

    def at(index: Index) -> str:
        own = ["0"] * len(source.shape)
        if is_squeezed:
            for a, b in zip(from_axes, to_axes, strict=True):
                own[a] = index[b]
            return source.at(own)
        position = "0"
        for i, n in zip(index, shape, strict=True):
            position = f"(({position}) * {n} + {i})"
        below = source.size
        for axis in from_axes:
            below //= source.shape[axis]
            inside = position if axis == from_axes[0] else f"({position}) % {below * source.shape[axis]}"
            own[axis] = inside if below == 1 else f"({inside}) / {below}"
        return source.at([f"({i})" for i in own])

    return replace(source, shape=shape, at=at, example=None)


def split(writer: Writer, result: Sequence[Tensor], source: Value, _: Any, axis: int) -> list[Value]:
    """Parts of a value along one axis."""
    axis, parts, begin = axis % len(source.shape), [], 0
    for part in result:
        parts.append(source.read_at(part.shape, shifted(axis, begin)))
        begin += part.shape[axis]
    return parts


def unbind(writer: Writer, result: Sequence[Tensor], source: Value, axis: int) -> list[Value]:
    """The slices along one axis."""
    return [view(selected)(writer, part, source, axis, number) for number, part in enumerate(result)]


def item(writer: Writer, result: Tensor, values: Sequence[Value], number: int) -> Value:
    return values[number]


def copy(writer: Writer, source: Value, result: Value, target: Callable[[Index], Index], sign: str = "=") -> None:
    """Write the elements of a value to memory, at other indices."""
    with writer.each(source.shape) as index:
        writer.add(f"{result.at(target(index))} {sign} {source.at(index)};")


def stack(writer: Writer, result: Tensor, parts: Sequence[Value], axis: int) -> Value:
    """Values beside each other along a new axis."""
    memory, axis = writer.memory(result.shape), axis % result.dim()
    for number, part in enumerate(parts):
        copy(writer, part, memory, inserted(axis, number))
    return memory


def cat(writer: Writer, result: Tensor, parts: Sequence[Value], axis: int) -> Value:
    memory, axis, begin = writer.memory(result.shape), axis % result.dim(), 0
    for part in parts:
        copy(writer, part, memory, shifted(axis, begin))
        begin += part.shape[axis]
    return memory


def select_backward(writer: Writer, result: Tensor, source: Value, _: Any, axis: int, number: int) -> Value:
    """Zeros but for one slice."""
    shape, axis = tuple(result.shape), axis % result.dim()

    def at(index: Index) -> str:
        inside = source.at([*index[:axis], *index[axis + 1 :]])
        return inside if shape[axis] == 1 else f"where_({index[axis]} == {number % shape[axis]}, {inside}, 0.0f)"

    return Value(shape, at)


def slice_backward(
    writer: Writer, result: Tensor, source: Value, _: Any, axis: int, begin: int, __: Any, step: int
) -> Value:
    """Zeros but for a slice; torch 2.4 uses it where later versions pad."""
    memory, axis = writer.memory(result.shape), axis % result.dim()
    first = begin + result.shape[axis] if begin < 0 else begin
    with writer.each(memory.shape) as index:
        writer.add(f"{memory.at(index)} = 0.0f;")
    copy(writer, source, memory, lambda index: moved(index, axis, f"({first} + {step} * ({index[axis]}))"))
    return memory


def gather(writer: Writer, result: Tensor, source: Value, axis: int, which: Value, *_: Any) -> Value:
    source, axis = writer.stored(source), axis % len(source.shape)
    return Value(tuple(result.shape), lambda index: source.at(moved(index, axis, f"(long){which.at(index)}")))


def scatter_add(writer: Writer, result: Tensor, base: Value, axis: int, which: Value, source: Value) -> Value:
    """Adds one number per row to one element of the row."""
    shape, axis = tuple(result.shape), axis % result.dim()
    if which.shape != (*shape[:axis], 1, *shape[axis + 1 :]):
        raise UnsupportedError(f"of {which.shape}")

    def at(index: Index) -> str:
        row = moved(index, axis, "0")
        return f"({base.at(index)} + where_((long){which.at(row)} == {index[axis]}, {source.at(row)}, 0.0f))"

    return Value(shape, at)


def _picking(indices: Sequence[Value | None]) -> tuple[int, Callable[[Index], Index]]:
    """The axis along which a vector of integers picks elements, and a function from an index to the one it picks."""
    axes = [axis for axis, which in enumerate(indices) if which is not None]
    which = indices[axes[0]]
    if len(axes) != 1 or which is None or which.example is None:
        raise UnsupportedError(f"along {axes}")
    example, axis = which.example, axes[0]
    if example.dim() != 1 or example.dtype != torch.int64 or bool((example < 0).any()):
        raise UnsupportedError(f"by {example.dtype}")
    return axis, lambda index: moved(index, axis, f"(long){which.at([index[axis]])}")


def take(writer: Writer, result: Tensor, source: Value, indices: Sequence[Value | None]) -> Value:
    """Slices that a vector of integers picks along one axis."""
    _, target = _picking(indices)
    source = writer.stored(source)
    return Value(tuple(result.shape), lambda index: source.at(target(index)))


def put(writer: Writer, result: Tensor, base: Value, indices: Sequence[Value | None], added: Value, _: Any) -> Value:
    """A tensor with slices added to it along one axis, at the positions in a vector of integers."""
    axis, target = _picking(indices)
    which = indices[axis]
    assert which is not None
    sizes = (*result.shape[:axis], which.size, *result.shape[axis + 1 :])
    source, memory = broadcast(added, sizes), writer.memory(result.shape)
    copy(writer, base, memory, lambda index: index)
    copy(writer, source, memory, target, "+=")
    return memory
