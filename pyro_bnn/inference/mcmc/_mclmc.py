r"""Microcanonical Langevin Monte Carlo: chains that move at unit speed, without an accept/reject step.

A chain has a position z of P numbers and a direction u of length 1. With the potential U, the dynamics

.. math:: \dot z = u, \qquad \dot u = -(1 - u u^T)\, \nabla U(z) / (P - 1)

leave the density exp(-U) of z unchanged. So does the noise that is added to the direction after each step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..._core import checks as _checks
from ._adaptation import AnyAdaptation, FindStep
from ._kernel import DIVERGENCE, Compile, Draws, Kernel, Sampler, ValueAndGrad
from ._native import Native, NativeChain, NativeKernel, native_or_reason
from ._traced import TorchKernel

OUTER = 0.1931833275037836  # share of a step's time of its first and its last turn, which minimises the step's error
MEMORY = 99 / 101  # factor of the weights of earlier steps, so that averages cover about a hundred steps
TRUST = 9.0  # standard deviation of the Gaussian weight of a step over log xi; see `MCLMCAdaptation`
SHRINKAGE = 0.8  # after a step that diverges, all later steps have at most this fraction of its size

FIRST_PHASE, SECOND_PHASE = 0.8, 0.9
"""Shares of warm-up after which its first and its second phase end.

