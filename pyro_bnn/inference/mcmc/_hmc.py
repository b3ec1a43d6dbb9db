"""Hamiltonian Monte Carlo with trajectories of random length."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ._kernel import DIVERGENCE, Compile, Draws, Sampler, ValueAndGrad, leapfrog
from ._native import native_or_reason
from ._traced import TorchKernel


@dataclass(frozen=True)
class HMC(Sampler):
    """Hamiltonian Monte Carlo: trajectories of random length, each accepted or rejected as a whole.

    The number of leapfrog steps is drawn uniformly from 1 to `max_steps`; with a fixed number, a periodic trajectory
    could end where it began.

    Args:
        max_steps: Number of leapfrog steps of the longest trajectory.

    References:
        Neal (2011), https://arxiv.org/abs/1206.1901, sections 3 and 5.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> sampler = pb.HMC(max_steps=4)
        >>> posterior = pb.fit_mcmc(model, (x, 2 * x), sampler=sampler, seed=0)
        >>> posterior.sample(100, seed=0)["net.weight"].shape
        torch.Size([100, 1, 1])
    """

    max_steps: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", _checks.at_least("max_steps", self.max_steps, 1))

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> "HMCKernel":
        native, not_in_c = native_or_reason(value_and_grad, z, compile)
        potential = value_and_grad if native is None else native.value_and_grad
        return HMCKernel(potential, z, self.max_steps, not_in_c=not_in_c)


class HMCKernel(TorchKernel):
    """HMC in torch; the gradients may be computed in C."""

    fields = ("z", "gradient", "potential")

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, max_steps: int, *, not_in_c: str) -> None:
        super().__init__(value_and_grad, z, not_in_c)
        self._z, self._max_steps = z, max_steps
        self._potential, self._gradient = self.value_and_grad(z)

    def draw(self) -> Draws:
        z, gradient, potential = self._z, self._gradient, self._potential
        r = torch.randn_like(z) * self.inverse_mass.rsqrt()
        energy = self._energy(potential, r)
        step = self.step_size[:, None]
        drift = step * self.inverse_mass
        end = (z, r, gradient, potential)
        num_steps = int(torch.randint(1, self._max_steps + 1, ()))
        for _ in range(num_steps):
            end = leapfrog(self.value_and_grad, *end[:3], step, drift)
        new_energy = self._energy(end[3], end[1])
        gain = torch.nan_to_num(energy - new_energy, nan=-torch.inf, neginf=-torch.inf)
        accepts = torch.rand_like(gain).log() < gain
        row = accepts[:, None]
        self._z, self._gradient = torch.where(row, end[0], z), torch.where(row, end[2], gradient)
        self._potential = torch.where(accepts, end[3], potential)
        return Draws(
            finished=torch.ones_like(accepts),
            z=self._z,
            log_density=-self._potential,
            energy=torch.where(accepts, new_energy, energy),
            accept=gain.clamp_max(0).exp(),
            diverging=gain < -DIVERGENCE,
            num_steps=torch.full_like(accepts, num_steps, dtype=torch.long),
        )

    def _energy(self, potential: Tensor, r: Tensor) -> Tensor:
        return potential + 0.5 * torch.linalg.vecdot(r, r * self.inverse_mass)
