"""The arguments of a model from what people give as data: pairs (x, y), or any tuple for a model of one's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._inputs import as_inputs, as_targets, named_leaves, num_rows, shapes, to_device

Batch = tuple[Any, ...]
"""Arguments of the model: for a `BayesianModel` x, a tensor or a tree of tensors, and y, a tensor."""


@dataclass(frozen=True)
class Arguments:
    """The way in which data become arguments of a model.

    Args:
        device: Device to which tensors are moved; None leaves them where they are.
        like: A tensor with the device and floating-point type for arrays; see :func:`as_inputs`.
        paired: Whether there must be two arguments, x and one tensor y with as many rows, as a `BayesianModel` needs.
    """

    device: torch.device | None
    like: Tensor | None
    paired: bool

    def of_data(self, parts: Sequence[object]) -> Batch:
        """All the data at once.

        Raises:
            ValueError: If a part does not hold numbers, or two parts differ in their number of rows.
        """
        if not parts:
            raise ValueError("`data` must be a tuple of tensors, got an empty one; pass (x, y).")
        if not self.paired:
            batch = tuple(as_inputs(f"data[{index}]", part, self.like) for index, part in enumerate(parts))
        elif len(parts) != 2:
            raise ValueError(
                f"`data` must be a pair (x, y), got {len(parts)} part(s); pass several inputs as ((x_1, x_2), y), and "
                "batches as a list or a loader of pairs."
            )
        else:
            batch = as_inputs("x", parts[0], self.like), as_targets("y", parts[1], self.like)
        _require_same_rows(batch, "xy" if self.paired else [f"data[{index}]" for index in range(len(batch))])
        if num_rows(batch[0]) == 0:
            raise ValueError("`data` has no rows; pass at least one.")
        return tuple(to_device(part, self.device) for part in batch)

    def of_batch(self, batch: object) -> Batch:
        """One batch of a loader.

        Raises:
            ValueError: If it is not a tuple of arguments; for pairs, also if a part does not hold numbers, x and y
                differ in their number of rows, or there are no rows.
        """
        if isinstance(batch, Mapping):
            raise ValueError(
                f"a batch must be {self._kind}, got a dictionary with the keys {list(batch)}; say which is which by a "
                f"`collate_fn` of the loader that returns {self._example}."
            )
        if not self.paired:
            parts = (batch,) if isinstance(batch, Tensor) else batch
            if not isinstance(parts, (tuple, list)) or not parts:
                raise ValueError(f"a batch must be {self._kind}, got {_got(batch)}.")
            return tuple(self._argument(part) for part in parts)
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(
                f"a batch must be {self._kind}, got {_got(batch)}; let the loader give {self._example}, and several "
                "inputs as ((x_1, x_2), y)."
            )
        x, y = as_inputs("x", batch[0], self.like), as_targets("y", batch[1], self.like)
        _require_same_rows((x, y), "xy")
        if num_rows(x) == 0:
            raise ValueError("a batch must have at least one row, got none; leave out empty batches.")
        return to_device(x, self.device), to_device(y, self.device)

    @property
    def _kind(self) -> str:
        return "a pair (x, y)" if self.paired else "a tuple of the model's arguments"

    @property
    def _example(self) -> str:
        return "(x, y)" if self.paired else "them as a tuple"

    def _argument(self, part: Any) -> Any:
        """An argument of a model of one's own: its tensors are moved, and everything else is as it was."""
        if isinstance(part, Tensor):
            return to_device(part, self.device)
        if isinstance(part, np.ndarray):
            return to_device(as_inputs("batch", part, self.like), self.device)
        if isinstance(part, dict):
            return {key: self._argument(value) for key, value in part.items()}
        if type(part) in (tuple, list):
            return type(part)(self._argument(value) for value in part)
        return part


def names_of(batch: Batch) -> list[str]:
    """Names of all tensors of a pair, by which two batches can be compared."""
    return [name for part, value in zip("xy", batch, strict=True) for name, _ in named_leaves(part, value)]


def _require_same_rows(batch: Batch, names: Sequence[str]) -> None:
    for name, part in zip(names, batch, strict=True):
        if num_rows(part, name) != num_rows(batch[0], names[0]):
            raise ValueError(
                f"`{names[0]}` and `{name}` must have the same number of rows, got shapes {shapes(batch[0])} and "
                f"{shapes(part)}."
            )


def _got(batch: object) -> str:
    if isinstance(batch, (tuple, list)):
        return f"{len(batch)} part(s)"
    return "one tensor, without targets" if isinstance(batch, Tensor) else type(batch).__name__
