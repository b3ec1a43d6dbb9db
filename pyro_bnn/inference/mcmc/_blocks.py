"""Finds the operations of a recorded function that can run on blocks of rows.

All operations run for one block and then for the next, so results stay in the processor's cache. The C code does not
depend on the number of rows, so it is compiled once for data with any number of rows.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

aten = torch.ops.aten

ROWS = 248  # heuristic: rows in a block; for a power of two, results would compete for places in the cache
STEP = 8  # loops over rows are rounded up to a multiple, for vector instructions; sums omit what is beyond
FEWEST_ROWS = 32  # heuristic: a function with fewer rows has no blocks, and its C code depends on the number of rows

VIEWS = {
    *(aten.alias, aten.detach, aten.clone, aten.lift_fresh_copy, aten.expand, aten.unsqueeze, aten.squeeze),
    *(aten.transpose, aten.t, aten.permute, aten.view, aten._unsafe_view, aten.slice, aten.select),
}
"""Operations that only change the indices of elements."""

VALUELESS = {
    *(aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.ones_like, aten.new_ones),
    *(aten.full, aten.full_like, aten.new_full, aten.scalar_tensor),
}
"""Operations whose results do not depend on the values of tensors."""

PICKING = {aten.index, aten.index_put, aten.embedding_dense_backward}  # use indices from a tensor
SHARED = {aten.convolution: 1, aten.embedding: 0}  # index of the argument with weights that all rows share

ALONG = {aten.gather: 1, aten.scatter_add: 1, aten._log_softmax: 1, aten._log_softmax_backward_data: 2}
"""Operations along one axis, and the index of the argument that names the axis."""

RESHAPING = {aten.view, aten._unsafe_view}
SUMMING = {aten.sum, aten.mm, aten.bmm, aten.mv, aten.convolution, aten.embedding_dense_backward}


@dataclass(frozen=True)
class Blocks:
    """The operations of a recorded function before, inside and after the loop over blocks of rows."""

    num_rows: int
    size: int  # largest number of rows in a block; no other axis has this length
    before: list[Node]  # operations on the weights alone
    inside: list[Node]  # operations on rows that compute each row by itself
    sums: set[Node]  # operations in `inside` that sum over the rows
    after: list[Node]  # operations on the sums
    with_rows: set[Node]  # nodes whose results have an axis of rows

    def bounds(self) -> list[tuple[int, int]]:
        count, steps = math.ceil(self.num_rows / self.size), math.ceil(self.num_rows / STEP)
        ends = [min(number * steps // count * STEP, self.num_rows) for number in range(count + 1)]
        return list(itertools.pairwise(ends))

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.size if length == self.num_rows else length for length in shape)

    def cut(self, constant: Tensor) -> Tensor:
        """Split the rows of a constant into blocks along a new first axis, padded with zeros."""
        axis = constant.shape.index(self.num_rows)
        result = constant.new_zeros(len(self.bounds()), *self.shape(constant.shape))
        for block, (begin, end) in zip(result, self.bounds(), strict=True):
            block.narrow(axis, 0, end - begin).copy_(constant.narrow(axis, begin, end - begin))
        return result


def blocks_of(nodes: Sequence[Node], results: Mapping[Node, Any]) -> Blocks | None:
    """Divide a recorded function into blocks. Return None if there are few rows, or if an operation may mix rows.

    The first of `nodes` is the vector z. An axis of a constant is an axis of rows if its length is the number of rows.
    A result has an axis of rows if an argument has one, unless the operation sums over it.
    """
    point, *constants = [node for node in nodes if node.op == "placeholder"]
    sizes = {size for node in constants for size in results[node].shape}
    for num_rows in sorted(sizes - {*results[point].shape}, reverse=True):
        if num_rows >= FEWEST_ROWS:
            found = _parts(nodes, results, num_rows)
            if found is not None:
                return found
    return None


def row_axis(shape: Sequence[int], num_rows: int) -> int | None:
    """Return the axis of length `num_rows`, if there is one. Raise a `ValueError` if there are several."""
    axes = [axis for axis, size in enumerate(shape) if size == num_rows]
    if len(axes) > 1:
        raise ValueError(f"a tensor must have one axis of {num_rows} rows, got shape {tuple(shape)}.")
    return axes[0] if axes else None


def _parts(nodes: Sequence[Node], results: Mapping[Node, Any], num_rows: int) -> Blocks | None:
    before, inside, after = list[Node](), list[Node](), list[Node]()
    sums, late, with_rows = set[Node](), set[Node](), set[Node]()
    for node in nodes:
        is_input = node.op == "placeholder"
        is_valueless = not is_input and node.meta["packet"] in VALUELESS
        repeats = is_valueless or (not is_input and node.meta["packet"] == aten.expand)
        sources = [] if is_valueless else node.all_input_nodes
        reads_rows, is_late = any(s in with_rows for s in sources), any(s in late for s in sources)
        has_length = _has_length(results[node], num_rows)
        if not reads_rows and not (has_length and (is_input or repeats)):
            if not is_input:
                (after if is_late else before).append(node)
                late |= {node} if is_late else set()
            continue
        try:
            axes = [row_axis(tensor.shape, num_rows) for tensor in _tensors(results[node])]
        except ValueError:
            return None
        if is_input:
            with_rows.add(node)
            continue
        has_rows, others = None not in axes, [s for s in sources if s not in with_rows]
        if any(s in late or _has_length(results[s], num_rows) for s in others) or not (
            _is_rowwise(node, results, num_rows, axes) if has_rows else _is_sum(node, results, num_rows)
        ):
            return None
        inside.append(node)
        if has_rows:
            with_rows.add(node)
        else:
            sums.add(node)
            late.add(node)
    lengths = {
        length
        for node in nodes
        for tensor in _tensors(results[node])
        for length in tensor.shape
        if length != num_rows or node not in with_rows
    }
    size = next(size for size in itertools.count(ROWS, STEP) if size not in lengths)
    return Blocks(num_rows, size, before, inside, sums, after, with_rows)


def _has_length(result: Any, length: int) -> bool:
    return any(length in tensor.shape for tensor in _tensors(result))


def _is_rowwise(node: Node, results: Mapping[Node, Any], num_rows: int, axes: Sequence[int | None]) -> bool:
    """Whether each row of the result depends only on the same row of the arguments."""
    operation = node.meta["packet"]
    if operation in VALUELESS or operation == aten.expand:
        return True
    if operation in PICKING:
        return False
    if operation in SHARED:
        shared: Any = node.args[SHARED[operation]]
        return axes == [0] and not _has_length(results[shared], num_rows)
    if operation == aten.flip:
        flipped: Any = node.args[1]
        return axes[0] not in [axis % results[node].dim() for axis in flipped]
    if operation in ALONG:
        axis: Any = node.args[ALONG[operation]]
        return bool(axis % results[node].dim() != axes[0])
    if operation in RESHAPING:
        before = results[node.all_input_nodes[0]].shape
        return math.prod(before[: row_axis(before, num_rows)]) == math.prod(results[node].shape[: axes[0]])
    return True


def _is_sum(node: Node, results: Mapping[Node, Any], num_rows: int) -> bool:
    if node.meta["packet"] == aten.convolution:  # it sums over channels, and would mix rows along other axes
        return all(row_axis(results[source].shape, num_rows) == 1 for source in node.all_input_nodes)
    return node.meta["packet"] in SUMMING


def _tensors(result: Any) -> list[Tensor]:
    return [*result] if isinstance(result, tuple | list) else [result]
