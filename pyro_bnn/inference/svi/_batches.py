"""One interface to batches, whether they come from a loader or are cut from tensors."""

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..._core import checks as _checks
from ..._core.inputs import Arguments, Batch, Inputs, is_whole, leaves, named_leaves, num_rows, require_data, take
from ..._core.processes import Processes
from ..._core.summary import counted
from ...modelling.model import BayesianModel
from ._step import Execution

Data = Iterable[object] | tuple[object, ...]
"""A loader of batches, or a tuple with all rows of the model's arguments."""

ENDLESS = 2  # heuristic: a loader without a length is endless if an epoch has more than so many times `num_data` rows
EMPTY = "the loader is empty; pass one with at least one batch."


class Batches:
    """The batches of each epoch. If the data are a tuple, each process gets a part of every batch."""

    def __init__(
        self,
        data: Data,
        batch_size: int | None,
        device: torch.device | None,
        generator: torch.Generator,
        like: Tensor | None = None,
        *,
        paired: bool = False,
        num_data: int | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._generator, self._processes = generator, processes or Processes()
        self.rows: Tensor | None = None
        """Indices of the rows in the latest batch; None for a loader, or if every batch has all rows."""
        self.tensors: Batch | None = None  # the data, if they are a tuple with all rows; None for a loader
        self._loader: Loader | None = None
        require_data(data)
        arguments = Arguments(device, like, paired)
        if is_whole(data):
            self.tensors = arguments.of_data(tuple(data))
            rows = num_rows(self.tensors)
            size = rows if batch_size is None else _checks.at_least("batch_size", batch_size, 1)
            self.num_rows, self._batch_size = rows, min(size, rows)
            if self._batch_size < self._processes.count:
                raise ValueError(
                    f"a batch must have a row for each of {self._processes.count} processes, got "
                    f"{counted(self._batch_size, 'row')}; raise `batch_size`, which counts the rows of all "
                    "processes together, or start fewer processes."
                )
            self.bounds = _bounds(rows, self._batch_size, self._processes.count)
            self.num_batches = len(self.bounds)
        elif batch_size is not None:
            raise ValueError("`batch_size` must be left out with a loader, which has its own batch size.")
        else:
            self._loader = Loader(data, arguments, num_data, self._processes.count)
            self.num_batches = self._loader.num_batches

    def require_same_end(self, batch: Batch | None) -> None:
        if not self._processes.are_many or self._loader is None or self._loader.has_length:
            return
        if all(self._processes.any([batch is None, batch is not None])):
            raise ValueError(
                "the loaders of all processes must give the same number of batches, but one ended before the others; "
                "repeat or drop rows, as torch's `DistributedSampler` does."
            )

    def first(self) -> Batch:
        """Return an example batch, without removing it from the first epoch of a loader."""
        if self._loader is not None:
            return self._loader.first()
        assert self.tensors is not None
        if self.num_batches == 1:
            return self.tensors
        return tuple(take(part, slice(0, self._batch_size)) for part in self.tensors)

    def epoch(self, number: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Draw the order of the rows, and return the batches of an epoch without the first `skip` ones."""
        if self._loader is not None:
            return self._loader.epoch(number, skip)
        assert self.tensors is not None
        if self.num_batches == 1 and not self._processes.are_many:
            return iter([self.tensors][skip:])
        order = torch.randperm(self.num_rows, generator=self._generator)
        order = order.to(leaves(self.tensors)[0].device)  # one copy per epoch, since the program waits for each copy
        return map(self._chosen, [order[begin:end] for begin, end in self.bounds[skip:]])

    def _chosen(self, rows: Tensor) -> Batch:
        """Return this process's part of the batch that consists of the given rows."""
        assert self.tensors is not None
        self.rows = rows.tensor_split(self._processes.count)[self._processes.rank] if self._processes.are_many else rows
        return tuple(take(part, self.rows) for part in self.tensors)

    def require_passes(self, num_epochs: int) -> None:
        if num_epochs > 1 and self._loader is not None and self._loader.is_one_pass:
            raise ValueError(
                f"`data` must start anew in each of {num_epochs} epochs, got a generator or iterator, which ends after "
                "the first; pass a list of batches, a DataLoader, or an object with `__iter__`."
            )

    def order_state(self) -> list[Tensor]:
        """Return the states of the generators that draw the order of rows, except torch's global generator."""
        return [generator.get_state() for generator in self._generators()]

    def restore_order(self, state: list[Tensor]) -> None:
        generators = self._generators()
        if len(state) != len(generators):
            raise ValueError(
                f"the file has the state of {counted(len(state) - 1, 'generator')} of the loader, but this loader has "
                f"{len(generators) - 1}; resume with the data of the interrupted fit."
            )
        for generator, value in zip(generators, state, strict=True):
            generator.set_state(value)

    def _generators(self) -> list[torch.Generator]:
        return [self._generator, *(self._loader.generators() if self._loader is not None else [])]


def whole_data(model: BayesianModel, data: Data) -> tuple[Inputs, Tensor] | None:
    """Check the data of a model, and return all rows (x, y) on the model's device; None for a loader."""
    require_data(data)
    if not is_whole(data):
        return None
    x, y = Arguments(model.device, model.like, paired=True).of_data(tuple(data))
    require_all_rows(model, x)
    return x, y


def require_all_rows(model: BayesianModel, x: Inputs) -> None:
    rows = num_rows(x)
    if rows != model.num_data:
        raise ValueError(
            f"the model's `num_data` is {model.num_data} but the data has {rows} rows, so the KL would have a wrong "
            f"weight; build the model with `num_data={rows}`."
        )
    for name, leaf in named_leaves("x", x):
        _checks.finite(name, leaf)


def count_batches(data: Data, batch_size: int | None, *, num_data: int, execution: Execution | None) -> int | None:
    if not is_whole(data):
        return length_of(data)
    size = num_data if batch_size is None else _checks.at_least("batch_size", batch_size, 1)
    return len(_bounds(num_data, size, Execution.given(execution).processes.count))


def _bounds(num_rows: int, batch_size: int, num_processes: int) -> list[tuple[int, int]]:
    """For each batch, return the index of its first row, and the index after its last row.

    If the last batch has fewer rows than there are processes, it is joined to the batch before it.
    """
    begins = list(range(0, num_rows, batch_size))
    if len(begins) > 1 and num_rows - begins[-1] < num_processes:
        begins.pop()
    return [*itertools.pairwise([*begins, num_rows])]


class Loader:
    """Batches of an iterable that is read once per epoch. If its length is exact, all epochs must have this length."""

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
        self.has_length = self._length is not None
        self.is_one_pass = isinstance(data, Iterator)  # such as a generator
        self.num_batches = length or -(-(num_data or 1) // (num_processes * num_rows(self.first()[0])))

    def first(self) -> Batch:
        """Return an example batch, without removing it from the first epoch."""
        if self._first is None:
            taken = list(itertools.islice(self._data, 1))
            if not taken:
                raise ValueError(EMPTY)
            self._taken = taken if self.is_one_pass else []
            self._first = self._checked(taken[0], 0, None)
        return self._first

    def epoch(self, number: int, skip: int) -> Iterator[Batch]:
        """Read and drop the first `skip` batches of an epoch, and return the others."""
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
                        f"{self._num_data}; let it end after one pass over the data, as with `itertools.islice`."
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
        owners = [self._data, *_samplers(self._data)] if isinstance(self._data, DataLoader) else []
        found = [getattr(owner, "generator", None) for owner in owners]
        return list({id(item): item for item in found if isinstance(item, torch.Generator)}.values())


def _samplers(loader: object) -> list[Any]:
    if not isinstance(loader, DataLoader):
        return []
    outer = loader.sampler, loader.batch_sampler
    inner = (getattr(sampler, "sampler", None) for sampler in outer)  # either of the two may be a `BatchSampler`
    return list({id(sampler): sampler for sampler in (*outer, *inner) if sampler is not None}.values())


def length_of(loader: object) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except (TypeError, NotImplementedError):
        return None
