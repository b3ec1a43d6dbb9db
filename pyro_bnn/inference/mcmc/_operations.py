"""How torch's operations are written in C; see `_emit.py`."""

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ._blocks import axis_of
from ._emit import Operation, Value, Writer, broadcast, constant, is_view, order, without
from ._indexing import (
    Values,
    arguments,
    cat,
    expand,
    gather,
    item,
    permuted,
    put,
    reshape,
    same,
    scatter_add,
    select_backward,
    selected,
    shape_of,
    slice_backward,
    sliced,
    split,
    squeeze,
    stack,
    take,
    transposed,
    unbind,
    unsqueezed,
    view,
)
from ._traced import UnsupportedError

aten = torch.ops.aten


def _value(argument: Any, values: Values) -> Value:
    """The value of an argument, which is a node or a number."""
    if isinstance(argument, Node):
        value: Value = values[argument]
        return value
    return constant(argument, ())


def _elementwise(text: str, *, is_slow: bool = False, usual: Sequence[float] = ()) -> Operation:
    """An operation on elements, `{0}`, `{1}` and so on in the text; what is slow is computed once, and in a loop.

    Arguments that are left out at the end have their usual values.
    """
    num_read = 1 + max(int(number) for number in re.findall(r"{(\d)}", text))

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Value:
        if node.kwargs:
            raise UnsupportedError(f"{node.target} with {node.kwargs}")
        shape = shape_of(node, results)
        if not results[node].is_floating_point() and results[node].dtype != torch.bool:
            raise UnsupportedError(f"{node.target} of {results[node].dtype}")
        given = arguments(node)[:num_read]
        own = [_value(argument, values) for argument in (*given, *usual[len(given) - num_read + len(usual) :])]
        own = [writer.stored(part) if text.count(f"{{{i}}}") > 1 else part for i, part in enumerate(own)]
        parts = [broadcast(part, shape) for part in own]
        value = Value(shape, lambda index: f"({text.format(*(part.at(index) for part in parts))})")
        return writer.stored(value) if is_slow else value

    return write