After the second phase, the variances of its draws set the length over which a chain forgets its direction. After the
third phase, at the end of warm-up, the autocorrelations of its draws set this length.
"""

FORGETTING = 0.4  # length over which a chain forgets its direction, over that of its path in an autocorrelation time
FEWEST_DRAWS = 20  # heuristic: a phase with fewer draws does not change this length


@dataclass(frozen=True)
class MCLMC(Sampler):
    """Microcanonical Langevin Monte Carlo, a sampler for networks.

    MCLMC has no accept/reject step, so the draws are biased. The bias is small if the energy error of the steps is
    small, so warm-up chooses the step size by this error. Warm-up also learns how far a chain moves until its direction
    is random again. For a network, warm-up should take 5,000 to 50,000 steps. Each step computes two gradients.

    A chain stays in one of the many modes of a network's posterior. Start every chain at a trained network: pass an
    :class:`~pyro_bnn.EnsemblePosterior` or a :class:`~pyro_bnn.inference.mcmc.Descent` as ``init``. The modes of all
    chains have the same weight in the draws, although their posterior probabilities differ.

    Args:
        steps_per_draw: Number of steps from one draw to the next, also in warm-up.
        energy_error: Target at the end of warm-up: the mean squared energy error of a step, in squared nats, divided by
            the number P of latent values. For a Gaussian posterior, the bias of the variances is proportional to the
            square root of this error. In small problems, standard deviations were wrong by 15 to 26 % with 0.1, and by
            3 to 11 % with 0.005. A tenth of the error needs 1.5 times as many steps.
        first_energy_error: Target at the beginning of warm-up; the target then changes linearly to `energy_error`.

    References:
        Robnik et al. (2023), https://arxiv.org/abs/2212.08549; Robnik and Seljak (2023),
        https://arxiv.org/abs/2303.18221; for networks, Sommer et al. (2025), https://arxiv.org/abs/2502.06335.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_mcmc(
        ...     model, (x, 2 * x), sampler=pb.MCLMC(), compile="auto", seed=0
        ... )
        >>> posterior.sample(100, seed=0)["net.weight"].shape
        torch.Size([100, 1, 1])
    """

    steps_per_draw: int = 10
    energy_error: float = 0.1
    first_energy_error: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps_per_draw", _checks.at_least("steps_per_draw", self.steps_per_draw, 1))
        _checks.positive("energy_error", self.energy_error)
        _checks.positive("first_energy_error", self.first_energy_error)

    def adaptation(self, num_warmup: int, target_accept: float, start: Tensor) -> AnyAdaptation:
        return MCLMCAdaptation(num_warmup, self.steps_per_draw, (self.first_energy_error, self.energy_error), start)

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> Kernel:
        if z.shape[1] < 2:
            raise ValueError("MCLMC needs at least two latent numbers, but the model has one; use NUTS().")
        sampler, not_in_c = native_or_reason(value_and_grad, z, compile)
        if sampler is not None:
            return NativeMCLMCKernel(sampler, z, self.steps_per_draw, num_threads=torch.get_num_threads())
        return MCLMCKernel(value_and_grad, z, self.steps_per_draw, not_in_c=not_in_c)


class MCLMCAdaptation(AnyAdaptation):
    r"""Step size of one chain of MCLMC, and the length over which the chain forgets its direction.

    The variance of the energy error grows with the sixth power of the step size h. Let E be the energy error of a step,
    :math:`\tau` the target, and :math:`\xi = E^2 / (P \tau)`. The step size is
    :math:`\langle \xi / h^6 \rangle^{-1/6}`. The brackets are an average over about a hundred steps, with the weights
    :math:`\exp(-(\log \xi / 9)^2 / 2)`. `targets` contains :math:`\tau` at the beginning and at the end of warm-up.
    See Robnik et al. (2023), https://arxiv.org/abs/2212.08549, section 4.
    """

    def __init__(self, num_warmup: int, steps_per_draw: int, targets: tuple[float, float], start: Tensor) -> None:
        self._num_warmup, self._steps_per_draw, self._targets = num_warmup, steps_per_draw, targets
        self._ends = tuple(round(share * num_warmup) for share in (FIRST_PHASE, SECOND_PHASE))
        self._recent: list[Tensor] = []  # draws of the second and third phase
        self._sum, self._weight, self._largest = 0.0, 0.0, math.inf
        self.inverse_mass = torch.ones_like(start)
        self.length = math.sqrt(len(start))
        self.step_size = self.length / 4

    def restart(self, z: Tensor, find_step: FindStep) -> None:
        """Do nothing: the first step size depends only on the number of weights."""

    def apply(self, kernel: Any, chain: int) -> None:
        kernel.step_size[chain] = self.step_size
        kernel.length[chain] = self.length

    def update(self, index: int, draws: Draws, chain: int, find_step: FindStep) -> None:
        z, num_weights = draws.z[chain], draws.z.shape[1]
        first, last = self._targets
        target = num_weights * (first + (last - first) * index / max(self._num_warmup - 1, 1))
        step = self.step_size
        assert draws.energy_errors is not None
        for error in draws.energy_errors[chain].tolist():
            if math.isnan(error):
                self._largest = min(self._largest, SHRINKAGE * step)
                continue
            xi = error**2 / target + 1e-8
            weight = math.exp(-0.5 * (math.log(xi) / TRUST) ** 2)
            self._sum = MEMORY * self._sum + weight * xi / step**6
            self._weight = MEMORY * self._weight + weight
        if self._weight:
            self.step_size = min((self._sum / self._weight) ** (-1 / 6), self._largest)
        else:
            self.step_size = self._largest
        self._learn_length(index + 1, z)

    def _learn_length(self, num_drawn: int, z: Tensor) -> None:
        first, second = self._ends
        if num_drawn > first:
            self._recent.append(z.clone())
        if num_drawn == second and len(self._recent) >= FEWEST_DRAWS:
            self.length = math.sqrt(float(torch.stack(self._recent).var(0).sum()))
        if num_drawn == self._num_warmup and len(self._recent) - (second - first) >= FEWEST_DRAWS:
            steps = self._steps_per_draw * autocorrelation_time(torch.stack(self._recent[second - first :]))
            self.length = FORGETTING * self.step_size * steps
        if num_drawn == self._num_warmup:
            self._recent.clear()
        self.length = max(self.length, FORGETTING * self.step_size)  # the variance of equal draws is 0

    def state(self) -> dict[str, Any]:
        return {
            "step_size": self.step_size,
            "length": self.length,
            "sum": self._sum,
            "weight": self._weight,
            "largest": self._largest,
            "recent": list(self._recent),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step_size, self.length = (_checks.positive(name, state[name]) for name in ("step_size", "length"))
        self._sum, self._weight = (_checks.number(name, state[name]) for name in ("sum", "weight"))
        self._largest = state["largest"]
        self._recent = [draw.to(self.inverse_mass, copy=True) for draw in state["recent"]]


def autocorrelation_time(draws: Tensor) -> float:
    """Return the integrated autocorrelation time of draws, shape (S, P), averaged over the P numbers; at least 1.

    Pairs of neighbouring autocorrelations are summed until the sum of a pair is negative: Geyer (1992), section 3.3.
    """
    size = len(draws)
    centred = draws.double() - draws.double().mean(0)
    transform = torch.fft.rfft(centred, n=2 * size, dim=0)
    covariance = torch.fft.irfft(transform.abs() ** 2, n=2 * size, dim=0)[:size]
    varies = covariance[0] > 0
    if not bool(varies.any()):
        return 1.0
    correlation = (covariance[:, varies] / covariance[0, varies])[: size // 2 * 2]
    pairs = correlation.unflatten(0, (-1, 2)).sum(1)
    kept = (pairs > 0).cumprod(0)
    return float((2 * (pairs * kept).sum(0) - 1).clamp_min(1).mean())


class MCLMCKernel(TorchKernel):
    """MCLMC in torch. `length`, shape (K,), is the distance over which each chain forgets its direction."""

    fields = ("z", "direction", "gradient", "potential")

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, steps_per_draw: int, *, not_in_c: str) -> None:
        super().__init__(value_and_grad, z, not_in_c)
        self.length = torch.ones_like(self.step_size)
        self._steps_per_draw = steps_per_draw
        self._z, self._direction = z, torch.zeros_like(z)
        self._potential, self._gradient = self.value_and_grad(z)

    def draw(self) -> Draws:
        if not bool(self._direction.any()):  # before the first draw
            self._direction = normalize(torch.randn_like(self._z))
        errors = torch.stack([self._step() for _ in range(self._steps_per_draw)], -1)
        return _draws(torch.ones_like(self.step_size, dtype=torch.bool), self._z, self._potential, errors)

    def _step(self) -> Tensor:
        """Try a step of each chain; return energy errors, shape (K,), NaN for a step that diverges and is not taken."""
        z, step, num_weights = self._z, self.step_size[:, None], self._z.shape[1]
        direction, change = turned(self._direction, self._gradient, OUTER * step)
        z = torch.addcmul(z, direction, 0.5 * step)
        direction, middle = turned(direction, self.value_and_grad(z)[1], (1 - 2 * OUTER) * step)
        z = torch.addcmul(z, direction, 0.5 * step)
        potential, gradient = self.value_and_grad(z)
        direction, last = turned(direction, gradient, OUTER * step)
        error = change + middle + last + potential - self._potential
        is_taken = (error.square() <= DIVERGENCE * num_weights) & gradient.isfinite().all(-1)
        row = is_taken[:, None]
        self._z, self._gradient = torch.where(row, z, self._z), torch.where(row, gradient, self._gradient)
        self._potential = torch.where(is_taken, potential, self._potential)
        direction = torch.where(row, direction, self._direction)
        noise = refreshment(self.step_size, self.length, num_weights)[:, None] * torch.randn_like(z)
        self._direction = normalize(direction + noise)
        return torch.where(is_taken, error, torch.nan)


def turned(direction: Tensor, gradient: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return new directions, shape (K, P), and changes of kinetic energy, after a time t with constant gradients.

    Let u be the direction of a chain, g its gradient, :math:`e = -g / |g|`, :math:`\delta = t |g| / (P - 1)`,
    :math:`\zeta = e^{-\delta}` and :math:`a = u \cdot e`. The new direction is
    :math:`e (1 - \zeta) (1 + \zeta + a (1 - \zeta)) + 2 \zeta u`, scaled to length 1. The kinetic energy grows by
    :math:`(P - 1) (\delta - \log 2 + \log(1 + a + (1 - a) \zeta^2))`.
    """
    norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    descent = -gradient / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    free = gradient.shape[1] - 1
    delta = time * norm / free
    zeta, along = (-delta).exp(), (direction * descent).sum(-1, keepdim=True)
    new = descent * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * direction
    change = free * (delta - math.log(2) + (1 + along + (1 - along) * zeta**2).log())
    return normalize(new), change.squeeze(-1)


