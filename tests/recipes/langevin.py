"""The Metropolis-adjusted Langevin algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        z: Initial points, shape (K, P).
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor) -> None:
        super().__init__(value_and_grad, z)
        self._z = z
        self._potential, self._gradient = value_and_grad(z)

    def draw(self) -> Draws:
        """Make one draw of every chain; all chains finish together."""
        z, gradient, potential = self._z, self._gradient, self._potential
        r = torch.randn_like(z) * self.inverse_mass.rsqrt()
        energy = self._energy(potential, r)
        step = self.step_size[:, None]
        end = leapfrog(self.value_and_grad, z, r, gradient, step, step * self.inverse_mass)
        gain = torch.nan_to_num(energy - self._energy(end[3], end[1]), nan=-torch.inf, neginf=-torch.inf)
        accepts = torch.rand_like(gain).log() < gain
        row = accepts[:, None]
        self._z, self._gradient = torch.where(row, end[0], z), torch.where(row, end[2], gradient)
        self._potential = torch.where(accepts, end[3], potential)
        return Draws(
            finished=torch.ones_like(accepts),
            z=self._z,
            log_density=-self._potential,
            energy=torch.where(accepts, energy - gain, energy),
            accept=gain.clamp_max(0).exp(),
            diverging=gain < -DIVERGENCE,
            num_steps=torch.ones_like(accepts, dtype=torch.long),
        )

    def state(self) -> dict[str, Any]:
        """The state of the chains; see :meth:`Kernel.state`."""
        return {"z": self._z, "gradient": self._gradient, "potential": self._potential}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        names = ("z", "gradient", "potential")
        self._z, self._gradient, self._potential = (state[name].to(self._z, copy=True) for name in names)

    def _energy(self, potential: Tensor, r: Tensor) -> Tensor:
        return potential + 0.5 * torch.linalg.vecdot(r, r * self.inverse_mass)
