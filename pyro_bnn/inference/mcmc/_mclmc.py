"""Microcanonical Langevin Monte Carlo."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ._kernel import Compile, Kernel, Sampler, ValueAndGrad
from ._mclmc_adaptation import MCLMCAdaptation
from ._microcanonical import MCLMCKernel
from ._native import native_or_reason
from ._native_kernel import NativeMCLMCKernel


@dataclass(frozen=True)
class MCLMC(Sampler):
    r"""Microcanonical Langevin Monte Carlo, a sampler for networks. It has no accept/reject step.

    Without rejections the draws are biased. The bias is small if the energy error of the steps is small, so warm-up
    chooses the step size by this error. Warm-up also learns the length over which a chain forgets its direction.
    For a network, warm-up should take 5,000 to 50,000 steps. Each step computes two gradients.

    The posterior of a network has many modes, and a chain stays in one. Start every chain at a trained network: pass an
    :class:`~pyro_bnn.EnsemblePosterior` or a :class:`~pyro_bnn.inference.mcmc.Descent` as ``init``. The draws
    then give each of these modes the same weight, which is not its probability under the posterior.

    Args:
        steps_per_draw: Number of steps from one draw to the next, in warm-up too.
        energy_error: Target at the end of warm-up for the mean squared energy error of a step in nats, divided by P.
            For a Gaussian posterior, the bias of the variances is proportional to the square root of this target, and
            small for 5e-4.
        first_energy_error: Target at the beginning of warm-up, from which the target changes linearly.

    References:
        Robnik et al. (2023), https://arxiv.org/abs/2212.08549; Robnik and Seljak (2023),
        https://arxiv.org/abs/2303.18221; for networks, Sommer et al. (2025), https://arxiv.org/abs/2502.06335.
    """

    steps_per_draw: int = 10
    energy_error: float = 0.1
    first_energy_error: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps_per_draw", _checks.at_least("steps_per_draw", self.steps_per_draw, 1))
        _checks.positive("energy_error", self.energy_error)
        _checks.positive("first_energy_error", self.first_energy_error)

    def adaptation(self, num_warmup: int, target_accept: float, start: Tensor) -> MCLMCAdaptation:
        return MCLMCAdaptation(num_warmup, self.steps_per_draw, (self.first_energy_error, self.energy_error), start)

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> Kernel:
        if z.shape[1] < 2:
            raise ValueError("MCLMC needs at least two latent numbers, but the model has one; use NUTS().")
        sampler, not_in_c = native_or_reason(value_and_grad, z, compile)
        if sampler is not None:
            return NativeMCLMCKernel(sampler, z, self.steps_per_draw, num_threads=torch.get_num_threads())
        return MCLMCKernel(value_and_grad, z, self.steps_per_draw, not_in_c=not_in_c)
