"""Warm-up of a chain, which learns the step size by dual averaging and the mass matrix from variances of draws."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import plain, record

TARGET_ACCEPT = 0.8  # Stan's default acceptance rate; a rate nearer to 1 means smaller steps and fewer divergences

INITIAL_BUFFER, FINAL_BUFFER, FIRST_WINDOW = 75, 50, 25
"""Numbers of draws in Stan's warm-up: before the windows that learn the mass matrix, after them, and in the first
window.

A warm-up with fewer than 150 draws has shorter parts.
"""

SHORTEST_WITH_MASS = 50  # heuristic: a shorter warm-up learns no mass matrix, as it needs a new step size afterwards
FEWEST_UPDATES = 10  # heuristic: until then, the first step size stays, as dual averaging begins at ten times this size
SHRINKAGE = 1e-3  # Stan shrinks a variance towards this value, which has the weight of 5 draws

FindStep = Callable[[Tensor, Tensor], float]
"""Function from a point and an inverse mass, both of shape (P,), to an initial step size."""


def windows(num_warmup: int) -> list[int]:
    """Return the numbers of draws after which the mass matrix is updated, as in the Stan reference manual."""
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


@dataclass
class DualAveraging:
    r"""A step size that is adapted towards a target acceptance rate; Hoffman and Gelman (2014), section 3.2.

    .. math:: \log \epsilon_{t+1} = \mu - \frac{\sqrt t}{\gamma (t + t_0)} \sum_{s \le t} (\delta - \alpha_s).

    Here :math:`\epsilon_t` is the step size of draw t, :math:`\alpha_t` its acceptance rate, :math:`\delta` the target,
    and :math:`\mu` the logarithm of ten times the first step size.
    """

    step_size: float
    target: float
    first: float | None = None  # the first step size
    count: int = 0
    error: float = 0.0
    log_average: float = 0.0

    GAMMA, T0, KAPPA = 0.05, 10.0, 0.75

    def __post_init__(self) -> None:
        self.first = self.step_size if self.first is None else self.first
        self._mu = math.log(10 * self.first)

    def update(self, accept: float) -> None:
        self.count += 1
        eta = 1 / (self.count + self.T0)
        self.error += eta * (self.target - accept - self.error)
        log_step = self._mu - math.sqrt(self.count) / self.GAMMA * self.error
        weight = self.count**-self.KAPPA
        self.log_average += weight * (log_step - self.log_average)
        self.step_size = math.exp(log_step)

    @property
    def average(self) -> float:
        return math.exp(self.log_average) if self.count >= FEWEST_UPDATES else self.first or self.step_size


@dataclass
class Welford:
    """Running variance of vectors (Welford, 1962)."""

    mean: Tensor
    square: Tensor
    count: int = 0

    @classmethod
    def like(cls, vector: Tensor) -> "Welford":
        return cls(torch.zeros_like(vector), torch.zeros_like(vector))

    def update(self, value: Tensor) -> None:
        self.count += 1
        deviation = value - self.mean
        self.mean += deviation / self.count
        self.square += deviation * (value - self.mean)

    def variance(self) -> Tensor:
        n = self.count
        return (n / (n + 5)) * self.square / (n - 1) + SHRINKAGE * 5 / (n + 5)


class AnyAdaptation(ABC):
    """Settings that one chain learns in warm-up. `inverse_mass` has shape (P,)."""

    step_size: float
    inverse_mass: Tensor

    @abstractmethod
    def restart(self, z: Tensor, find_step: FindStep) -> None:
        """Begin to learn the step size at z, shape (P,), before the first draw or after a change of the mass matrix."""

    def apply(self, kernel: Any, chain: int) -> None:
        kernel.step_size[chain], kernel.inverse_mass[chain] = self.step_size, self.inverse_mass

    @abstractmethod
    def update(self, index: int, draws: Any, chain: int, find_step: FindStep) -> None:
        """Learn from draw number `index` of the warm-up, counted from 0."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return, as plain data, everything that was learned."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of :meth:`state`."""


class Adaptation(AnyAdaptation):
    def __init__(self, num_warmup: int, target: float, start: Tensor) -> None:
        self._num_warmup, self._target = num_warmup, target
        self._ends = windows(num_warmup)
        is_long = num_warmup >= INITIAL_BUFFER + FIRST_WINDOW + FINAL_BUFFER
        self._first = INITIAL_BUFFER if is_long else int(0.15 * num_warmup)
        self._welford = Welford.like(start)
        self.inverse_mass = torch.ones_like(start)
        self._averaging = DualAveraging(1.0, target)
        self.step_size = self._averaging.step_size

    def restart(self, z: Tensor, find_step: FindStep) -> None:
        self._averaging = DualAveraging(find_step(z, self.inverse_mass), self._target)
        self.step_size = self._averaging.step_size

    def update(self, index: int, draws: Any, chain: int, find_step: FindStep) -> None:
        z = draws.z[chain]
        self._averaging.update(float(draws.accept[chain]))
        self.step_size = self._averaging.step_size
        if self._ends and self._first <= index < self._ends[-1]:
            self._welford.update(z)
        if index + 1 in self._ends:
            self.inverse_mass = self._welford.variance()
            self._welford = Welford.like(z)
            self.restart(z, find_step)
        if index + 1 == self._num_warmup:
            self.step_size = self._averaging.average

    def state(self) -> dict[str, Any]:
        return {
            "step_size": self.step_size,
            "inverse_mass": self.inverse_mass,
            "averaging": plain(self._averaging),
            "welford": plain(self._welford),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step_size = _checks.positive("step_size", state["step_size"])
        self.inverse_mass = state["inverse_mass"].to(self.inverse_mass, copy=True)
        self._averaging = record(DualAveraging, state["averaging"], "averaging")
        welford = record(Welford, state["welford"], "welford")
        mean, square = (part.to(self.inverse_mass, copy=True) for part in (welford.mean, welford.square))
        self._welford = Welford(mean, square, welford.count)
