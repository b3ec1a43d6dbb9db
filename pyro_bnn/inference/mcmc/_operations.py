"""Table of the torch operations that can be written in C. A density with any other operation runs in torch.

The entry of an elementwise operation is C text, with `{0}`, `{1}` and so on for the arguments. Other entries are
functions. Their arguments are the writer, a tensor like the result, and the operation's own arguments, in which a
:class:`Value` replaces each tensor.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._blocks import VALUELESS
from ._products import convolution, product
from ._traced import UnsupportedError
from ._writer import Operation, Value, Writer, combined, constant, elementwise, moved, places, view

aten = torch.ops.aten

ELEMENTWISE = {
    aten.add: "{0} + {1}",
    aten.sub: "{0} - {1}",
    aten.rsub: "{1} - {0}",
    aten.mul: "{0} * {1}",
    aten.div: "{0} / {1}",
    aten.neg: "-{0}",
    aten.addcmul: "{0} + {1} * {2}",
    aten.abs: "fabs({0})",
    aten.sgn: "sign_({0})",
    aten.sign: "sign_({0})",
    aten.eq: "{0} == {1} ? 1.0f : 0.0f",
    aten.ne: "{0} != {1} ? 1.0f : 0.0f",
    aten.lt: "{0} < {1} ? 1.0f : 0.0f",
    aten.le: "{0} <= {1} ? 1.0f : 0.0f",
    aten.gt: "{0} > {1} ? 1.0f : 0.0f",
    aten.ge: "{0} >= {1} ? 1.0f : 0.0f",
    aten.where: "where_({0} != 0.0f, {1}, {2})",
    aten.masked_fill: "where_({1} != 0.0f, {2}, {0})",
    aten.masked_fill_: "where_({1} != 0.0f, {2}, {0})",
    aten.relu: "relu_({0})",
    aten.threshold_backward: "where_({1} <= {2}, 0.0f, {0})",
    aten.tanh_backward: "{0} * (1.0f - {1} * {1})",
    aten.sigmoid_backward: "{0} * (1.0f - {1}) * {1}",
    aten.leaky_relu: "where_({0} > 0.0f, {0}, {1} * {0})",
    aten.leaky_relu_backward: "where_({1} > 0.0f, {0}, {2} * {0})",
    aten.hardtanh: "where_({0} < {1}, {1}, where_({0} > {2}, {2}, {0}))",
    aten.hardtanh_backward: "where_({1} <= {2} || {1} >= {3}, 0.0f, {0})",
}
"""Fast elementwise operations, whose results are computed anew wherever they are read."""

SLOW = {
    aten.sqrt: "sqrt({0})",
    aten.rsqrt: "1.0f / sqrt({0})",
    aten.reciprocal: "1.0f / {0}",
    aten.exp: "exp_({0})",
    aten.expm1: "expm1_({0})",
    aten.log: "log_({0})",
    aten.log1p: "log1p_({0})",
    aten.tanh: "tanh_({0})",
    aten.sin: "sin({0})",
    aten.cos: "cos({0})",
    aten.sigmoid: "sigmoid_({0})",
    aten.erf: "erf({0})",
    aten.lgamma: "lgamma({0})",
    aten.xlogy: "xlogy_({0}, {1})",
    aten.log_sigmoid_backward: "{0} * sigmoid_(-{1})",
    aten.softplus: "softplus_({0})",
    aten.softplus_backward: "{0} * softplus_slope_({1})",
    aten.binary_cross_entropy_with_logits: "-({1} * log_sigmoid_({0}) + (1.0f - {1}) * log_sigmoid_(-{0}))",
    aten.silu: "{0} * sigmoid_({0})",
    aten.silu_backward: "{0} * silu_slope_({1})",
    aten.gelu: "{0} * normal_cdf_({0})",
    aten.gelu_backward: "{0} * gelu_slope_({1})",
    aten.elu: "where_({0} > 0.0f, {2} * {0}, {1} * {2} * expm1_({3} * {0}))",
    aten.elu_backward: "{0} * {2} * where_({5} > 0.0f, 1.0f, {1} * {3} * exp_({3} * {5}))",
    aten.celu: "where_({0} > 0.0f, {0}, {1} * expm1_({0} / {1}))",
}
"""Slow elementwise operations, whose results are stored."""

REQUIRED: dict[Any, dict[int, object]] = {
    aten.softplus: {1: 1, 2: 20},
    aten.softplus_backward: {2: 1, 3: 20},
    aten.binary_cross_entropy_with_logits: {2: None, 3: None, 4: 0},
    aten.elu_backward: {4: False},
    aten.leaky_relu_backward: {3: False},
    aten.index_put: {3: True},
    aten.embedding_dense_backward: {3: -1, 4: False},
}
"""For each operation, the values that its C code requires of some arguments, by the index of the argument."""

POWERS: dict[object, str] = {
    -2.0: "1.0f / ({0} * {0})",
    -1.0: "1.0f / {0}",
    -0.5: "1.0f / sqrt({0})",
    0.0: "1.0f",
    0.5: "sqrt({0})",
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
}


def _power(writer: Writer, result: Tensor, value: Value, exponent: object) -> Value:
    if exponent not in POWERS:
        raise UnsupportedError(f"to the power {exponent}")
    value = value if exponent in (0.0, 1.0) else writer.stored(value)
    return combined(f"({POWERS[exponent]})", value.shape, value)


def _filled(number: float) -> Operation:
    return lambda writer, result, *_: constant(number, result.shape)


def _log_sigmoid(writer: Writer, result: Any, source: Value) -> list[Value]:
    """Write the logarithm of the sigmoid. Torch's operation has a second result, which nothing uses."""
    return [writer.stored(combined("log_sigmoid_({0})", source.shape, source)), source]


