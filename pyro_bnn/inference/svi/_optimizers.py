"""Functions that make optimizers from parameters, with clipped gradients or with a schedule."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..._core import checks as _checks

Schedule = LRScheduler | ReduceLROnPlateau
OptimizerMaker = Callable[[list[nn.Parameter]], Optimizer]
ScheduledMaker = Callable[[list[nn.Parameter]], tuple[Optimizer, Schedule]]


EXAMPLE = "a function from parameters to an optimizer, such as functools.partial(torch.optim.Adam, lr=1e-3)"


def clipped(optimizer: OptimizerMaker, max_norm: float) -> OptimizerMaker:
    """A maker of optimizers that clip the gradient of all their parameters together before each step.

    Args:
        optimizer: Function from a list of parameters to a torch optimizer.
        max_norm: Largest Euclidean norm of the whole gradient, above 0.

    Returns:
        A function of the same kind as `optimizer`.

    Raises:
        ValueError: If `max_norm` is not above 0.

    Example:
        >>> import functools, torch
        >>> adam = clipped(functools.partial(torch.optim.Adam, lr=1e-3), max_norm=10.0)
    """
    _checks.positive("max_norm", max_norm)
    _checks.function("optimizer", optimizer, EXAMPLE)

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        made = optimizer(parameters)
        _checks.kind("optimizer", made, Optimizer, EXAMPLE)

        def clip(inner: Any, args: object, kwargs: object) -> None:
            nn.utils.clip_grad_norm_([p for group in inner.param_groups for p in group["params"]], max_norm)

        made.register_step_pre_hook(clip)
        for group in made.param_groups:
            group["clipped_to"] = max_norm  # a setting like the others, which fits that go on must share
        return made

    return make


def scheduled(optimizer: OptimizerMaker, schedule: Callable[[Optimizer], Schedule]) -> ScheduledMaker:
    """A maker of optimizers, each with a learning-rate schedule that :func:`fit_svi` steps once an epoch.

    Args:
        optimizer: Function from a list of parameters to a torch optimizer.
        schedule: Function from an optimizer to one of torch's schedulers.

    Returns:
        A function from a list of parameters to the pair (optimizer, scheduler).

    Example:
        >>> import functools, torch
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-3)
        >>> decaying = scheduled(adam, functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=20))
    """
    _checks.function("optimizer", optimizer, EXAMPLE)
    _checks.function("schedule", schedule, "a function from an optimizer to one of torch's schedulers")

    def make(parameters: list[nn.Parameter]) -> tuple[Optimizer, Schedule]:
        made = optimizer(parameters)
        _checks.kind("optimizer", made, Optimizer, EXAMPLE)
        return made, require_schedule(schedule(made))

    return make


class SkippingOptimizer(Optimizer, ABC):
    """An optimizer of ours, whose step may do nothing as that of torch's fused optimizers."""

    found_inf: Tensor | None = None
    """Flag on the device, above 0 if a step must do nothing; None if it is known that it must be made."""

    @property
    @abstractmethod
    def can_skip(self) -> bool:
        """Whether :attr:`found_inf` can make a step do nothing."""


def skips_on_flag(optimizer: Optimizer) -> bool:
    """Whether a flag on the device can make a step of an optimizer do nothing, as torch's `GradScaler` needs it."""
    if isinstance(optimizer, SkippingOptimizer):
        return optimizer.can_skip
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False) and optimizer.defaults.get("fused"))


def require_maker(optimizer: object) -> None:
    """Raise unless a value can make optimizers from parameters; an optimizer of Pyro cannot."""
    is_class = isinstance(optimizer, type) and not issubclass(optimizer, Optimizer)
    if isinstance(optimizer, PyroOptim) or not callable(optimizer) or is_class:
        raise ValueError(
            "`optimizer` must make a torch optimizer from parameters, such as functools.partial(torch.optim.Adam, "
            f"lr=1e-3), got {_checks.described(optimizer)}."
        )


def require_schedule(schedule: Any) -> Schedule:
    """The schedule, if it is one of torch's, or another object with their methods.

    Raises:
        ValueError: If it is not.
    """
    needed = ("step", "state_dict", "load_state_dict")
    if isinstance(schedule, type) or not all(callable(getattr(schedule, name, None)) for name in needed):
        raise ValueError(
            "`schedule` must be a function from an optimizer to one of torch's schedulers, such as "
            "functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=20), got one that returns "
            f"{_checks.described(schedule)}."
        )
    return schedule


@contextmanager
def skipping(optimizer: Any, flag: Tensor) -> Iterator[None]:
    """A context in which a fused optimizer does nothing if the flag is set, as under torch's `GradScaler`."""
    optimizer.grad_scale, optimizer.found_inf = None, flag.float()
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
