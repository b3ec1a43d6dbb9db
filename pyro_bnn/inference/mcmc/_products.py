"""Writes matrix products and convolutions in C, as sums of products."""

import itertools
import math
from collections.abc import Callable, Sequence

from torch import Tensor

from ._traced import UnsupportedError
from ._writer import Index, Value, Writer, constant, moved, order, places, scaled

NUM_TERMS = 8  # heuristic: number of terms that one loop over the elements of a result adds to each element
NUM_SUMS = 10  # heuristic: sums in one loop over their terms, which read a number that they share only once
MOST_TERMS = 256  # heuristic: in a convolution without an axis of rows, sums of more terms become loops

Term = Callable[[Index, Index], str]
"""Function that returns the C code of a term, given the index of a sum and the index of the term in this sum."""


def product(writer: Writer, result: Tensor, *arguments: Value) -> Value:
    """Write ``left @ right`` for two arguments, or ``added + left @ right`` for three."""
    *first, left, right = arguments
    left, right, shape = writer.stored(left), writer.stored(right), tuple(result.shape)
    if len(right.shape) == 1:
        column = right.reshaped((*right.shape, 1))
        return _multiplied(writer, left, column, constant(0.0, (*shape, 1)), (*shape, 1)).reshaped(shape)
    added = (writer.stored(first[0]) if first else constant(0.0, ())).broadcast(shape)
    return _multiplied(writer, left, right, added, shape)


def _multiplied(writer: Writer, a: Value, b: Value, added: Value, shape: tuple[int, ...]) -> Value:
    num_terms, result = a.shape[-1], writer.memory(shape)
    writer.num_products += math.prod(shape) * num_terms

    def term(index: Index, own: Index) -> str:
        *lead, m, n = index
        return f"{a.at([*lead, m, *own])} * {b.at([*lead, *own, n])}"

    if num_terms > max(shape):
        rows = "rows"
        if num_terms == writer.size:  # zeros fill up the last step of the loops over rows
            is_filled = [writer.fill(a, len(a.shape) - 1), writer.fill(b, len(b.shape) - 2)]
            rows = "room" if all(is_filled) else "rows"
        _add_along(writer, term, (num_terms,), added, result, rows)
    elif num_terms == writer.size:
        _add_rows(writer, term, added, result)
    else:
        _add_across(writer, term, (num_terms,), added, result)
    return result


def convolution(
    writer: Writer,
    result: Tensor,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    _: object,
    num_groups: int,
) -> Value:
    """Write a convolution without padding. `_decompositions.py` replaces all others."""
    if bias is not None or any(padding) or is_transposed or num_groups != 1:  # only transposed ones get here
        raise UnsupportedError("that is transposed")
    x, weight = writer.stored(x), writer.stored(weight)
    memory, reduced = writer.memory(result.shape), weight.shape[1:]
    writer.num_products += math.prod(memory.shape) * math.prod(reduced)

    def term(index: Index, own: Index) -> str:
        (row, to, *spatial), (channel, *inside) = index, own
        steps = zip(spatial, stride, inside, dilation, strict=True)
        at = [f"({scaled(i, step)} + {scaled(k, gap)})" for i, step, k, gap in steps]
        return f"{x.at([row, channel, *at])} * {weight.at([to, channel, *inside])}"

    is_long = writer.size not in memory.shape and math.prod(reduced) > MOST_TERMS
    if writer.size in reduced or max(reduced) > max(memory.shape) or is_long:
        _add_along(writer, term, reduced, constant(0.0, memory.shape), memory, "rows")
    else:
        _add_across(writer, term, reduced, constant(0.0, memory.shape), memory)
    return memory


def _add_along(writer: Writer, term: Term, reduced: Sequence[int], added: Value, result: Value, rows: str) -> None:
    """Write loops over the terms of sums. Each loop computes some elements of the result."""
    *outer, inner = order(result.shape)
    length = result.shape[inner]
    count = next((n for n in range(NUM_SUMS, NUM_SUMS // 2, -1) if length % n == 0), NUM_SUMS)
    for begin, size in ((0, count), (length // count * count, length % count)):
        if size == 0 or length - begin < size:
            continue
        with writer.loops(result.shape, outer) as index:
            first, names = writer.name("i"), [writer.name("sum") for _ in range(size)]
            end = begin + (length - begin) // size * size
            writer.add(f"for (long {first} = {begin}; {first} < {end}; {first} += {size}) {{")
            elements = [moved(index, inner, f"({first} + {n})") for n in range(size)]
            for name, element in zip(names, elements, strict=True):
                writer.add(f"real {name} = {added.at(element)};")
            with writer.reduction(reduced, order(reduced), names, rows) as own:
                for name, element in zip(names, elements, strict=True):
                    writer.add(f"{name} += {term(element, own)};")
            for name, element in zip(names, elements, strict=True):
                writer.add(f"{result.at(element)} = {name};")
            writer.add("}")


def _add_terms(writer: Writer, term: Term, terms: Sequence[Index], before: Value, result: Value) -> None:
    products = [term(places(result.shape), own) for own in terms]
    writer.each(result.shape, f"{result.text} = {' + '.join([before.text, *products])};")


def _add_across(writer: Writer, term: Term, reduced: Sequence[int], added: Value, result: Value) -> None:
    """Write loops over the elements of the result. Each loop adds some terms to every element."""
    terms = [[str(k) for k in own] for own in itertools.product(*map(range, reduced))]
    for begin in range(0, len(terms), NUM_TERMS):
        _add_terms(writer, term, terms[begin : begin + NUM_TERMS], result if begin else added, result)


def _add_rows(writer: Writer, term: Term, added: Value, result: Value) -> None:
    """Write a loop over the rows of a block. Each row adds one term to every element of the result."""
    _add_terms(writer, term, [], added, result)
    row = writer.name("row")
    writer.add(f"long {row} = 0;")
    for size in (NUM_TERMS, 1):
        writer.add(f"for (; {row} + {size} <= rows; {row} += {size}) {{")
        _add_terms(writer, term, [[f"({row} + {k})"] for k in range(size)], result, result)
        writer.add("}")
