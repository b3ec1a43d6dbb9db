"""Step sizes along a chain, and the stages in which it explores or samples."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..._core import checks as _checks


@dataclass(frozen=True)
class Stage:
    """What a chain does at one step.

    Args:
        factor: Step size as a fraction of the sampler's, from 0 to 1.
        is_noisy: Whether noise is added. Without noise, the step is one of an optimizer.
        is_sampling: Whether draws are kept.
    """

    factor: float
    is_noisy: bool
    is_sampling: bool


class StepSizes(ABC):
    """A plan of step sizes for a whole chain."""

    @abstractmethod
    def stage(self, step: int, num_steps: int) -> Stage:
        """The stage at a step.

        Args:
            step: Number of the step, counted from 0.
            num_steps: Number of steps of the chain, M.
        """


@dataclass(frozen=True)
class ConstantSteps(StepSizes):
    """Steps of one size. The first steps find the posterior, and their draws are not kept.

    Args:
        warmup: Fraction of the steps that belong to the warm-up, at least 0 and below 1.
    """

    warmup: float = 0.5

    def __post_init__(self) -> None:
        _fraction("warmup", self.warmup)

    def stage(self, step: int, num_steps: int) -> Stage:
        return Stage(1.0, True, step >= round(self.warmup * num_steps))


@dataclass(frozen=True)
class CyclicalSteps(StepSizes):
    r"""Cycles of large steps that explore, and small steps that sample.

    With C cycles of M / C steps each, and t the elapsed fraction of a step's cycle, the step size is

    .. math:: \alpha = \tfrac12 \alpha_0 (1 + \cos \pi t).

    While t is below `exploration` there is no noise, and the chain moves to a mode like an optimizer. Then it samples
    from this mode. Each cycle may find another mode.

    Args:
        num_cycles: Number of cycles, C.
        exploration: Fraction of each cycle without noise, at least 0 and below 1.

    References:
        Zhang et al. (2020), Cyclical Stochastic Gradient MCMC for Bayesian Deep Learning,
        https://arxiv.org/abs/1902.03932, equation 1 and algorithm 1.

    Example:
        >>> CyclicalSteps(num_cycles=2).stage(25, 100)
        Stage(factor=0.5, is_noisy=True, is_sampling=True)
    """

    num_cycles: int = 4
    exploration: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_cycles", _checks.at_least("num_cycles", self.num_cycles, 1))
        _fraction("exploration", self.exploration)

    def stage(self, step: int, num_steps: int) -> Stage:
        length = math.ceil(num_steps / self.num_cycles)
        done = (step % length) / length
        is_sampling = done >= self.exploration
        return Stage(0.5 * (1 + math.cos(math.pi * done)), is_sampling, is_sampling)


def _fraction(name: str, value: float) -> None:
    if not 0 <= _checks.number(name, value) < 1:
        raise ValueError(f"`{name}` must be a fraction of at least 0 and below 1, got {value:g}.")
