"""How steps are computed: options that change their cost, but not what they estimate."""

from dataclasses import dataclass

import torch

from ..._core import checks as _checks
from ..._core.processes import Processes


@dataclass(frozen=True)
class Execution:
    """How the steps of a fit are computed.

    Args:
        cuda_graph: Whether to record steps on a GPU as CUDA graphs and replay them, which saves most of a small
            network's time. The network's Python code then runs only in the first few steps. The optimizer must have
            ``fused=True``.
        num_parts: Number of parts into which each batch is cut. The network runs on one part after the other, with the
            same weights, and the gradients are added up. This saves memory. Batch normalisation sees single parts.
        autocast: Type in which the network computes where torch considers this safe, ``torch.bfloat16``. Likelihood,
            guide and prior keep the model's type. None computes everything in the model's type.
        distributed: Whether the processes of a `torch.distributed` process group, if there is one, make steps together.
            Each takes its share of the rows and draws its own noise, and gradients are averaged.

    Raises:
        ValueError: If an option has a wrong value.
    """

    cuda_graph: bool = False
    num_parts: int = 1
    autocast: torch.dtype | None = None
    distributed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_parts", _checks.at_least("num_parts", self.num_parts, 1))
        for name in ("cuda_graph", "distributed"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False, got {getattr(self, name)!r}.")
        if self.autocast is torch.float16:
            raise ValueError(
                "`autocast` must be torch.bfloat16 or None, got torch.float16: the gradient of a whole data set's "
                "log-likelihood leaves its range, which ends at 65504; use torch.bfloat16, which has float32's range."
            )
        if self.autocast not in (None, torch.bfloat16):
            raise ValueError(f"`autocast` must be torch.bfloat16 or None, got {self.autocast}.")
        if self.cuda_graph and self.processes.are_many:
            raise ValueError("steps of several processes cannot be recorded; leave `cuda_graph` out.")

    @classmethod
    def given(cls, execution: "Execution | None") -> "Execution":
        """The argument of a fit, or the default for None."""
        if execution is not None:
            _checks.kind("execution", execution, Execution, "an Execution, such as Execution(num_parts=4)")
        return cls() if execution is None else execution

    @property
    def processes(self) -> Processes:
        """The processes that make steps together."""
        return Processes.present() if self.distributed else Processes()

    @property
    def needs_direct_path(self) -> str | None:
        """Name of an option that only the direct path has; None if none is used."""
        if self.num_parts > 1:
            return "num_parts"
        return "cuda_graph" if self.cuda_graph else ("autocast" if self.autocast else None)
