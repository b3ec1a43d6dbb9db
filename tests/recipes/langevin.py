"""The Metropolis-adjusted Langevin algorithm."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._kernel import DIVERGENCE, Draws, Kernel, Sampler, ValueAndGrad, leapfrog


@dataclass(frozen=True)
class Langevin(Sampler):
    """The Metropolis-adjusted Langevin algorithm: Hamiltonian trajectories of a single leapfrog step.

    References:
        Roberts and Tweedie (1996), Exponential Convergence of Langevin Distributions, Bernoulli 2(4).
    """

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: bool = False) -> "LangevinKernel":
        """The sampler on one potential; it does not compile."""
        return LangevinKernel(value_and_grad, z)


class LangevinKernel(Kernel):
    """The algorithm on one potential; see :class:`Langevin`.

    Args:
        value_and_grad: The potential.
        z: First points, shape (K, P).
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor) -> None:
        super().__init__(value_and_grad, z)
        self._z = z

    def draws(self) -> Iterator[Draws]:
        """Draw for ever; see :meth:`Kernel.draws`. All chains finish together."""
        z = self._z
        potential, gradient = self.value_and_grad(z)
        everyone = torch.ones_like(potential, dtype=torch.bool)
        while True:
            r = torch.randn_like(z) * self.inverse_mass.rsqrt()
            energy = self._energy(potential, r)
            step = self.step_size[:, None]
            end = leapfrog(self.value_and_grad, z, r, gradient, step, step * self.inverse_mass)
            gain = torch.nan_to_num(energy - self._energy(end[3], end[1]), nan=-torch.inf, neginf=-torch.inf)
            accepts = torch.rand_like(gain).log() < gain
            z, gradient = torch.where(accepts[:, None], end[0], z), torch.where(accepts[:, None], end[2], gradient)
            potential, energy = torch.where(accepts, end[3], potential), torch.where(accepts, energy - gain, energy)
            yield Draws(
                finished=everyone,
                z=z,
                log_density=-potential,
                energy=energy,
                accept=gain.clamp_max(0).exp(),
                diverging=gain < -DIVERGENCE,
                num_steps=torch.ones_like(everyone, dtype=torch.long),
            )

    def _energy(self, potential: Tensor, r: Tensor) -> Tensor:
        return potential + 0.5 * torch.linalg.vecdot(r, r * self.inverse_mass)
