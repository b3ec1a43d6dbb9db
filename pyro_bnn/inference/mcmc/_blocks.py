"""Which part of a recorded function goes through the rows of data one by one, so that it may be written block by block.

A likelihood is a sum over rows. Written operation by operation, each result for all rows goes through memory; written
for a block of rows at a time, all of it stays in the processor's cache.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

aten = torch.ops.aten

ROWS = 256
"""Heuristic: most rows of a block. With 50 units each of its results takes 100 kB. Fewer are written whole."""

VIEWS = {
    *(aten.alias, aten.detach, aten.clone, aten.lift_fresh_copy, aten.expand, aten.unsqueeze, aten.squeeze),
    *(aten.transpose, aten.t, aten.permute, aten.view, aten._unsafe_view, aten.slice, aten.select),
}
"""Operations that only give elements other indices."""

VALUELESS = {
    *(aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.ones_like, aten.new_ones),
    *(aten.full, aten.full_like, aten.new_full, aten.scalar_tensor),
}
"""Operations whose results do not depend on the values of tensors."""

PICKING = {aten.index, aten.index_put}
"""Operations that take or put elements anywhere."""

ALONG = {aten.gather: 1, aten.scatter_add: 1, aten._log_softmax: 1, aten._log_softmax_backward_data: 2}
"""Operations that use other elements along one axis, and which of their arguments is that axis."""

RESHAPING = {aten.view, aten._unsafe_view}
SUMMING = {aten.sum, aten.mm, aten.bmm, aten.mv}


@dataclass(frozen=True)
class Blocks:
    """The parts of a recorded function."""

    num_rows: int
    before: list[Node]  # operations on the weights alone
    inside: list[Node]  # operations on rows, each of which needs no other row
    sums: set[Node]  # those of them that sum over the rows
    after: list[Node]  # what is made of the sums

    def passes(self) -> Iterator[tuple[int, int, int]]:
        """First row, number of rows and number of blocks: of the equal ones, and of what remains."""
        count = math.ceil(self.num_rows / ROWS)
        size, rest = divmod(self.num_rows, count)
        yield 0, size, count
        if rest:
            yield count * size, rest, 1


def blocks_of(nodes: Sequence[Node], results: Mapping[Node, Any]) -> Blocks | None:
    """The parts of a recorded function; None if it has few rows, or some operation is not known to need one row only.

    The first node is the point; each has its operation in its `meta`. An axis is that of the rows if it has their
    number, which no other axis may have.
    """
    point, *constants = [node for node in nodes if node.op == "placeholder"]
    sizes = {size for node in constants for size in results[node].shape}
    for num_rows in sorted(sizes - {*results[point].shape}, reverse=True):
        if num_rows > ROWS:
            found = _parts(nodes, results, num_rows)
            if found is not None:
                return found
    return None


def row_axis(shape: Sequence[int], num_rows: int) -> int | None:
    """The axis of the rows, if there is one; a `ValueError` if there are several."""
    axes = [axis for axis, size in enumerate(shape) if size == num_rows]
    if len(axes) > 1:
        raise ValueError(f"a tensor must have one axis of {num_rows} rows, got shape {tuple(shape)}.")
    return axes[0] if axes else None


def _parts(nodes: Sequence[Node], results: Mapping[Node, Any], num_rows: int) -> Blocks | None:
    before, inside, after = list[Node](), list[Node](), list[Node]()
    sums, late, with_rows = set[Node](), set[Node](), set[Node]()
    for node in nodes:
        try:
            axes = [row_axis(tensor.shape, num_rows) for tensor in _tensors(results[node])]
        except ValueError:
            return None
        has_rows = None not in axes
        if node.op == "placeholder":
            with_rows |= {node} if has_rows else set()
            continue
        sources = [] if node.meta["packet"] in VALUELESS else node.all_input_nodes
        reads_rows, is_late = any(s in with_rows for s in sources), any(s in late for s in sources)
        if not has_rows and not reads_rows:
            (after if is_late else before).append(node)
            late |= {node} if is_late else set()
            continue
        if is_late or not (
            _is_rowwise(node, results, num_rows, reads_rows, axes) if has_rows else node.meta["packet"] in SUMMING
        ):
            return None
        inside.append(node)
        if has_rows:
            with_rows.add(node)
        else:
            sums.add(node)
            late.add(node)
    return Blocks(num_rows, before, inside, sums, after)


def _is_rowwise(
    node: Node, results: Mapping[Node, Any], num_rows: int, reads_rows: bool, axes: Sequence[int | None]
) -> bool:
    """Whether an operation whose results have rows makes each of them from the same row of its arguments."""
    operation = node.meta["packet"]
    if operation in VALUELESS or operation == aten.expand:
        return True
    if not reads_rows or operation in PICKING:
        return False
    if operation in ALONG:
        axis: Any = node.args[ALONG[operation]]
        return bool(axis % results[node].dim() != axes[0])
    if operation in RESHAPING:
        before = results[node.all_input_nodes[0]].shape
        return math.prod(before[: row_axis(before, num_rows)]) == math.prod(results[node].shape[: axes[0]])
    return True


def _tensors(result: Any) -> list[Tensor]:
    return [*result] if isinstance(result, tuple | list) else [result]
