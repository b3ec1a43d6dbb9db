"""Microcanonical Langevin Monte Carlo."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ._kernel import Compile, Kernel, Sampler, ValueAndGrad
from ._mclmc_adaptation import MCLMCAdaptation
from ._microcanonical import MCLMCKernel
from ._native import native_or_reason
from ._native_walkers import NativeMCLMCKernel


@dataclass(frozen=True)
class MCLMC(Sampler):
    r"""Microcanonical Langevin Monte Carlo: an unadjusted sampler for networks, whose chains start at trained members.

    A step takes two gradients. Steps are never rejected, so the draws are biased. The bias is small if the energy error
    of the steps is small, and warm-up chooses the step size by this error. Warm-up also learns the length over which a
    chain forgets its direction. Warm-up and sampling are counted in draws of `steps_per_draw` steps. For a network,
    warm up for 5,000 to 50,000 steps.

    The posterior of a network has many modes, and a chain stays in one. Give every chain the mode of a trained
    network (``init=`` an :class:`~pyro_bnn.EnsemblePosterior` or :class:`~pyro_bnn.inference.mcmc.Descent`): the draws
    of all chains are then an ensemble of explored modes with equal weights. This is not the posterior, where the weight
    of a mode is its probability.

    Args:
        steps_per_draw: Number of steps from one draw to the next.
        energy_error: Mean squared energy error of a step in nats, divided by P, at the end of warm-up. For a Gaussian
            posterior, the bias of the variances is proportional to its square root; 5e-4 makes the bias small.
        first_energy_error: The same at the beginning of warm-up; in between, the target changes linearly.

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
        """What one chain learns during warm-up: step size and length; see :class:`Sampler`."""
        return MCLMCAdaptation(num_warmup, self.steps_per_draw, (self.first_energy_error, self.energy_error), start)

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> Kernel:
        """The sampler on one potential: in C, with as many chains at a time as threads, or in torch."""
        if z.shape[1] < 2:
            raise ValueError("MCLMC needs a direction in space, but the model has one latent number; use NUTS().")
        sampler, not_in_c = native_or_reason(value_and_grad, z, compile)
        if sampler is not None:
            return NativeMCLMCKernel(sampler, z, self.steps_per_draw, num_threads=torch.get_num_threads())
        return MCLMCKernel(value_and_grad, z, self.steps_per_draw, not_in_c=not_in_c)
