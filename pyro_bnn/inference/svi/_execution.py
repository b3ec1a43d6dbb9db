"""Options of a fit that change the cost of a step, but not its expected result."""

from dataclasses import dataclass

import torch

from ..._core import checks as _checks
from ..._core.processes import Processes


@dataclass(frozen=True)
class Execution:
    """How the steps of a fit are computed.

    Args:
        cuda_graph: Whether to record steps on a GPU as CUDA graphs and replay them. For a small network, replays save
            most of the time of a step. If steps are recorded, the Python code of the network runs only in the first
            four steps for each batch shape. The optimizer must have ``fused=True``. None records steps where possible,
            but only if all modules of network and likelihood come from torch or this package, so that no Python code of
            yours is skipped.
        num_parts: Number of parts into which each batch is cut, to save memory. The network runs on one part after the
            other with the same weights, and the gradients are added up. Batch normalisation computes its statistics for
            each part separately.
        autocast: ``torch.bfloat16`` lets the network compute in bfloat16 where torch considers this type safe.
            Likelihood, guide and prior keep the model's dtype. None computes everything in the model's dtype.
        distributed: Whether the processes of a `torch.distributed` process group, if there is one, share the fit. Each
            process takes its share of the rows and draws its own noise. Gradients are averaged over the processes.

    Raises:
        ValueError: If an option has a wrong value.

    Example:
        >>> import pyro_bnn as pb
        >>> pb.Execution(num_parts=4)  # a quarter of the memory
        Execution(cuda_graph=False, num_parts=4, autocast=None, distributed=True)
    """

    cuda_graph: bool | None = False
    num_parts: int = 1
    autocast: torch.dtype | None = None
    distributed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_parts", _checks.at_least("num_parts", self.num_parts, 1))
        _checks.flag("distributed", self.distributed)
        if self.cuda_graph is not None:
            _checks.flag("cuda_graph", self.cuda_graph)
        if self.autocast is torch.float16:
            raise ValueError(
                "`autocast` must be torch.bfloat16 or None, got torch.float16: its range ends at 65504, too small for "
                "gradients over a whole data set; use torch.bfloat16, which has float32's range."
            )
        if self.autocast not in (None, torch.bfloat16):
            raise ValueError(f"`autocast` must be torch.bfloat16 or None, got {self.autocast}.")
        if self.cuda_graph and self.processes.are_many:
            raise ValueError("steps of several processes cannot be recorded; leave `cuda_graph` out.")

    @classmethod
    def given(cls, execution: "Execution | None") -> "Execution":
        """Return the given options after a check, or the default options for None."""
        if execution is not None:
            _checks.kind("execution", execution, Execution, "an Execution, such as Execution(num_parts=4)")
        return cls() if execution is None else execution

    @property
    def processes(self) -> Processes:
        """The processes that share the fit; only this process if `distributed` is false."""
        return Processes.present() if self.distributed else Processes()

    @property
    def needs_direct_path(self) -> str | None:
        """Name of an option in use that only the direct path supports; None if there is no such option."""
        if self.num_parts > 1:
            return "num_parts"
        return "cuda_graph" if self.cuda_graph else ("autocast" if self.autocast else None)
