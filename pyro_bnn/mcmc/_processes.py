"""Chains spread over the processes of a group of `torch.distributed`."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed

from .._checkpointing import Checkpoint

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process and those that it shares the chains with; without an initialised group it is alone.

    Args:
        rank: Number of this process, from 0.
        count: Number of processes.
    """

    rank: int
    count: int

    @classmethod
    def now(cls) -> "Processes":
        """Those of the group that `torch.distributed` has initialised."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls(0, 1)

    def share(self, num_chains: int) -> int:
        """Number of chains of this process.

        Raises:
            ValueError: If there are fewer chains than processes.
        """
        if num_chains < self.count:
            raise ValueError(
                f"`num_chains` must be at least the number of processes, {self.count}, got {num_chains}; ask for more "
                "chains or start fewer processes."
            )
        return num_chains // self.count + (self.rank < num_chains % self.count)

    def seed(self, seed: int | None) -> int | None:
        """Seed of this process: its chains must not be those of another one."""
        if self.count == 1:
            return seed
        seed = self.of_first(lambda: int(torch.randint(2**62, ())) if seed is None else seed)
        digest = hashlib.sha256(f"{seed} {self.rank} {self.count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def file(self, path: str | Path) -> Path:
        """The file of this process: each writes its own."""
        return Path(path) if self.count == 1 else Path(f"{path}.{self.rank}-of-{self.count}")

    def checkpoint(self, checkpoint: str | Path | Checkpoint | None) -> Checkpoint | None:
        """The checkpoint of this process."""
        if checkpoint is None:
            return None
        given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        return replace(given, path=self.file(given.path))

    def require_same(self, values: Mapping[str, Any]) -> None:
        """Raise a `ValueError` unless all processes have the same values."""
        for other in self.gathered(dict(values)):
            for name, value in values.items():
                if other[name] != value:
                    raise ValueError(
                        f"`{name}` must be the same in all processes: chains are shared out, and each of them sees all "
                        "of the data. Pass the same arguments everywhere."
                    )

    def gathered(self, value: T) -> list[T]:
        """The value of each process, in the order of their ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values

    def of_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them."""
        if self.count == 1:
            return make()
        values: list[Any] = [make() if self.rank == 0 else None]
        distributed.broadcast_object_list(values)
        value: T = values[0]
        return value
