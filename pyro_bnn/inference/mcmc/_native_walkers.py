"""Independent chains of MCLMC in C: several cores draw several chains at a time."""

import torch
from torch import Tensor

from ._kernel import Draws
from ._microcanonical import refreshment
from ._native_kernel import Native, NativeChain, NativeKernel


class _Walker(NativeChain):
    """One chain, whose point is a position, a direction, a gradient, a potential, and the energy errors of T steps."""

    def draw(self, setting: tuple[float, float]) -> Tensor:
        """The point of the next draw, from a step size and the scale of the noise on the direction."""
        point, num_weights = self.point.clone(), self.sampler.num_weights
        direction = point[num_weights : 2 * num_weights]
        if not bool(direction.any()):  # before the first draw
            direction.copy_(torch.nn.functional.normalize(self.normal(num_weights), dim=0))
        num_steps = len(point) - 3 * num_weights - 1
        self.sampler.walk(point, *setting, self.normal(num_steps, num_weights), self.scratch)
        return point


class NativeMCLMCKernel(NativeKernel):
    """MCLMC in C on one potential; see :class:`~pyro_bnn.MCLMC`.

    Attributes:
        length: Distance over which each chain forgets its direction, shape (K,). Warm-up writes it.
    """

    def __init__(self, sampler: Native, z: Tensor, steps_per_draw: int, *, num_threads: int = 1) -> None:
        potential, gradient = sampler.value_and_grad(z)
        rest = z.new_zeros(len(z), steps_per_draw)
        points = torch.cat([z, torch.zeros_like(z), gradient, potential[:, None], rest], -1)
        super().__init__(sampler, z, [_Walker(sampler, point) for point in points], num_threads=num_threads)
        self._steps_per_draw = steps_per_draw
        self.length = torch.ones_like(self.step_size)

    def at(self, z: Tensor) -> "NativeMCLMCKernel":
        """See :meth:`Kernel.at`."""
        return NativeMCLMCKernel(self.sampler, z, self._steps_per_draw, num_threads=self.num_threads)

    def setting(self, chain: int) -> tuple[float, float]:
        """Step size and scale of the noise on the direction."""
        step, num_weights = self.step_size[chain], self.inverse_mass.shape[1]
        return float(step), float(refreshment(step, self.length[chain], num_weights))

    def report(self, finished: Tensor, points: Tensor) -> Draws:
        """See :meth:`NativeKernel.report`."""
        num_weights = self.inverse_mass.shape[1]
        potential, errors = points[:, 3 * num_weights], points[:, 3 * num_weights + 1 :]
        return Draws(
            finished=finished,
            z=points[:, :num_weights],
            log_density=-potential,
            energy=None,
            accept=None,
            diverging=errors.isnan().any(-1),
            num_steps=torch.full(finished.shape, errors.shape[1]),
            energy_errors=errors,
        )
