"""Chains divided among the processes of `torch.distributed`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..._core.processes import Processes

T = TypeVar("T")


@dataclass(frozen=True)
class ChainProcesses(Processes):
    """This process and the others that share the chains."""

    def share(self, num_chains: int) -> int:
        """Number of chains of this process."""
        if num_chains < self.count:
            raise ValueError(
                f"`num_chains` must be at least the number of processes, {self.count}, got {num_chains}; ask for more "
                "chains or start fewer processes."
            )
        return num_chains // self.count + (self.rank < num_chains % self.count)

    def own_seed(self, seed: int | None) -> int:
        """Seed of this process, different from those of the others. If `seed` is None, the first process draws it."""
        return self.seed(self.of_first(lambda: int(torch.randint(2**62, ())) if seed is None else seed))

    def file(self, path: str | Path) -> Path:
        return Path(path) if self.count == 1 else Path(f"{path}.{self.rank}-of-{self.count}")

    def require_same_arguments(self, values: Mapping[str, Any]) -> None:
        for other in self.gathered(dict(values)):
            for name, value in values.items():
                if other[name] != value:
                    raise ValueError(
                        f"`{name}` must be the same in all processes: each process draws some of the chains, and every "
                        "chain uses all data. Pass the same arguments everywhere."
                    )

    def of_first(self, make: Callable[[], T]) -> T:
        """Call a function in the first process only; all processes get its result."""
        value: T = self.from_first(make() if self.is_first else None)
        return value
