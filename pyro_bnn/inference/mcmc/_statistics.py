"""The statistics that a sampler reports for each draw."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ChainStatistics:
    """What the sampler did at each draw, shapes (K, S) unless said otherwise; None if not reported.

    Args:
        log_density: Log joint density in unconstrained space, in nats.
        energy: Hamiltonian of the draw, in nats.
        accept: Mean acceptance probability along the trajectory.
        diverging: Whether the trajectory's energy error was so large that its steps must have been too long.
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
