"""Writes the text of a C function, with expressions for its tensors.

A tensor is a C expression for its elements, with a placeholder for the index along each axis. Most operations only
combine expressions. A result is written to memory if it is used more than once, or if its operation sums over an axis.
The longest axis is innermost, so that the C compiler can vectorise over it.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._blocks import STEP
from ._traced import UnsupportedError

Index = Sequence[str]


@dataclass(frozen=True)
class Value:
    shape: tuple[int, ...]
    text: str  # the element's expression, with `{0}`, `{1}` and so on for the index along each axis
    is_stored: bool = False  # whether the elements are in memory, so that they can be read several times
    is_scratch: bool = False  # whether C may write to that memory
    is_filled: bool = False  # whether zeros follow the rows of a block
    example: Tensor | None = None  # the tensor in the example run, once it is known

    def at(self, index: Index) -> str:
        return self.text.format(*index)

    def read_at(self, shape: Sequence[int], index: Index) -> "Value":
        """Return a tensor of a new shape, whose elements are those of this tensor at `index`."""
        return replace(self, shape=tuple(shape), text=self.at(index), example=None)

    def broadcast(self, shape: Sequence[int], *_: Any) -> "Value":
        """Add leading axes, and repeat along axes of size 1."""
        lead, own = len(shape) - len(self.shape), self.shape
        result = self.read_at(shape, ["0" if n == 1 else i for n, i in zip(own, places(shape)[lead:], strict=True)])
        return replace(result, is_scratch=self.is_scratch and own == tuple(shape[lead:]))

    def transposed(self, shape: Sequence[int], first: int = 0, second: int = -1) -> "Value":
        index, a, b = places(shape), first % len(shape), second % len(shape)
        index[a], index[b] = index[b], index[a]
        return self.read_at(shape, index)

    def permuted(self, shape: Sequence[int], axes: Sequence[int]) -> "Value":
        index = places(shape)
        for place, axis in zip(places(shape), axes, strict=True):
            index[axis % len(shape)] = place
        return self.read_at(shape, index)

    def flipped(self, shape: Sequence[int], axes: Sequence[int]) -> "Value":
        index = places(shape)
        for axis in axes:
            index[axis] = f"({shape[axis] - 1} - {index[axis]})"
        return self.read_at(shape, index)

    def sliced(self, shape: Sequence[int], axis: int, begin: int | None, _: Any = None, step: int = 1) -> "Value":
        axis, begin = axis % len(shape), begin or 0
        first, place = begin + self.shape[axis] if begin < 0 else begin, places(shape)[axis]
        return self.read_at(shape, moved(places(shape), axis, f"({first} + {scaled(place, step)})"))

    def selected(self, shape: Sequence[int], axis: int, number: int) -> "Value":
        index, axis = places(shape), axis % len(self.shape)
        return self.read_at(shape, [*index[:axis], str(number % self.shape[axis]), *index[axis:]])

    def reshaped(self, shape: Sequence[int], *_: Any) -> "Value":
        index, own = places(shape), ["0"] * len(self.shape)
        for from_axes, to_axes in _parts_of(self.shape, shape):
            position = "0"
            for axis in to_axes:
                position = index[axis] if position == "0" else f"(({position}) * {shape[axis]} + {index[axis]})"
            below = math.prod(self.shape[axis] for axis in from_axes)
            for axis in from_axes:
                below //= self.shape[axis]
                inside = position if axis == from_axes[0] else f"({position}) % {below * self.shape[axis]}"
                own[axis] = inside if below == 1 else f"({inside}) / {below}"
                own[axis] = own[axis] if own[axis] in index else f"({own[axis]})"
        return self.read_at(shape, own)


def _parts_of(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Split the axes of two shapes, except axes of size 1, into the smallest groups with equal numbers of elements."""
    from_axes, to_axes = ([axis for axis, n in enumerate(shape) if n > 1] for shape in (before, after))
    while from_axes:
        num_from = num_to = 1
        left, right = list[int](), list[int]()
        while not left or num_from != num_to:
            if num_from <= num_to:
                left.append(from_axes.pop(0))
                num_from *= before[left[-1]]
            else:
                right.append(to_axes.pop(0))
                num_to *= after[right[-1]]
        yield left, right


def places(shape: Sequence[int]) -> list[str]:
    return [f"{{{axis}}}" for axis in range(len(shape))]


def moved(index: Index, axis: int, text: str) -> list[str]:
    return [*index[:axis], text, *index[axis + 1 :]]


def scaled(text: str, factor: int) -> str:
    return text if factor == 1 else f"{factor} * ({text})"


def constant(number: float, shape: Sequence[int]) -> Value:
    return Value(tuple(shape), literal(number), is_stored=True)


def literal(number: float) -> str:
    number = float(number)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    return f"((real){number!r})"


def combined(text: str, shape: Sequence[int], *parts: Value) -> Value:
    """Make a tensor from a C expression; `{0}` and so on stand for elements of the broadcast `parts`."""
    return Value(tuple(shape), text.format(*(part.broadcast(shape).text for part in parts)))


def order(shape: Sequence[int]) -> list[int]:
    """Return the axes in the order of loops over them. The longest axis is last, so its loop is the innermost."""
    return sorted(range(len(shape)), key=lambda axis: shape[axis])