def _power(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """A power with a small integer or half-integer exponent."""
    texts = {0.0: "1.0", 1.0: "{0}", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 0.5: "sqrt({0})", -1.0: "1.0 / {0}"}
    texts |= {4.0: "({0} * {0}) * ({0} * {0})", -2.0: "1.0 / ({0} * {0})", -0.5: "1.0 / sqrt({0})"}
    source, exponent = arguments(node)
    if exponent not in texts:
        raise UnsupportedError(f"power {exponent}")
    value = values[source] if exponent in (0.0, 1.0) else writer.stored(values[source])
    return Value(value.shape, lambda index: f"({texts[float(exponent)].format(value.at(index))})")


def _full(number: float | None) -> Operation:
    """A tensor of equal numbers; None is the last of the positional arguments."""

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Value:
        return constant(arguments(node)[-1] if number is None else number, shape_of(node, results))

    return write


def _scalar(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    """A number as a tensor."""
    return constant(arguments(node)[0], ())


def _with_usual(operation: Operation, *usual: object) -> Operation:
    """An operation whose further arguments must have their usual values."""

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Any:
        own = arguments(node)
        num_values = sum(isinstance(argument, Node) for argument in own)
        if own[num_values:] != usual[: len(own) - num_values]:
            raise UnsupportedError(f"{node.target} with {own[num_values:]}")
        return operation(writer, node, values, results)

    return write


def _of_argument(operation: Operation) -> Operation:
    """A derivative that a flag tells whether it is given the function's argument or, in place, its result."""

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Any:
        if any(argument is True for argument in arguments(node)):
            raise UnsupportedError(f"{node.target} of a result")
        return operation(writer, node, values, results)

    return write


def _log_sigmoid(writer: Writer, node: Node, values: Values, results: Values) -> list[Value]:
    """With a second result, which the backward pass does without."""
    source = values[arguments(node)[0]]
    return [writer.stored(Value(source.shape, lambda index: f"log_sigmoid_({source.at(index)})")), source]


def _sum(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    value = values[arguments(node)[0]]
    given = (arguments(node)[1] if len(arguments(node)) > 1 else None) or range(len(value.shape))
    if node.kwargs or not results[arguments(node)[0]].is_floating_point():
        raise UnsupportedError(f"{node.target} with {node.kwargs}")
    axes = [axis_of(axis, len(value.shape)) for axis in given]
    return writer.sum(value, axes, bool(arguments(node)[2]) if len(arguments(node)) > 2 else False)


def _in_place(operation: Operation) -> Operation:
    """An operation that overwrites its first argument, which nothing else may read."""

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Any:
        source = arguments(node)[0]
        if source.op != "call_function" or is_view(source) or len(source.users) > 1:
            raise UnsupportedError(f"{node.target} of what is read elsewhere")
        return operation(writer, node, values, results)

    return write


def _logsumexp(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    value = writer.stored(values[arguments(node)[0]])
    axes = [axis_of(axis, len(value.shape)) for axis in arguments(node)[1]]
    if len(axes) != 1:
        raise UnsupportedError(f"{node.target} over {axes}")
    result = _log_total(writer, node, value, axes[0])
    return result if len(arguments(node)) > 2 and arguments(node)[2] else without(result, axes)


def _softmax_in_logs(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    value = writer.stored(values[arguments(node)[0]])
    total = broadcast(_log_total(writer, node, value, axis_of(arguments(node)[1], len(value.shape))), value.shape)
    return Value(value.shape, lambda index: f"({value.at(index)} - {total.at(index)})")


def _softmax_slope(writer: Writer, node: Node, values: Values, results: Values) -> Value:
    gradient, result = (writer.stored(values[argument]) for argument in arguments(node)[:2])
    axis = axis_of(arguments(node)[2], len(result.shape))
    total = broadcast(writer.sum(gradient, [axis], keeps=True), result.shape)
    return writer.stored(
        Value(result.shape, lambda index: f"({gradient.at(index)} - exp_({result.at(index)}) * {total.at(index)})")
    )


def _log_total(writer: Writer, node: Node, value: Value, axis: int) -> Value:
    """The logarithm of the sum of exponentials over one short axis, which stays with size 1."""
    if value.shape[axis] > LONGEST_TOTAL:
        raise UnsupportedError(f"{node.target} of {value.shape[axis]} elements")
    largest = broadcast(_largest(writer, value, axis), value.shape)
    terms = Value(value.shape, lambda index: f"exp_({value.at(index)} - {largest.at(index)})")
    total = writer.sum(writer.stored(terms), [axis], keeps=True)
    shift = _largest_of(largest, total.shape)
    return writer.stored(Value(total.shape, lambda index: f"(log_({total.at(index)}) + {shift.at(index)})"))


LONGEST_TOTAL = 64
"""Heuristic: elements of an axis whose exponentials are added; all comparisons are written out one by one."""


def _largest_of(value: Value, shape: tuple[int, ...]) -> Value:
    """The value, which is the same along some axes, with these of size 1."""
    return Value(shape, value.at, value.is_stored)


def _largest(writer: Writer, value: Value, axis: int) -> Value:
    """The largest along an axis, which stays with size 1; 0 where it is infinite, as torch's `logsumexp` has it."""
    shape = tuple(1 if a == axis else n for a, n in enumerate(value.shape))
    result = writer.memory(shape)
    with writer.loops(shape) as index:
        name = writer.name("max")
        writer.add(f"double {name} = {value.at(index)};")
        for number in range(1, value.shape[axis]):
            other = value.at([*index[:axis], str(number), *index[axis + 1 :]])
            writer.add(f"{name} = {other} > {name} ? {other} : {name};")
        writer.add(f"{result.at(index)} = {name} < INFINITY && {name} > -INFINITY ? {name} : 0.0;")
    return result


def _product(has_sum: bool) -> Operation:
    """A matrix product, of matrices, of a batch of one each, or with a vector; with something to add, or without."""

    def write(writer: Writer, node: Node, values: Values, results: Values) -> Value:
        if node.kwargs:
            raise UnsupportedError(f"{node.target} with {node.kwargs}")
        first, a, b = arguments(node) if has_sum else (None, *arguments(node))
        left, right = (writer.stored(values[argument]) for argument in (a, b))
        shape = shape_of(node, results)
        if len(shape) == 3 and shape[0] != 1:
            raise UnsupportedError(f"{node.target} of {shape}")
        if len(right.shape) == 1:
            column = Value((*right.shape, 1), lambda index: right.at(index[:1]), right.is_stored)
            nothing = constant(0.0, (*shape, 1))
            return without(_multiplied(writer, left, column, nothing, (*shape, 1)), [1])
        added = broadcast(writer.stored(values[first]) if first is not None else constant(0.0, ()), shape)
        return _multiplied(writer, left, right, added, shape)

    return write


BLOCK = 8
"""Terms of a sum that are added in one pass over the longest axis; heuristic."""


def _multiplied(writer: Writer, a: Value, b: Value, added: Value, shape: tuple[int, ...]) -> Value:
    lead, num_terms = ["0"] * (len(shape) - 2), a.shape[-1]
    writer.num_products += shape[-2] * shape[-1] * num_terms
    result = writer.memory(shape)
    if num_terms > max(shape):
        with writer.loops(shape) as index:
            name, (m, n) = writer.name("sum"), index[-2:]
            writer.add(f"double {name} = {added.at(index)};")
            with writer.reduction((num_terms,), [0], name) as (k,):
                writer.add(f"{name} += {a.at([*lead, m, k])} * {b.at([*lead, k, n])};")
            writer.add(f"{result.at(index)} = {name};")
        return result
    *outer, inner = order(shape)
    for begin in range(0, num_terms, BLOCK):
        with writer.loops(shape, [*outer, inner]) as index:
            terms = [
                f"{a.at([*lead, index[-2], str(k)])} * {b.at([*lead, str(k), index[-1]])}"
                for k in range(begin, min(begin + BLOCK, num_terms))
            ]
            before = result.at(index) if begin else added.at(index)
            writer.add(f"{result.at(index)} = {' + '.join([before, *terms])};")
    return result


MASKED_FILL = _elementwise("where_({1} != 0.0, {2}, {0})")

OPERATIONS: dict[object, Operation] = {
    **dict.fromkeys((aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default), same),
    aten.expand.default: expand,
    aten.unsqueeze.default: view(unsqueezed),
    **dict.fromkeys((aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default), squeeze),
    **dict.fromkeys((aten.transpose.int, aten.t.default), view(transposed)),
    aten.permute.default: view(permuted),
    **dict.fromkeys((aten.view.default, torch.ops.aten._unsafe_view.default), reshape),
    aten.slice.Tensor: view(sliced),
    aten.select.int: view(selected),
    **dict.fromkeys((aten.split_with_sizes.default, aten.split.Tensor), split),
    operator.getitem: item,
    aten.cat.default: cat,
    aten.stack.default: stack,
    aten.unbind.int: unbind,
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
    **dict.fromkeys((aten.zeros_like.default, aten.new_zeros.default, aten.zeros.default), _full(0.0)),
    **dict.fromkeys((aten.ones_like.default, aten.new_ones.default, aten.ones.default), _full(1.0)),
    **dict.fromkeys((aten.full.default, aten.full_like.default, aten.new_full.default), _full(None)),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _elementwise("{0} + {1}")),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _elementwise("{0} - {1}")),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), _elementwise("{1} - {0}")),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _elementwise("{0} * {1}")),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _elementwise("{0} / {1}")),
    **dict.fromkeys((aten.eq.Scalar, aten.eq.Tensor), _elementwise("{0} == {1} ? 1.0 : 0.0")),
    **dict.fromkeys((aten.ne.Scalar, aten.ne.Tensor), _elementwise("{0} != {1} ? 1.0 : 0.0")),
    **dict.fromkeys((aten.lt.Scalar, aten.lt.Tensor), _elementwise("{0} < {1} ? 1.0 : 0.0")),
    **dict.fromkeys((aten.le.Scalar, aten.le.Tensor), _elementwise("{0} <= {1} ? 1.0 : 0.0")),
    **dict.fromkeys((aten.gt.Scalar, aten.gt.Tensor), _elementwise("{0} > {1} ? 1.0 : 0.0")),
    **dict.fromkeys((aten.ge.Scalar, aten.ge.Tensor), _elementwise("{0} >= {1} ? 1.0 : 0.0")),
    aten.where.self: _elementwise("where_({0} != 0.0, {1}, {2})"),
    aten.masked_fill.Scalar: MASKED_FILL,
    aten.masked_fill_.Scalar: _in_place(MASKED_FILL),
    aten.neg.default: _elementwise("-{0}"),
    **dict.fromkeys((aten.sgn.default, aten.sign.default), _elementwise("sign_({0})")),
    aten.scalar_tensor.default: _scalar,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _elementwise("{0} * sigmoid_(-{1})", is_slow=True),
    aten.softplus.default: _with_usual(_elementwise("softplus_({0})", is_slow=True), 1.0, 20.0),
    aten.softplus_backward.default: _with_usual(_elementwise("{0} * softplus_slope_({1})", is_slow=True), 1.0, 20.0),
    aten.binary_cross_entropy_with_logits.default: _with_usual(
        _elementwise("-({1} * log_sigmoid_({0}) + (1.0 - {1}) * log_sigmoid_(-{0}))", is_slow=True), None, None, 0
    ),
    aten.abs.default: _elementwise("fabs({0})"),
    aten.sqrt.default: _elementwise("sqrt({0})", is_slow=True),
    aten.rsqrt.default: _elementwise("1.0 / sqrt({0})", is_slow=True),
    aten.reciprocal.default: _elementwise("1.0 / {0}", is_slow=True),
    aten.exp.default: _elementwise("exp_({0})", is_slow=True),
    aten.expm1.default: _elementwise("expm1_({0})", is_slow=True),
    aten.log.default: _elementwise("log_({0})", is_slow=True),
    aten.log1p.default: _elementwise("log1p_({0})", is_slow=True),
    aten.tanh.default: _elementwise("tanh_({0})", is_slow=True),
    aten.sigmoid.default: _elementwise("sigmoid_({0})", is_slow=True),
    aten.erf.default: _elementwise("erf({0})", is_slow=True),
    aten.lgamma.default: _elementwise("lgamma({0})", is_slow=True),
    aten.xlogy.Tensor: _elementwise("xlogy_({0}, {1})", is_slow=True),
    aten.relu.default: _elementwise("relu_({0})"),
    aten.threshold_backward.default: _elementwise("where_({1} <= {2}, 0.0, {0})"),
    aten.tanh_backward.default: _elementwise("{0} * (1.0 - {1} * {1})"),
    aten.sigmoid_backward.default: _elementwise("{0} * (1.0 - {1}) * {1}"),
    aten.silu.default: _elementwise("{0} * sigmoid_({0})", is_slow=True),
    aten.silu_backward.default: _elementwise("{0} * silu_slope_({1})", is_slow=True),
    aten.gelu.default: _elementwise("{0} * normal_cdf_({0})", is_slow=True),
    aten.gelu_backward.default: _elementwise("{0} * gelu_slope_({1})", is_slow=True),
    aten.elu.default: _elementwise(
        "where_({0} > 0.0, {2} * {0}, {1} * {2} * expm1_({3} * {0}))", is_slow=True, usual=(1.0, 1.0, 1.0)
    ),
    aten.celu.default: _elementwise("where_({0} > 0.0, {0}, {1} * expm1_({0} / {1}))", is_slow=True, usual=(1.0,)),
    aten.elu_backward.default: _of_argument(
        _elementwise("{0} * {2} * where_({5} > 0.0, 1.0, {1} * {3} * exp_({3} * {5}))", is_slow=True)
    ),
    aten.leaky_relu.default: _elementwise("where_({0} > 0.0, {0}, {1} * {0})", usual=(0.01,)),
    aten.leaky_relu_backward.default: _of_argument(_elementwise("where_({1} > 0.0, {0}, {2} * {0})")),
    aten.hardtanh.default: _elementwise("where_({0} < {1}, {1}, where_({0} > {2}, {2}, {0}))", usual=(-1.0, 1.0)),
    aten.hardtanh_backward.default: _elementwise("where_({1} <= {2} || {1} >= {3}, 0.0, {0})"),
    aten.pow.Tensor_Scalar: _power,
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _sum),
    aten.logsumexp.default: _logsumexp,
    torch.ops.aten._log_softmax.default: _softmax_in_logs,
    torch.ops.aten._log_softmax_backward_data.default: _softmax_slope,
    aten.gather.default: gather,
    aten.index.Tensor: take,
    aten.index_put.default: put,
    aten.scatter_add.default: scatter_add,
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.mv.default), _product(has_sum=False)),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), _product(has_sum=True)),
}
"""What can be written out. A function with anything else is drawn from in torch."""
