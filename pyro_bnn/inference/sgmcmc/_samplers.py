"""Stochastic-gradient samplers, plans of their step sizes, and the optimizer that makes the steps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.processes import Processes
from ..svi import SkippingOptimizer

LEAST, MOST = 1e-30, 1e30  # limits of step sizes and temperatures in single precision


@dataclass(frozen=True)
class Stage:
    """Settings of one step of a chain."""

    factor: float  # step size as a fraction of the sampler's step size, from 0 to 1
    is_noisy: bool  # whether noise is added
    is_sampling: bool  # whether draws are kept


class StepSizes(ABC):
    """A plan of step sizes for a whole chain."""

    @abstractmethod
    def stage(self, step: int, num_steps: int) -> Stage:
        """Return the settings of step number `step`, counted from 0, of a chain of `num_steps` steps."""


@dataclass(frozen=True)
class ConstantSteps(StepSizes):
    """Steps of one size. During warm-up, the chain moves to the posterior, and keeps no draws.

    Args:
        warmup: Fraction of the steps that are warm-up, at least 0 and below 1.

    Example:
        >>> from pyro_bnn.inference.sgmcmc import ConstantSteps
        >>> steps = ConstantSteps(warmup=0.2)  # the argument `steps` of fit_sgmcmc
        >>> [steps.stage(step, 100).is_sampling for step in (19, 20)]
        [False, True]
    """

    warmup: float = 0.5

    def __post_init__(self) -> None:
        _check_fraction("warmup", self.warmup)

    def stage(self, step: int, num_steps: int) -> Stage:
        return Stage(1.0, True, step >= round(self.warmup * num_steps))


@dataclass(frozen=True)
class CyclicalSteps(StepSizes):
    r"""Cycles of step sizes: large steps explore, and small steps then sample.

    There are C cycles of equal length. When a fraction t of a cycle has passed, the step size is

    .. math:: \alpha = \tfrac12 \alpha_0 (1 + \cos \pi t).

    While t is below `exploration`, there is no noise: the chain moves to a mode, like an optimizer. In the rest of the
    cycle, it samples from this mode. Each cycle may find another mode.

    Args:
        num_cycles: Number of cycles, C.
        exploration: Fraction of each cycle without noise, at least 0 and below 1.

    References:
        Zhang et al. (2020), https://arxiv.org/abs/1902.03932, equation 1 and algorithm 1.

    Example:
        >>> from pyro_bnn import CyclicalSteps
        >>> CyclicalSteps(num_cycles=2).stage(25, 100)
        Stage(factor=0.5, is_noisy=True, is_sampling=True)
    """

    num_cycles: int = 4
    exploration: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_cycles", _checks.at_least("num_cycles", self.num_cycles, 1))
        _check_fraction("exploration", self.exploration)

    def stage(self, step: int, num_steps: int) -> Stage:
        length = math.ceil(num_steps / self.num_cycles)
        done = (step % length) / length
        is_sampling = done >= self.exploration
        return Stage(0.5 * (1 + math.cos(math.pi * done)), is_sampling, is_sampling)


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= _checks.number(name, value) < 1:
        raise ValueError(f"`{name}` must be at least 0 and below 1, got {value:g}.")


class StochasticGradientSampler(ABC):
    r"""Moves a point z by a noisy gradient of the potential :math:`U(z) = -\log p(y, z)`, in nats."""

    lr: float
    temperature: float

    @abstractmethod
    def move(self, point: Tensor, gradient: Tensor, memory: dict[str, Any], stage: Stage) -> None:
        r"""Move a point in place.

        Args:
            point: The point z, or a part of it.
            gradient: Unbiased estimate of :math:`\nabla U(z)`, which may be overwritten.
            memory: The sampler's state for this point, empty in the first step.
            stage: Settings of the step.
        """


@dataclass(frozen=True)
class SGLD(StochasticGradientSampler):
    r"""Stochastic-gradient Langevin dynamics.

    .. math:: z \leftarrow z - \alpha \nabla U(z) + \sqrt{2 \alpha T}\, \epsilon, \qquad \epsilon \sim N(0, I).

    The draws follow the posterior up to an error that vanishes with the step size :math:`\alpha`.

    Args:
        lr: Step size :math:`\alpha`. U is a sum over N rows, so divide the usual learning rate by N: ``lr=0.1 /
            num_data``.
        temperature: Temperature T. The draws follow the posterior to the power 1 / T.

    References:
        Welling and Teh (2011), Bayesian Learning via Stochastic Gradient Langevin Dynamics.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> sampler = pb.SGLD(lr=5e-4)
        >>> lengths = {"num_epochs": 2000, "num_samples": 1000}
        >>> posterior = pb.fit_sgmcmc(
        ...     model, (x, 2 * x), sampler=sampler, seed=1, **lengths
        ... )
        >>> posterior.chains["net.weight"].mean().round(decimals=1)
        tensor(2.)
    """

    lr: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_settings(self)

    def move(self, point: Tensor, gradient: Tensor, memory: dict[str, Any], stage: Stage) -> None:
        size = self.lr * stage.factor
        point.add_(gradient, alpha=-size)
        if stage.is_noisy:
            point.add_(gradient.normal_(), alpha=math.sqrt(2 * size * self.temperature))


@dataclass(frozen=True)
class SGHMC(StochasticGradientSampler):
    r"""Stochastic-gradient Hamiltonian Monte Carlo: Langevin dynamics with momentum.

    With a velocity v, a step size :math:`\alpha = h^2` and a momentum :math:`\beta`, a step is

    .. math:: v \leftarrow v - h \nabla U(z), \qquad z \leftarrow z + \tfrac h2 v, \qquad
              v \leftarrow \beta v + \sqrt{(1 - \beta^2) T}\, \epsilon, \qquad z \leftarrow z + \tfrac h2 v.

    A step needs one gradient, as in Chen et al. (2014), and its parts have the order of the BAOAB method of Leimkuhler
    and Matthews (2013). With an exact gradient, the step size causes no error for a Gaussian posterior, and a small
    error for other posteriors. The noise of minibatches causes an error that vanishes with the step size.

    Args:
        lr: Step size :math:`\alpha`. U is a sum over N rows, so divide the usual learning rate by N: ``lr=0.01 /
            num_data``. Steps along a constant gradient are about :math:`\alpha / (1 - \beta)` times the gradient.
        momentum: Share :math:`\beta` of the velocity that a step keeps, below 1; 0 gives Langevin dynamics.
        temperature: Temperature T. The draws follow the posterior to the power 1 / T.

    References:
        Chen, Fox and Guestrin (2014), https://arxiv.org/abs/1402.4102; Leimkuhler and Matthews (2013),
        https://arxiv.org/abs/1203.5428.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> sampler = pb.SGHMC(lr=1e-3, momentum=0.5)
        >>> lengths = {"num_epochs": 2000, "num_samples": 1000}
        >>> posterior = pb.fit_sgmcmc(
        ...     model, (x, 2 * x), sampler=sampler, seed=1, **lengths
        ... )
        >>> posterior.chains["net.weight"].mean().round(decimals=1)
        tensor(2.)
    """

    lr: float
    momentum: float = 0.9
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_settings(self)
        _check_fraction("momentum", self.momentum)

    def move(self, point: Tensor, gradient: Tensor, memory: dict[str, Any], stage: Stage) -> None:
        if "velocity" not in memory:
            memory["velocity"] = torch.randn_like(point).mul_(math.sqrt(self.temperature))
        velocity, h = memory["velocity"], math.sqrt(self.lr * stage.factor)
        velocity.add_(gradient, alpha=-h)
        point.add_(velocity, alpha=h / 2)
        velocity.mul_(self.momentum)
        if stage.is_noisy:
            velocity.add_(gradient.normal_(), alpha=math.sqrt((1 - self.momentum**2) * self.temperature))
        point.add_(velocity, alpha=h / 2)


def _check_settings(sampler: SGLD | SGHMC) -> None:
    if not LEAST < _checks.positive("lr", sampler.lr) < MOST:
        raise ValueError(
            f"`lr` must lie between {LEAST:g} and {MOST:g}, got {sampler.lr:g}; begin with 0.1 divided by the "
            "number of rows."
        )
    if _checks.not_negative("temperature", sampler.temperature) > MOST:
        raise ValueError(f"`temperature` must be at most {MOST:g}, got {sampler.temperature:g}; 1 is the posterior.")


class ChainOptimizer(SkippingOptimizer):
    """An optimizer whose steps move a chain.

    SVI with a :class:`~pyro_bnn.DeltaGuide` computes the gradients. After each step, `record` is called with the number
    of the step. All processes use the noise of process 0.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        sampler: StochasticGradientSampler,
        steps: StepSizes,
        num_steps: int,
        record: Callable[[int], None],
        processes: Processes,
    ) -> None:
        # A resumed fit must have the same settings. The history records `lr` as the step size.
        settings = {"lr": sampler.lr, "sampler": repr(sampler), "steps": repr(steps), "num_steps": num_steps}
        super().__init__(parameters, settings)
        self._sampler, self._steps, self._num_steps, self._record = sampler, steps, num_steps, record
        self._processes, self._count = processes, 0

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        stage = self._steps.stage(self._count, self._num_steps)
        for group in self.param_groups:
            group["lr"] = self._sampler.lr * stage.factor
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, stage)
            self._processes.broadcast_(group["params"])
        self._record(self._count)
        self._count += 1

    def _move(self, point: Tensor, gradient: Tensor, stage: Stage) -> None:
        if self.found_inf is None:
            self._sampler.move(point, gradient, self.state[point], stage)
            return
        is_bad, before = self.found_inf > 0, point.clone()
        self._sampler.move(point, gradient.masked_fill_(is_bad, 0), self.state[point], stage)
        point.copy_(torch.where(is_bad, before, point))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._count = state_dict["count"]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "count"})