def in_memory(name: str, offset: int, shape: Sequence[int]) -> Value:
    """Return a tensor whose elements are in the array `name`. The first of them has the index `offset`."""
    strides, stride = [0] * len(shape), 1
    for axis in reversed(order(shape)):
        strides[axis], stride = stride, stride * shape[axis]
    axes = zip(places(shape), strides, shape, strict=True)
    terms = [scaled(place, step) for place, step, n in axes if n > 1]
    return Value(tuple(shape), f"{name}[{' + '.join([str(offset), *terms])}]", is_stored=True)


class Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.num_scratch = 0
        self.num_products = 0
        self.size = 0  # largest number of rows in a block; 0 outside of the loop over blocks
        self._count = 0

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def add(self, line: str) -> None:
        self.lines.append(line)

    def memory(self, shape: Sequence[int]) -> Value:
        value = replace(in_memory("w", self.num_scratch, shape), is_scratch=True)
        self.num_scratch += -(-math.prod(shape) // 8) * 8  # whole cache lines
        return value

    @contextmanager
    def loops(
        self, shape: Sequence[int], axes: Sequence[int] | None = None, *, pragma: str = "", rows: str = "room"
    ) -> Iterator[list[str]]:
        """Write loops over `axes`, by default all axes, and yield the index of an element inside the loops.

        `rows` names the C variable at which a loop over the rows of a block ends. The variable "rows" is the number of
        rows in the block, and "room" is this number rounded up to a multiple of `STEP`.
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

    def each(self, shape: Sequence[int], line: str) -> None:
        """Write loops over all axes around a line with placeholders for the indices."""
        # loops of a known length are vectorised without a pragma
        is_known = self.size == 0 or self.size != max(shape, default=0)
        with self.loops(shape, pragma="" if is_known else "omp simd") as index:
            self.add(line.format(*index))

    def fill(self, value: Value, axis: int) -> bool:
        """Set the elements after the last row of a block to zero if possible. Return whether they are zero."""
        if not value.is_scratch:
            return value.is_filled
        self.add("if (rows < room) {")
        with self.loops(value.shape, [other for other in order(value.shape) if other != axis]) as index:
            self.add('_Pragma("omp simd")')
            self.add(f"for (long last = room - {STEP}; last < room; ++last) {{")
            element = value.at(moved(index, axis, "last"))
            self.add(f"{element} = where_(last < rows, {element}, 0.0f);")
            self.add("}")
        self.add("}")
        return True

    def stored(self, value: Value) -> Value:
        """Store the value in memory, or in a variable if it is one number."""
        if value.is_stored:
            return value
        if math.prod(value.shape) == 1:
            name = self.name("s")
            self.add(f"const real {name} = {value.at(['0'] * len(value.shape))};")
            return Value(value.shape, name, is_stored=True)
        result = self.memory(value.shape)
        self.each(value.shape, f"{result.text} = {value.text};")
        return result

    def sum(self, value: Value, axes: Sequence[int]) -> Value:
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(value.shape))
        inner = [axis for axis in order(value.shape) if axis in axes and value.shape[axis] > 1]
        # a short sum is one expression, so that the loop around it can run over the longest axis
        if len(inner) == 1 and value.shape[inner[0]] <= 16 and value.shape[inner[0]] != self.size:
            (axis,) = inner
            parts = [value.at(moved(places(shape), axis, str(i))) for i in range(value.shape[axis])]
            return self.stored(Value(shape, f"({' + '.join(parts)})"))
        result = self.memory(shape)
        with self.loops(shape) as index:
            name = self.name("sum")
            self.add(f"real {name} = 0.0f;")
            with self.reduction(value.shape, inner, [name]) as own:
                full = [own[axis] if axis in axes else i for axis, i in enumerate(index)]
                self.add(f"{name} += {value.at(full)};")
            self.add(f"{result.at(index)} = {name};")
        return result

    @contextmanager
    def reduction(
        self, shape: Sequence[int], axes: Sequence[int], names: Sequence[str], rows: str = "rows"
    ) -> Iterator[list[str]]:
        """Write loops that add terms to variables, in an order that the compiler chooses."""
        if not axes:
            yield ["0"] * len(shape)
            return
        pragma = f"omp simd reduction(+ : {', '.join(names)})"
        with (
            self.loops(shape, axes[:-1], rows=rows) as outer,
            self.loops(shape, axes[-1:], pragma=pragma, rows=rows) as inner,
        ):
            yield [b if axis == axes[-1] else a for axis, (a, b) in enumerate(zip(outer, inner, strict=True))]


Operation = Callable[..., Any]
"""A function whose arguments are the writer, a tensor like the result, and the operation's own arguments."""


def elementwise(text: str, *, is_slow: bool = False) -> Operation:
    """Make an operation from a C expression; `{0}` and so on stand for the arguments."""
    num_read = 1 + max(int(number) for number in re.findall(r"{(\d)}", text))

    def write(writer: Writer, result: Tensor, *arguments: Any) -> Value:
        if not result.is_floating_point() and result.dtype != torch.bool:
            raise UnsupportedError(f"of {result.dtype}")
        own = [part if isinstance(part, Value) else constant(part, ()) for part in arguments[:num_read]]
        own = [writer.stored(part) if text.count(f"{{{i}}}") > 1 else part for i, part in enumerate(own)]
        value = combined(f"({text})", result.shape, *own)
        return writer.stored(value) if is_slow else value

    return write


def view(of: Callable[..., Value]) -> Operation:
    """Make an operation from a method of :class:`Value` that reorders or repeats elements."""

    def write(writer: Writer, result: Tensor, source: Value, *others: Any) -> Value:
        return of(source, result.shape, *others)

    return write
