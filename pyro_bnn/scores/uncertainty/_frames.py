"""Predictions as tables with one row per input."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..._core import checks as _checks

if TYPE_CHECKING:
    import pandas

HALF = (torch.float16, torch.bfloat16)
"""Types that data frames do not fully support."""


def frame(columns: Mapping[str, np.ndarray], num_rows: int, index: Iterable[Any] | None) -> "pandas.DataFrame":
    """A data frame of columns of shape (N,); raises unless the index has N labels."""
    import pandas  # imported late: importing takes long

    if index is not None and not isinstance(index, pandas.Index | pandas.Series):
        index = _checks.items("index", index, "the labels of the rows, such as `frame.index`")
    labels = pandas.RangeIndex(num_rows) if index is None else pandas.Index(index)
    if len(labels) != num_rows:
        raise ValueError(f"`index` must have one label per row of the prediction, {num_rows}, got {len(labels)}.")
    return pandas.DataFrame(dict(columns), index=labels)


def by_output(column: str, values: Tensor, outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The columns of values of shape ``(N, *O)``: one for each output; names end in the output's name or number."""
    count = values.shape[1:].numel()
    flat = array(values).reshape(len(values), count)
    if outputs is not None:
        ends = [f"_{name}" for name in named("outputs", outputs, count)]
    else:
        ends = [""] if count == 1 else ["_" + "_".join(map(str, i)) for i in np.ndindex(*values.shape[1:])]
    return {column + end: flat[:, i] for i, end in enumerate(ends)}


def named(argument: str, names: Sequence[str], count: int) -> list[str]:
    """The names; raises unless there are `count` different ones."""
    found = [str(name) for name in _checks.items(argument, names, "a list of names")]
    if len(found) != count or len(set(found)) != count:
        raise ValueError(f"`{argument}` must be {count} different names, got {len(found)}: {found[:5]}.")
    return found


def array(values: Tensor) -> np.ndarray:
    """A tensor's numbers, at least in single precision."""
    values = values.detach().cpu()
    return (values.float() if values.dtype in HALF else values).numpy()
