"""The batches of a loader, with checks of each batch and of their number."""

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..._core.inputs import named_leaves, num_rows
from ._arguments import Arguments, Batch

ENDLESS = 2
"""Heuristic: a loader without a length counts as endless after this many times `num_data` rows in one epoch."""

EMPTY = "the loader is empty; pass one with at least one batch."


class Loader:
    """Batches of an iterable that is read once per epoch.

    The number of batches is the length of the loader. An epoch must have exactly this number, except for a `DataLoader`
    of an iterable data set, whose length is only an estimate. Without a length, the number is estimated as `num_data`
    divided by the rows of the first batch in all processes.
    """

    def __init__(
        self, data: Iterable[object], arguments: Arguments, num_data: int | None, num_processes: int = 1
    ) -> None:
        self._data, self._arguments, self._num_data = data, arguments, num_data
        self._first: Batch | None = None
        self._taken: list[object] = []
        self._names: list[str] | None = None
        length = length_of(data)
        if length is None and num_data is None:
            raise ValueError(
                f"`data` must be a DataLoader or a tuple of tensors, got {type(data).__name__} without a length; pass "
                "a loader with `len`, since the number of batches must be known."
            )
        if length == 0:
            raise ValueError(EMPTY)
        is_estimate = isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset)
        self._length = None if is_estimate else length
        self.num_batches = length or -(-(num_data or 1) // (num_processes * num_rows(self.first()[0])))

    @property
    def has_length(self) -> bool:
        """Whether the number of batches is known and checked, not estimated."""
        return self._length is not None

    @property
    def is_one_pass(self) -> bool:
        """Whether the loader is an iterator, such as a generator, which can be read only once."""
        return isinstance(self._data, Iterator)

    def first(self) -> Batch:
        """An example batch. The first epoch still gives it, even if the data can be read only once."""
        if self._first is None:
            taken = list(itertools.islice(self._data, 1))
            if not taken:
                raise ValueError(EMPTY)
            self._taken = taken if self.is_one_pass else []
            self._first = self._checked(taken[0], 0, None)
        return self._first

    def epoch(self, number: int, skip: int) -> Iterator[Batch]:
        """The batches of an epoch without the first `skip`, which this method fetches before it returns."""
        for sampler in _samplers(self._data):
            set_epoch = getattr(sampler, "set_epoch", None)  # the order of a `DistributedSampler` depends on it
            if callable(set_epoch):
                set_epoch(number)
        source = itertools.chain(self._taken, iter(self._data))
        self._taken = []
        dropped = sum(1 for _ in itertools.islice(source, skip))
        if dropped < skip:
            raise ValueError(
                f"the loader gave {dropped} batch(es) in epoch {number}, but the fit must continue at batch {skip}; "
                "resume with the data of the interrupted fit."
            )
        return self._rest(source, number, skip)

    def _rest(self, source: Iterator[object], number: int, skip: int) -> Iterator[Batch]:
        count, rows = skip, 0
        for batch in source:
            if count == self._length:
                self._refuse_length("more batches", number)
            checked = self._checked(batch, count, number)
            if self._length is None and self._num_data is not None:
                rows += num_rows(checked[0])
                if rows > ENDLESS * max(self._num_data, num_rows(self.first()[0])):
                    raise ValueError(
                        f"the loader has no length and gave {rows} rows in epoch {number}, but `num_data` is "
                        f"{self._num_data}; let it end after one pass over the data, for example by `itertools.islice`."
                    )
            yield checked
            count += 1
        if count == 0:
            raise ValueError(
                f"the loader gave no batch in epoch {number}; pass one that starts anew at each iteration, such as a "
                "list or a DataLoader."
            )
        if self._length is not None and count < self._length:
            self._refuse_length(f"{count} batch(es)", number)

    def _refuse_length(self, got: str, number: int) -> NoReturn:
        raise ValueError(
            f"the loader has length {self._length} but gave {got} in epoch {number}; correct or remove its length, on "
            "which the weights of the KL depend."
        )

    def _checked(self, batch: object, index: int, epoch: int | None) -> Batch:
        place = f"batch {index}" if epoch is None else f"batch {index} of epoch {epoch}"
        try:
            arguments = self._arguments.of_batch(batch)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        if self._arguments.paired:
            names = [name for part, value in zip("xy", arguments, strict=True) for name, _ in named_leaves(part, value)]
            self._names = self._names or names
            if names != self._names:
                raise ValueError(
                    f"{place}: all batches must have the same inputs, got {names} after {self._names}; give each batch "
                    "the same parts, and pad lists of varying length to one tensor."
                )
        return arguments

    def generators(self) -> list[torch.Generator]:
        """The loader's own generators, which draw its order; without any, torch's generator draws it."""
        owners = [self._data, *_samplers(self._data)] if isinstance(self._data, DataLoader) else []
        found = [getattr(owner, "generator", None) for owner in owners]
        return list({id(item): item for item in found if isinstance(item, torch.Generator)}.values())


def _samplers(loader: object) -> list[Any]:
    """The objects that choose the rows of each batch of a `DataLoader`."""
    if not isinstance(loader, DataLoader):
        return []
    outer = loader.sampler, loader.batch_sampler
    inner = (getattr(sampler, "sampler", None) for sampler in outer)  # either of the two may be a `BatchSampler`
    return list({id(sampler): sampler for sampler in (*outer, *inner) if sampler is not None}.values())


def length_of(loader: object) -> int | None:
    """Number of batches; None if the loader has no `len`, or if its `len` raises, as for an iterable data set."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except (TypeError, NotImplementedError):
        return None
