"""What a sampler reports, the record of chains in a file, and checks of what a file has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core.records import check_finite, check_tensor
from ..._core.summary import Shown, Summary
from ..posterior import Status

WHOLE, FLOATS = (torch.int32, torch.int64), (torch.float32, torch.float64)
KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "log_density": FLOATS,
    "energy": FLOATS,
    "accept": FLOATS,
    "energy_error": FLOATS,
    "diverging": (torch.bool,),
    "num_steps": WHOLE,
    "step_size": FLOATS,
    "inverse_mass": FLOATS,
}
"""Dtypes that each statistic may have."""


@dataclass(frozen=True, repr=False)
class ChainStatistics(Shown):
    """What the sampler reported for each draw, shape (K, S) unless stated otherwise; None if not reported.

    Args:
        log_density: Log joint density in unconstrained space, in nats.
        energy: Hamiltonian of the draw, in nats.
        accept: Mean acceptance probability along the trajectory.
        diverging: Whether the trajectory was divergent, which shows that its steps were too long.
        num_steps: Number of steps.
        step_size: Step size after warm-up, shape (K,).
        inverse_mass: Diagonal of the inverse mass matrix after warm-up, shape (K, P).
        seconds: Wall time of warm-up and sampling together.
        energy_error: Mean squared energy error of a step in nats, divided by P, for samplers that adapt to it.
    """

    log_density: Tensor | None = None
    energy: Tensor | None = None
    accept: Tensor | None = None
    diverging: Tensor | None = None
    num_steps: Tensor | None = None
    step_size: Tensor | None = None
    inverse_mass: Tensor | None = None
    seconds: float | None = None
    energy_error: Tensor | None = None

    def _summary(self) -> Summary:
        known = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rows = [(name, str(tuple(value.shape)), float(value.double().mean())) for name, value in known.items()]
        return Summary("ChainStatistics", rows=rows, header=("statistic", "shape", "mean"))


@dataclass(frozen=True)
class ChainsRecord:
    """What a file stores of an `MCMCPosterior`."""

    samples: dict[str, Tensor]
    statistics: ChainStatistics
    status: Status
    sampler: str
    path: str


def check_statistics(statistics: ChainStatistics, lead: torch.Size, num_dimensions: int | None) -> None:
    """Raise if a statistic of chains has a wrong dtype, shape or value.

    `lead` is (K, S). `num_dimensions` is the number of unconstrained numbers in a draw; None if it is unknown.
    """
    mass = statistics.inverse_mass
    size = num_dimensions if num_dimensions is not None else 0 if mass is None or not mass.dim() else mass.shape[-1]
    shapes = dict.fromkeys(KINDS, tuple(lead)) | {"step_size": (lead[0],), "inverse_mass": (lead[0], size)}
    for name, kinds in KINDS.items():
        value = vars(statistics)[name]
        if value is None:
            continue
        if value.dtype not in kinds:
            raise ValueError(f"`{name}` of the chains must be {' or '.join(map(str, kinds))}, got {value.dtype}.")
        check_tensor(f"`{name}` of the chains", value, shapes[name], value.dtype)
        check_finite(f"`{name}` of the chains", value)
        if name in ("step_size", "inverse_mass") and not bool((value > 0).all()):
            raise ValueError(f"`{name}` of the chains must be above 0, got {float(value.min()):.4g}.")