def refreshment(step: Tensor, length: Tensor, num_weights: int) -> Tensor:
    """Return the standard deviation of the noise that makes a chain forget its direction over the distance `length`."""
    return (torch.expm1(2 * step / length) / num_weights).sqrt()


def _draws(finished: Tensor, z: Tensor, potential: Tensor, errors: Tensor) -> Draws:
    num_steps = torch.full_like(finished, errors.shape[1], dtype=torch.long)
    diverging = errors.isnan().any(-1)
    return Draws(finished, z, -potential, None, None, diverging, num_steps, energy_errors=errors)


class _MCLMCChain(NativeChain):
    """A chain whose `point` has a position, a direction, a gradient, a potential, and T energy errors."""

    def draw(self, setting: tuple[float, float]) -> Tensor:
        """Make a draw, given the step size and the scale of the noise."""
        point, num_weights = self.point.clone(), self.sampler.num_weights
        direction = point[num_weights : 2 * num_weights]
        if not bool(direction.any()):  # before the first draw
            direction.copy_(normalize(self.normal(num_weights), dim=0))
        errors = point[3 * num_weights + 1 :]
        normal = self.normal(len(errors), num_weights)
        pointers = normal.data_ptr(), errors.data_ptr(), self.scratch.data_ptr(), self.sampler.data
        before = torch.empty_like(point)
        self.sampler.langevin_steps(point.data_ptr(), before.data_ptr(), len(errors), *setting, *pointers)
        return point


class NativeMCLMCKernel(NativeKernel):
    """MCLMC in C; for `length` see :class:`MCLMCKernel`."""

    def __init__(self, sampler: Native, z: Tensor, steps_per_draw: int, *, num_threads: int = 1) -> None:
        potential, gradient = sampler.value_and_grad(z)
        rest = z.new_zeros(len(z), steps_per_draw)
        points = torch.cat([z, torch.zeros_like(z), gradient, potential[:, None], rest], -1)
        super().__init__(sampler, z, [_MCLMCChain(sampler, point) for point in points], num_threads=num_threads)
        self._steps_per_draw = steps_per_draw
        self.length = torch.ones_like(self.step_size)

    def at(self, z: Tensor) -> "NativeMCLMCKernel":
        return NativeMCLMCKernel(self.sampler, z, self._steps_per_draw, num_threads=self.num_threads)

    def setting(self, chain: int) -> tuple[float, float]:
        step, num_weights = self.step_size[chain], self.inverse_mass.shape[1]
        return float(step), float(refreshment(step, self.length[chain], num_weights))

    def report(self, finished: Tensor, points: Tensor) -> Draws:
        num_weights = self.inverse_mass.shape[1]
        rest = points[:, 3 * num_weights :]
        return _draws(finished, points[:, :num_weights], rest[:, 0], rest[:, 1:])
