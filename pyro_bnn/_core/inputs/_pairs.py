"""The data of a fit that reads all rows: a pair (x, y), or a loader of such pairs."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from .. import checks as _checks
from ._conversion import as_inputs, as_targets
from ._tree import Inputs, joined, num_rows, take, to_device

Pair = tuple[Inputs, Tensor]


class Pairs:
    """All rows of a data set, in batches, on the device and in the floating-point dtype of a given tensor.

    A pass over the batches raises at its end if the number of rows was not `num_data`.
    """

    def __init__(self, data: object, like: Tensor, num_data: int, batch_size: int = 128) -> None:
        batch_size = _checks.at_least("batch_size", batch_size, 1)
        if isinstance(data, Iterator):
            raise ValueError("`data` must be readable several times, got an iterator; pass tensors or a DataLoader.")
        if not isinstance(data, Iterable) or isinstance(data, (Tensor, str, Mapping)):
            raise ValueError(f"`data` must be a tuple (x, y) or a loader of such pairs, got {_checks.described(data)}.")
        if isinstance(data, tuple) and len(data) != 2:
            raise ValueError(f"`data` must be a pair (x, y), got {len(data)} parts; several inputs are ((a, b), y).")
        self._like, self._batch_size, self._num_data = like, batch_size, num_data
        self._data = self._pair(data) if isinstance(data, tuple) else data
        self.after_batch: Callable[[int], object] = lambda num_rows: None
        """Function that is called after each batch with its number of rows, for example by a progress bar."""

    def _pair(self, pair: object) -> Pair:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"a batch must be a pair (x, y), got {_checks.described(pair)}; let the loader give both.")
        x, y = as_inputs("x", pair[0], self._like), as_targets("y", pair[1], self._like)
        return to_device(x, self._like.device), y.to(self._like.device)

    def __iter__(self) -> Iterator[Pair]:
        """The batches of one pass."""
        rows = 0
        for x, y in self._parts() if isinstance(self._data, tuple) else map(self._pair, self._data):
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
                "pass all rows once, without `drop_last` and repeats, or build the model with their number."
            )

    def _parts(self) -> Iterator[Pair]:
        x, y = self._data
        assert isinstance(y, Tensor)
        for start in range(0, num_rows(x), self._batch_size):
            part = slice(start, start + self._batch_size)
            yield take(x, part), y[part]

    def first(self) -> Inputs:
        """The inputs of the first batch."""
        return next(iter(self))[0]

    def whole(self) -> Pair:
        """All rows in one pair of tensors."""
        if isinstance(self._data, tuple):
            return self._data
        inputs, targets = zip(*self, strict=True)
        return joined(inputs), torch.cat(targets)
