"""Communication between the processes that share a computation by `torch.distributed`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import Self

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: the distance between the seeds of successive processes
LONG = 2**16  # heuristic: tensors of at least this many elements are sent one by one, and smaller ones together


@dataclass(frozen=True)
class Processes:
    """How many processes share a computation, and the rank of this one."""

    rank: int = 0
    count: int = 1

    @classmethod
    def present(cls) -> Self:
        """Return the processes of `torch.distributed`, or a single process if it is not initialised."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def are_many(self) -> bool:
        return self.count > 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """Return this process's own seed; process 0 gets `seed` itself."""
        return (int(seed) + self.rank * GOLDEN) % 2**63

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.are_many:
            for tensor in tensors:
                sent = tensor.contiguous()  # the tensor itself if it is contiguous
                dist.all_reduce(sent)
                if sent is not tensor:
                    tensor.copy_(sent)

    def sum_joined_(self, tensors: Sequence[Tensor]) -> None:
        """Do the same as :meth:`sum_`, but send small tensors together."""
        self.sum_([tensor for tensor in tensors if tensor.numel() >= LONG])
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            small = [tensor for tensor in tensors if tensor.numel() < LONG and tensor.dtype == dtype]
            if not small:
                continue
            joined = torch.cat([tensor.reshape(-1) for tensor in small])
            self.sum_([joined])
            for tensor, total in zip(small, joined.split([tensor.numel() for tensor in small]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of process 0."""
        if self.are_many:
            for tensor in tensors:
                sent = tensor.contiguous()
                dist.broadcast(sent.reshape(-1).view(torch.uint8), 0)  # as bytes: some dtypes cannot be sent
                # Nothing can be copied into an expanded tensor.
                if sent is not tensor and not torch.equal(sent, tensor):
                    tensor.copy_(sent)

    def from_first(self, value: Any) -> Any:
        """Return the picklable value that process 0 passed."""
        if not self.are_many:
            return value
        values = [value]
        dist.broadcast_object_list(values, 0)
        return values[0]

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks."""
        if not self.are_many:
            return [value]
        values = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether at least one process has set it."""
        if not self.are_many:
            return list(flags)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"  # NCCL sends from GPUs only
        counts = torch.tensor([float(flag) for flag in flags], device=device)
        dist.all_reduce(counts)
        return [count > 0 for count in counts.tolist()]

    def require_same(self, values: dict[str, str]) -> None:
        """Raise in every process unless all passed the same `values`, ``{name: text}``."""
        theirs = self.gathered(values)
        for name in values:
            different = next((i for i, other in enumerate(theirs) if other.get(name) != theirs[0].get(name)), None)
            if different is not None:
                raise ValueError(
                    f"all processes must run the same fit, but the {name} of process {different} is "
                    f"{theirs[different].get(name)}, and that of process 0 is {theirs[0].get(name)}; call `fit_svi` "
                    "with the same arguments in all processes, or with `distributed=False` for separate fits."
                )
