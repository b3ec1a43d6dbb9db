"""One interface to the batches of a loader and to those of tensors."""

from collections.abc import Iterable, Iterator, Sequence, Sized

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .. import _checks

Batch = tuple[Tensor, ...]


class Batches:
    """Iterates over one epoch of batches, on a device.

    Args:
        data: A loader of (x, y) batches, or a tuple of tensors with the same number of rows.
        batch_size: Number of rows in each batch of tensors; None makes one batch of all rows.
        device: Device to which the batches are moved; None leaves them where they are.
        generator: Generator of the random order of the rows, which is new in each epoch. A loader has its own order.
    """

    def __init__(
        self,
        data: Iterable[Sequence[Tensor]] | tuple[Tensor, ...],
        batch_size: int | None,
        device: torch.device | None,
        generator: torch.Generator,
    ) -> None:
        self._device, self._generator = device, generator
        self._tensors = self._loader = None
        if isinstance(data, (tuple, list)) and all(isinstance(item, Tensor) for item in data):
            self._tensors = tuple(item.to(device) if device else item for item in data)
            self._init_tensors(batch_size)
        else:
            self._loader = data
            if batch_size is not None:
                raise ValueError("`batch_size` is for a tuple of tensors; leave it out, a loader has its own size.")
            self.num_batches = _length(data)
            if self.num_batches == 0:
                raise ValueError("the loader is empty; pass one with at least one batch.")

    def _init_tensors(self, batch_size: int | None) -> None:
        assert self._tensors is not None
        if not self._tensors:
            raise ValueError("`data` must be a tuple of tensors, got an empty one; pass (x, y).")
        self.num_rows = len(self._tensors[0])
        if self.num_rows == 0:
            raise ValueError("`data` has no rows; pass at least one.")
        for other in self._tensors[1:]:
            _checks.same_rows(self._tensors[0], other)
        size = self.num_rows if batch_size is None else _checks.at_least("batch_size", batch_size, 1)
        self._batch_size = min(size, self.num_rows)
        self.num_batches = -(-self.num_rows // self._batch_size)

    @property
    def tensors(self) -> Batch | None:
        """The whole data, if it was given as tensors; None for a loader."""
        return self._tensors

    def order_state(self) -> list[Tensor]:
        """Where the random order of the rows is, between two epochs; a loader may have generators of its own."""
        return [generator.get_state() for generator in self._generators()]

    def restore_order(self, state: list[Tensor]) -> None:
        """Go on from what :meth:`order_state` returned."""
        for generator, its_state in zip(self._generators(), state, strict=True):
            generator.set_state(its_state)

    def _generators(self) -> list[torch.Generator]:
        if not isinstance(self._loader, DataLoader):
            return [self._generator]
        owned = (self._loader.generator, getattr(self._loader.sampler, "generator", None))
        return list(dict.fromkeys(generator for generator in owned if generator is not None))

    def epoch(self, *, skip: int = 0) -> Iterator[Batch]:
        """The batches of one epoch.

        Args:
            skip: Number of batches to leave out at the beginning; a loader fetches and drops them.
        """
        iterator = iter(self)
        for _ in range(skip):
            next(iterator, None)
        return iterator

    def __iter__(self) -> Iterator[Batch]:
        if self._tensors is None:
            assert self._loader is not None
            for batch in self._loader:
                yield tuple(part.to(self._device, non_blocking=True) if self._device else part for part in batch)
        elif self.num_batches == 1:
            yield self._tensors
        else:
            order = torch.randperm(self.num_rows, generator=self._generator).to(self._tensors[0].device)
            for rows in order.split(self._batch_size):  # `index_select` takes a third of the time of `[rows]`
                yield tuple(tensor.index_select(0, rows) for tensor in self._tensors)


def _length(loader: object) -> int:
    """Number of batches; a DataLoader over an iterable data set counts as `Sized`, but its `len` raises TypeError."""
    try:
        if isinstance(loader, Sized):
            return len(loader)
    except TypeError:
        pass
    raise ValueError(
        f"`data` must be a DataLoader or a tuple of tensors, got {type(loader).__name__} without a length; the number "
        "of batches must be known, so pass a loader with `len`."
    )