def _sum(writer: Writer, result: Tensor, value: Value, axes: Any = None, *_: Any) -> Value:
    if not result.is_floating_point():
        raise UnsupportedError(f"of {result.dtype}")
    num_axes = len(value.shape)
    return writer.sum(value, [axis % num_axes for axis in axes or range(num_axes)]).reshaped(result.shape)


def _logsumexp(writer: Writer, result: Tensor, value: Value, axes: Sequence[int], _: bool) -> Value:
    if len(axes) != 1:
        raise UnsupportedError(f"over {list(axes)}")
    return _log_total(writer, writer.stored(value), axes[0] % len(value.shape)).reshaped(result.shape)


def _log_softmax(writer: Writer, result: Tensor, value: Value, axis: int, _: bool) -> Value:
    value = writer.stored(value)
    return combined("({0} - {1})", value.shape, value, _log_total(writer, value, axis % result.dim()))


def _log_softmax_backward(writer: Writer, result: Tensor, gradient: Value, output: Value, axis: int, _: Any) -> Value:
    gradient, output = writer.stored(gradient), writer.stored(output)
    total = writer.sum(gradient, [axis % result.dim()])
    return writer.stored(combined("({0} - exp_({1}) * {2})", output.shape, gradient, output, total))


LONGEST_TOTAL = 64  # heuristic: longest axis over which exponentials are summed; each element takes a line of C


def _log_total(writer: Writer, value: Value, axis: int) -> Value:
    """Write the logarithm of the sum of exponentials along one axis, whose size becomes 1."""
    if value.shape[axis] > LONGEST_TOTAL:
        raise UnsupportedError(f"of {value.shape[axis]} elements")
    largest = _largest(writer, value, axis)
    terms = combined("exp_({0} - {1})", value.shape, value, largest)
    total = writer.sum(writer.stored(terms), [axis])
    return writer.stored(combined("(log_({0}) + {1})", total.shape, total, largest))


def _largest(writer: Writer, value: Value, axis: int) -> Value:
    """Write the maxima along an axis, whose size becomes 1. Infinite maxima become 0, as in `logsumexp`."""
    result = writer.memory([1 if a == axis else n for a, n in enumerate(value.shape)])
    with writer.loops(result.shape) as index:
        name = writer.name("max")
        writer.add(f"real {name} = {value.at(index)};")
        for number in range(1, value.shape[axis]):
            other = value.at(moved(index, axis, str(number)))
            writer.add(f"{name} = {other} > {name} ? {other} : {name};")
        writer.add(f"{result.at(index)} = {name} < INFINITY && {name} > -INFINITY ? {name} : 0.0f;")
    return result


# --- operations that split, join, select and write elements ---


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
    shape, axis = tuple(result.shape), axis % result.dim()
    index = places(shape)
    inside = source.at([*index[:axis], *index[axis + 1 :]])
    return Value(
        shape, inside if shape[axis] == 1 else f"where_({index[axis]} == {number % shape[axis]}, {inside}, 0.0f)"
    )


def slice_backward(
    writer: Writer, result: Tensor, source: Value, _: Any, axis: int, begin: int, __: Any, step: int
) -> Value:
    """Return a tensor with `source` in a slice and zeros elsewhere."""
    memory = writer.memory(result.shape)
    writer.each(memory.shape, f"{memory.text} = 0.0f;")
    copy(writer, source, memory.sliced(source.shape, axis, begin, None, step))
    return memory


