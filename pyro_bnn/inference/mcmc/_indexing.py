"""Operations in C that split, join, select and write elements; `_operations.py` has the table of all operations.

An operation is a function. It takes the writer, the result of the operation in the example run, and the arguments of
the operation, with a :class:`Value` in place of each tensor.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._traced import UnsupportedError
from ._writer import Value, Writer, moved, places


def split(writer: Writer, result: Sequence[Tensor], source: Value, _: Any, axis: int) -> list[Value]:
    parts, begin = list[Value](), 0
    for part in result:
        parts.append(source.sliced(part.shape, axis, begin))
        begin += part.shape[axis]
    return parts


def unbind(writer: Writer, result: Sequence[Tensor], source: Value, axis: int) -> list[Value]:
    return [source.selected(part.shape, axis, number) for number, part in enumerate(result)]


def copy(writer: Writer, source: Value, result: Value, sign: str = "=") -> None:
    writer.each(source.shape, f"{result.text} {sign} {source.text};")


def stack(writer: Writer, result: Tensor, parts: Sequence[Value], axis: int) -> Value:
    memory = writer.memory(result.shape)
    for number, part in enumerate(parts):
        copy(writer, part, memory.selected(part.shape, axis, number))
    return memory


def cat(writer: Writer, result: Tensor, parts: Sequence[Value], axis: int) -> Value:
    memory, begin = writer.memory(result.shape), 0
    for part in parts:
        copy(writer, part, memory.sliced(part.shape, axis, begin))
        begin += part.shape[axis]
    return memory


def select_backward(writer: Writer, result: Tensor, source: Value, _: Any, axis: int, number: int) -> Value:
    """Zeros, except for one slice."""
    shape, axis = tuple(result.shape), axis % result.dim()
    index = places(shape)
    inside = source.at([*index[:axis], *index[axis + 1 :]])
    return Value(
        shape, inside if shape[axis] == 1 else f"where_({index[axis]} == {number % shape[axis]}, {inside}, 0.0f)"
    )


def slice_backward(
    writer: Writer, result: Tensor, source: Value, _: Any, axis: int, begin: int, __: Any, step: int
) -> Value:
    """Zeros, with the slices of the source at `begin`, `begin + step` and so on along an axis.

    torch 2.4 records this operation for gradients of slices; later versions record padding.
    """
    memory = writer.memory(result.shape)
    writer.each(memory.shape, f"{memory.text} = 0.0f;")
    copy(writer, source, memory.sliced(source.shape, axis, begin, None, step))
    return memory


def gather(writer: Writer, result: Tensor, source: Value, axis: int, which: Value, *_: Any) -> Value:
    source, axis = writer.stored(source), axis % len(source.shape)
    return Value(tuple(result.shape), source.at(moved(places(result.shape), axis, f"(long){which.text}")))


def scatter_add(writer: Writer, result: Tensor, base: Value, axis: int, which: Value, source: Value) -> Value:
    """Adds one number per row to one element of the row."""
    shape, axis = tuple(result.shape), axis % result.dim()
    if which.shape != (*shape[:axis], 1, *shape[axis + 1 :]):
        raise UnsupportedError(f"of {which.shape}")
    row = moved(places(shape), axis, "0")
    return Value(
        shape, f"({base.text} + where_((long){which.at(row)} == {places(shape)[axis]}, {source.at(row)}, 0.0f))"
    )


def _picked(source: Value, indices: Sequence[Value | None]) -> Value:
    """The slices of a tensor at the positions in a vector of integers, along one axis."""
    axes = [axis for axis, which in enumerate(indices) if which is not None]
    which = indices[axes[0]]
    if len(axes) != 1 or which is None or which.example is None:
        raise UnsupportedError(f"along {axes}")
    example, axis = which.example, axes[0]
    if example.dim() != 1 or example.dtype != torch.int64 or bool((example < 0).any()):
        raise UnsupportedError(f"by {example.dtype}")
    sizes = (*source.shape[:axis], *which.shape, *source.shape[axis + 1 :])
    index = places(sizes)
    return source.read_at(sizes, moved(index, axis, f"(long){which.at([index[axis]])}"))


def take(writer: Writer, result: Tensor, source: Value, indices: Sequence[Value | None]) -> Value:
    return Value(tuple(result.shape), _picked(writer.stored(source), indices).text)


def put(writer: Writer, result: Tensor, base: Value, indices: Sequence[Value | None], added: Value, _: Any) -> Value:
    """The base with slices added along one axis, at the positions in a vector of integers."""
    memory = writer.memory(result.shape)
    target = _picked(memory, indices)
    copy(writer, base, memory)
    copy(writer, added.broadcast(target.shape), target, "+=")
    return memory


def embedding(writer: Writer, result: Tensor, weight: Value, which: Value, *_: Any) -> Value:
    """The row of a table for each number."""
    *lead, last = places(result.shape)
    return Value(tuple(result.shape), writer.stored(weight).at([f"(long){which.at(lead)}", last]))


def embedding_backward(writer: Writer, result: Tensor, gradient: Value, which: Value, num_rows: int, *_: Any) -> Value:
    """The sum of the gradients for each row of the table."""
    memory = writer.memory(result.shape)
    writer.each(memory.shape, f"{memory.text} = 0.0f;")
    with writer.loops(gradient.shape, rows="rows") as index:
        writer.add(f"{memory.at([f'(long){which.at(index[:-1])}', index[-1]])} += {gradient.at(index)};")
    return memory
