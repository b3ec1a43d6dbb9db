"""Warm-up of one chain: step size by dual averaging, mass matrix from the draws' variances."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks

TARGET_ACCEPT = 0.8
"""Stan's default; nearer to 1 means smaller steps and fewer divergences."""

INITIAL_BUFFER, FINAL_BUFFER, FIRST_WINDOW = 75, 50, 25
"""Stan's default schedule, for 150 warm-up draws or more."""

SHORTEST_WITH_MASS = 50
"""Shorter warm-ups learn no mass matrix: the step size has to be learned again after it; heuristic."""

FEWEST_UPDATES = 10
"""Dual averaging starts at ten times the first step size. After fewer updates that still shows; heuristic."""

SHRINKAGE = 1e-3
"""Value towards which Stan shrinks a variance, with the weight of 5 draws."""


FindStep = Callable[[Tensor, Tensor], float]
"""Function of a point and an inverse mass, both of shape (P,), that returns a first step size."""


def windows(num_warmup: int) -> list[int]:
    """Numbers of draws after which the mass matrix is renewed.

    The windows between them double in length. A buffer before the first and one after the last is for the step size.

    References:
        Stan reference manual, "HMC algorithm parameters: automatic parameter tuning".

    Example:
        >>> windows(1000), windows(100), windows(30)
        ([100, 150, 250, 450, 950], [80], [])
    """
    if num_warmup < SHORTEST_WITH_MASS:
        return []
    if num_warmup < INITIAL_BUFFER + FIRST_WINDOW + FINAL_BUFFER:
        return [num_warmup - num_warmup // 5]
    last = num_warmup - FINAL_BUFFER
    ends, end, size = [], INITIAL_BUFFER, FIRST_WINDOW
    while end < last:
        end = last if end + 3 * size > last else end + size  # the last window takes what is left
        ends.append(end)
        size *= 2
    return ends


class DualAveraging:
    r"""A step size whose acceptance rate tends to a target.

    .. math:: \log \epsilon_{t+1} = \mu - \frac{\sqrt t}{\gamma (t + t_0)} \sum_{s \le t} (\delta - \alpha_s).

    References:
        Hoffman and Gelman (2014), The No-U-Turn Sampler, section 3.2, whose constants these are.
    """

    GAMMA, T0, KAPPA = 0.05, 10.0, 0.75

    def __init__(self, step_size: float, target: float) -> None:
        self._target, self._mu = target, math.log(10 * step_size)
        self._count, self._error, self._log_average = 0, 0.0, 0.0
        self.step_size = self._first = step_size

    def update(self, accept: float) -> None:
        """Learn from the acceptance rate of one draw."""
        self._count += 1
        eta = 1 / (self._count + self.T0)
        self._error += eta * (self._target - accept - self._error)
        log_step = self._mu - math.sqrt(self._count) / self.GAMMA * self._error
        weight = self._count**-self.KAPPA
        self._log_average += weight * (log_step - self._log_average)
        self.step_size = math.exp(log_step)

    @property
    def average(self) -> float:
        """The step size to keep after warm-up."""
        return math.exp(self._log_average) if self._count >= FEWEST_UPDATES else self._first

    def state(self) -> dict[str, Any]:
        """What it has learned, as plain data."""
        return {
            "mu": self._mu,
            "count": self._count,
            "error": self._error,
            "log_average": self._log_average,
            "step_size": self.step_size,
            "first": self._first,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._count = _checks.at_least("count", state["count"], 0)
        self._mu, self._error, self._log_average, self.step_size, self._first = (
            _checks.number(name, state[name]) for name in ("mu", "error", "log_average", "step_size", "first")
        )


class Welford:
    """Running variance of vectors (Welford, 1962)."""

    def __init__(self, like: Tensor) -> None:
        self._count, self._mean, self._square = 0, torch.zeros_like(like), torch.zeros_like(like)

    def update(self, value: Tensor) -> None:
        """Take in one vector."""
        self._count += 1
        deviation = value - self._mean
        self._mean += deviation / self._count
        self._square += deviation * (value - self._mean)

    def variance(self) -> Tensor:
        """Variance of each element, shrunk as Stan does it."""
        n = self._count
        return (n / (n + 5)) * self._square / (n - 1) + SHRINKAGE * 5 / (n + 5)

    def state(self) -> dict[str, Any]:
        """What it has taken in, as plain data."""
        return {"count": self._count, "mean": self._mean, "square": self._square}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._count = _checks.at_least("count", state["count"], 0)
        self._mean, self._square = (state[name].to(self._mean, copy=True) for name in ("mean", "square"))


class Adaptation:
    """What one chain learns during warm-up, from its first point, shape (P,)."""

    def __init__(self, num_warmup: int, target: float, start: Tensor) -> None:
        self._num_warmup, self._target = num_warmup, target
        self._ends = windows(num_warmup)
        is_long = num_warmup >= INITIAL_BUFFER + FIRST_WINDOW + FINAL_BUFFER
        self._first = INITIAL_BUFFER if is_long else int(0.15 * num_warmup)
        self._welford = Welford(start)
        self.inverse_mass = torch.ones_like(start)
        self._averaging = DualAveraging(1.0, target)
        self.step_size = self._averaging.step_size

    def restart(self, z: Tensor, find_step: FindStep) -> None:
        """Learn the step size from the beginning, as at the first point and with each new mass matrix."""
        self._averaging = DualAveraging(find_step(z, self.inverse_mass), self._target)
        self.step_size = self._averaging.step_size

    def update(self, index: int, z: Tensor, accept: float, find_step: FindStep) -> None:
        """Learn from warm-up draw number `index`, counted from 0."""
        self._averaging.update(accept)
        self.step_size = self._averaging.step_size
        if self._ends and self._first <= index < self._ends[-1]:
            self._welford.update(z)
        if index + 1 in self._ends:
            self.inverse_mass = self._welford.variance()
            self._welford = Welford(z)
            self.restart(z, find_step)
        if index + 1 == self._num_warmup:
            self.step_size = self._averaging.average

    def state(self) -> dict[str, Any]:
        """What the chain has learned, as plain data."""
        return {
            "step_size": self.step_size,
            "inverse_mass": self.inverse_mass,
            "averaging": self._averaging.state(),
            "welford": self._welford.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.step_size = _checks.positive("step_size", state["step_size"])
        self.inverse_mass = state["inverse_mass"].to(self.inverse_mass, copy=True)
        self._averaging.restore(state["averaging"])
        self._welford.restore(state["welford"])