def gather(writer: Writer, result: Tensor, source: Value, axis: int, which: Value, *_: Any) -> Value:
    source, axis = writer.stored(source), axis % len(source.shape)
    return Value(tuple(result.shape), source.at(moved(places(result.shape), axis, f"(long){which.text}")))


def scatter_add(writer: Writer, result: Tensor, base: Value, axis: int, which: Value, source: Value) -> Value:
    """Return `base` with a number from `source` added in each row, to the element at the index `which`."""
    shape, axis = tuple(result.shape), axis % result.dim()
    if which.shape != (*shape[:axis], 1, *shape[axis + 1 :]):
        raise UnsupportedError(f"of {which.shape}")
    row = moved(places(shape), axis, "0")
    return Value(
        shape, f"({base.text} + where_((long){which.at(row)} == {places(shape)[axis]}, {source.at(row)}, 0.0f))"
    )


def _picked(source: Value, indices: Sequence[Value | None]) -> Value:
    """Return slices along one axis. One of `indices` has the positions of the slices, and the others are None."""
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
    memory = writer.memory(result.shape)
    target = _picked(memory, indices)
    copy(writer, base, memory)
    copy(writer, added.broadcast(target.shape), target, "+=")
    return memory


def embedding(writer: Writer, result: Tensor, weight: Value, which: Value, *_: Any) -> Value:
    *lead, last = places(result.shape)
    return Value(tuple(result.shape), writer.stored(weight).at([f"(long){which.at(lead)}", last]))


def embedding_backward(writer: Writer, result: Tensor, gradient: Value, which: Value, num_rows: int, *_: Any) -> Value:
    memory = writer.memory(result.shape)
    writer.each(memory.shape, f"{memory.text} = 0.0f;")
    with writer.loops(gradient.shape, rows="rows") as index:
        writer.add(f"{memory.at([f'(long){which.at(index[:-1])}', index[-1]])} += {gradient.at(index)};")
    return memory


# --- the table ---


def _requiring(operation: Operation, required: dict[int, object]) -> Operation:

    def write(writer: Writer, result: Any, *arguments: Any) -> Any:
        if any(arguments[number] != value for number, value in required.items()):
            raise UnsupportedError(f"with {[arguments[number] for number in required]}")
        return operation(writer, result, *arguments)

    return write


OPERATIONS: dict[Any, Operation] = {
    **{name: elementwise(text) for name, text in ELEMENTWISE.items()},
    **{name: elementwise(text, is_slow=True) for name, text in SLOW.items()},
    **dict.fromkeys(VALUELESS, lambda writer, result, *arguments: constant(arguments[-1], result.shape)),
    **dict.fromkeys((aten.zeros, aten.zeros_like, aten.new_zeros), _filled(0.0)),
    **dict.fromkeys((aten.ones, aten.ones_like, aten.new_ones), _filled(1.0)),
    **dict.fromkeys((aten.expand, aten.alias, aten.detach, aten.clone, aten.lift_fresh_copy), view(Value.broadcast)),
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.squeeze, aten.unsqueeze), view(Value.reshaped)),
    **dict.fromkeys((aten.transpose, aten.t), view(Value.transposed)),
    aten.permute: view(Value.permuted),
    aten.flip: view(Value.flipped),
    aten.slice: view(Value.sliced),
    aten.select: view(Value.selected),
    aten.split: split,
    aten.split_with_sizes: split,
    aten.unbind: unbind,
    operator.getitem: lambda writer, result, values, number: values[number],
    aten.stack: stack,
    aten.cat: cat,
    aten.select_backward: select_backward,
    aten.slice_backward: slice_backward,
    aten.gather: gather,
    aten.scatter_add: scatter_add,
    aten.index: take,
    aten.index_put: put,
    aten.embedding: embedding,
    aten.embedding_dense_backward: embedding_backward,
    aten.pow: _power,
    aten.log_sigmoid_forward: _log_sigmoid,
    aten.sum: _sum,
    aten.logsumexp: _logsumexp,
    aten._log_softmax: _log_softmax,
    aten._log_softmax_backward_data: _log_softmax_backward,
    **dict.fromkeys((aten.mm, aten.bmm, aten.mv, aten.addmm, aten.baddbmm), product),
    aten.convolution: convolution,
}
OPERATIONS |= {name: _requiring(OPERATIONS[name], required) for name, required in REQUIRED.items()}
