"""Conversion of data to the arguments of a model. A `BayesianModel` takes x and y, and other models take any tuple."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .. import checks as _checks
from ..summary import counted
from ._conversion import as_inputs, as_targets
from ._tree import Inputs, Shared, joined, num_rows, shapes, take, to_device

Batch = tuple[Any, ...]
"""The arguments of a model. For a `BayesianModel` these are x (a tensor or nested tensors) and y (a tensor)."""


@dataclass(frozen=True)
class Arguments:
    """Converts data to the arguments of a model.

    Tensors are moved to `device` unless `device` is None. Arrays get the device and dtype of `like`. If `paired` is
    true, the data must be x and one tensor y, and both must have the same number of rows.
    """

    device: torch.device | None
    like: Tensor | None
    paired: bool

    def of_data(self, parts: Sequence[object]) -> Batch:
        """Convert a tuple that holds all rows of a data set to the arguments of the model."""
        if not parts:
            raise ValueError("`data` must be a tuple of tensors, got an empty one; pass (x, y).")
        if self.paired and len(parts) != 2:
            raise ValueError(
                f"`data` must be a pair (x, y), got {counted(len(parts), 'part')}; pass several inputs as ((x_1, x_2), "
                "y), and batches as a list or a loader of pairs."
            )
        names = ["x", "y"] if self.paired else [f"data[{index}]" for index in range(len(parts))]
        return self._of_rows(names, parts, "`data` has no rows; pass at least one.")

    def of_batch(self, batch: object) -> Batch:
        """Convert one batch of a loader to the arguments of the model."""
        parts = (batch,) if isinstance(batch, Tensor) and not self.paired else batch
        if not isinstance(parts, (tuple, list)) or not parts or (self.paired and len(parts) != 2):
            self._refuse(batch)
        if not self.paired:
            return tuple(self._argument(part) for part in parts)
        if_empty = "a batch must have at least one row, got none; leave out empty batches."
        return self._of_rows(["x", "y"], parts, if_empty)

    def _of_rows(self, names: list[str], parts: Sequence[object], if_empty: str) -> Batch:
        batch: list[Any] = []
        first: tuple[str, Any] | None = None
        for name, part in zip(names, parts, strict=True):
            convert = as_targets if name == "y" else as_inputs
            batch.append(convert(name, part, self.like))
            if isinstance(batch[-1], Shared) and not self.paired:
                continue
            first = first or (name, batch[-1])
            if num_rows(batch[-1], name) != num_rows(first[1], first[0]):
                raise ValueError(
                    f"`{first[0]}` and `{name}` must have the same number of rows, got shapes {shapes(first[1])} and "
                    f"{shapes(batch[-1])}."
                )
        if num_rows(tuple(batch), "data") == 0:
            raise ValueError(if_empty)
        return tuple(to_device(part, self.device) for part in batch)

    def _refuse(self, batch: object) -> NoReturn:
        kind, example = ("a pair (x, y)", "(x, y)") if self.paired else ("a tuple of the model's arguments", "a tuple")
        if isinstance(batch, Mapping):
            raise ValueError(
                f"a batch must be {kind}, got a dictionary with the keys {list(batch)}; give the loader a `collate_fn` "
                f"that returns {example}."
            )
        got = counted(len(batch), "part") if isinstance(batch, (tuple, list)) else type(batch).__name__
        if isinstance(batch, Tensor):
            got = "one tensor, without targets"
        several = ", with several inputs as ((x_1, x_2), y)" if self.paired else ""
        raise ValueError(f"a batch must be {kind}, got {got}; let the loader give {example}{several}.")

    def _argument(self, part: Any) -> Any:
        """Move all tensors in an argument to the device, and convert all arrays. All other objects are unchanged."""
        if isinstance(part, Tensor):
            return to_device(part, self.device)
        if isinstance(part, np.ndarray):
            return to_device(as_inputs("batch", part, self.like), self.device)
        if isinstance(part, Shared):
            return Shared(self._argument(part.value))
        if isinstance(part, dict):
            return {key: self._argument(value) for key, value in part.items()}
        if type(part) in (tuple, list):
            return type(part)(self._argument(value) for value in part)
        return part


Pair = tuple[Inputs, Tensor]


class Pairs:
    """The batches of a data set, each a pair of inputs and targets.

    Tensors are moved to the device of `like`, and arrays also get the floating-point dtype of `like`. If the batches do
    not have `num_data` rows in all, a loop over the batches raises an error after the last batch.
    """

    def __init__(self, data: object, like: Tensor, num_data: int, batch_size: int = 128) -> None:
        batch_size = _checks.at_least("batch_size", batch_size, 1)
        if isinstance(data, Iterator):
            raise ValueError("`data` must be readable several times, got an iterator; pass tensors or a DataLoader.")
        if not isinstance(data, Iterable) or isinstance(data, (Tensor, str, Mapping)):
            raise ValueError(f"`data` must be a tuple (x, y) or a loader of such pairs, got {_checks.described(data)}.")
        self._batch_size, self._num_data = batch_size, num_data
        self._arguments = Arguments(like.device, like, paired=True)
        self._data = self._arguments.of_data(data) if isinstance(data, tuple) else data
        self.after_batch: Callable[[int], object] = lambda num_rows: None
        """A function that is called after each batch with its number of rows, such as to update a progress bar."""

    def __iter__(self) -> Iterator[Pair]:
        rows = 0
        for x, y in self._parts() if isinstance(self._data, tuple) else map(self._arguments.of_batch, self._data):
            yield x, y
            rows += num_rows(x)
            self.after_batch(num_rows(x))
        if not rows:
            raise ValueError(
                "the loader is empty; pass one that has at least one batch and starts anew at each iteration."
            )
        if rows != self._num_data:
            raise ValueError(
                f"`data` must have all {self._num_data} rows of the model's data set (`num_data`), got {rows}; "
                "pass each row once, without `drop_last`, or build the model with the right `num_data`."
            )

    def _parts(self) -> Iterator[Pair]:
        x, y = self._data
        assert isinstance(y, Tensor)
        for start in range(0, num_rows(x), self._batch_size):
            part = slice(start, start + self._batch_size)
            yield take(x, part), y[part]

    def first(self) -> Inputs:
        return next(iter(self))[0]

    def whole(self) -> Pair:
        """Return all rows as one pair (x, y)."""
        if isinstance(self._data, tuple):
            return self._data
        inputs, targets = zip(*self, strict=True)
        return joined(inputs), torch.cat(targets)
