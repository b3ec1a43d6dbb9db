"""Converts data to the arguments of a model: pairs (x, y) for a `BayesianModel`, any tuple for another Pyro model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..._core.inputs import Shared, as_inputs, as_targets, num_rows, shapes, to_device

Batch = tuple[Any, ...]
"""Arguments of the model. For a `BayesianModel` these are x, a tensor or nested tensors, and y, a tensor."""


@dataclass(frozen=True)
class Arguments:
    """Converts data to the arguments of a model.

    Tensors are moved to `device` unless it is None. Arrays get the device and dtype of `like`. If `paired` is true,
    the arguments must be x and one tensor y, with the same number of rows.
    """

    device: torch.device | None
    like: Tensor | None
    paired: bool

    def of_data(self, parts: Sequence[object]) -> Batch:
        """Convert data that hold all rows."""
        if not parts:
            raise ValueError("`data` must be a tuple of tensors, got an empty one; pass (x, y).")
        if self.paired and len(parts) != 2:
            raise ValueError(
                f"`data` must be a pair (x, y), got {len(parts)} part(s); pass several inputs as ((x_1, x_2), y), and "
                "batches as a list or a loader of pairs."
            )
        names = ["x", "y"] if self.paired else [f"data[{index}]" for index in range(len(parts))]
        return self._of_rows(names, parts, "`data` has no rows; pass at least one.")

    def of_batch(self, batch: object) -> Batch:
        """Convert one batch of a loader."""
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
        got = f"{len(batch)} part(s)" if isinstance(batch, (tuple, list)) else type(batch).__name__
        if isinstance(batch, Tensor):
            got = "one tensor, without targets"
        several = ", with several inputs as ((x_1, x_2), y)" if self.paired else ""
        raise ValueError(f"a batch must be {kind}, got {got}; let the loader give {example}{several}.")

    def _argument(self, part: Any) -> Any:
        """Move tensors and convert arrays in an argument; everything else stays the same."""
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
