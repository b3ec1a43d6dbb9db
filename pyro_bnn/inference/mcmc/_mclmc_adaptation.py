"""Warm-up of an MCLMC chain: step size from the energy error, length from variances and autocorrelations of draws."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ._adaptation import AnyAdaptation, FindStep
from ._kernel import Draws

MEMORY = 99 / 101
"""Factor by which each step lowers the weights of earlier steps, so that averages cover about a hundred steps."""

TRUST = 9.0
"""The weight of a step is a Gaussian function of log xi (see `MCLMCAdaptation`) with this standard deviation."""

SHRINKAGE = 0.8
"""After a step that was not taken, all later step sizes are at most this fraction of its size."""

FIRST_PHASE, SECOND_PHASE = 0.8, 0.9
"""Shares of warm-up after which the second and the third phase begin. At the end of the second phase, the length is set
from the variances of its draws; at the end of the third, from the autocorrelations of its draws."""

FORGETTING = 0.4
"""Length as a fraction of the distance that a chain moves in its mean autocorrelation time."""

FEWEST_DRAWS = 20
"""Heuristic: a phase with fewer draws does not change the length."""


class MCLMCAdaptation(AnyAdaptation):
    r"""What one chain learns during warm-up.

    The variance of the energy error grows with the sixth power of the step size h. With the error E of a step and
    :math:`\xi = E^2 / (P \tau)` for a target :math:`\tau`, the step size is :math:`\langle \xi / h^6 \rangle^{-1/6}`,
    an average over the last hundred steps with the weights :math:`\exp(-(\log \xi / 9)^2 / 2)`.

    Args:
        num_warmup: Number of warm-up draws.
        steps_per_draw: Number of steps of a draw.
        targets: Mean squared energy error divided by P, at the beginning and at the end of the warm-up.
        start: First point of the chain, shape (P,).

    References:
        Robnik et al. (2023), https://arxiv.org/abs/2212.08549, section 4.
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
        """Nothing is learned before the first draw."""

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
    """Integrated autocorrelation time in draws, averaged over the P numbers; at least 1.

    Pairs of neighbouring autocorrelations are summed until the sum of a pair is negative.

    Args:
        draws: Successive draws, shape (S, P).

    References:
        Geyer (1992), Practical Markov Chain Monte Carlo, section 3.3.
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
