"""Clipped gradients and schedules for optimizers."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..._core import checks as _checks

Schedule = LRScheduler | ReduceLROnPlateau
OptimizerMaker = Callable[[list[nn.Parameter]], Optimizer]
ScheduledMaker = Callable[[list[nn.Parameter]], tuple[Optimizer, Schedule]]

EXAMPLE = "a function from parameters to an optimizer, such as functools.partial(torch.optim.Adam, lr=1e-3)"
INSTEAD_OF_RATE = "pass `functools.partial(torch.optim.Adam, lr=0.01)` as `optimizer`"
NEEDED = f"`optimizer` must make a torch optimizer from parameters, {EXAMPLE.partition(', ')[2]}"

SKIPPING = (Adagrad, Adam, AdamW, SGD)  # their fused versions skip a step if a flag on the device says so


def clipped(optimizer: OptimizerMaker, max_norm: float) -> OptimizerMaker:
    """Make an optimizer clip the gradient before each step.

    Args:
        optimizer: Function that takes a list of parameters and returns a torch optimizer.
        max_norm: Largest Euclidean norm, above 0, of the gradient of all parameters together.

    Returns:
        A function that takes a list of parameters and returns a torch optimizer.

    Raises:
        ValueError: If `max_norm` is not above 0.

    Example:
        >>> import functools
        >>> import torch
        >>> from pyro_bnn import optim
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-3)
        >>> safe = optim.clipped(adam, max_norm=10.0)
    """
    max_norm = _checks.positive("max_norm", max_norm)
    _checks.function("optimizer", optimizer, EXAMPLE)

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        made = optimizer(parameters)
        _checks.kind("optimizer", made, Optimizer, EXAMPLE)

        def clip(inner: Any, args: object, kwargs: object) -> None:
            nn.utils.clip_grad_norm_([p for group in inner.param_groups for p in group["params"]], max_norm)

        made.register_step_pre_hook(clip)
        for group in made.param_groups:
            group["clipped_to"] = max_norm  # in a checkpoint, this marks the setting, which a resumed fit must share
        return made

    return make


def scheduled(optimizer: OptimizerMaker, schedule: Callable[[Optimizer], Schedule]) -> ScheduledMaker:
    """Add a learning-rate schedule to an optimizer; :func:`fit_svi` calls the scheduler's `step` once per epoch.

    Args:
        optimizer: Function that takes a list of parameters and returns a torch optimizer.
        schedule: Function that takes an optimizer and returns one of torch's schedulers.

    Returns:
        A function that takes a list of parameters and returns the pair (optimizer, scheduler).

    Example:
        >>> import functools
        >>> import torch
        >>> from pyro_bnn import optim
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-3)
        >>> cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        >>> decaying = optim.scheduled(adam, functools.partial(cosine, T_max=20))
    """
    _checks.function("optimizer", optimizer, EXAMPLE)
    _checks.function("schedule", schedule, "a function from an optimizer to one of torch's schedulers")

    def make(parameters: list[nn.Parameter]) -> tuple[Optimizer, Schedule]:
        made = optimizer(parameters)
        _checks.kind("optimizer", made, Optimizer, EXAMPLE)
        return made, require_schedule(schedule(made))

    return make


class SkippingOptimizer(Optimizer):
    """An optimizer that skips a step if its flag :attr:`found_inf` is above 0, as torch's fused optimizers do."""

    found_inf: Tensor | None = None
    """The flag is a number on the device of the parameters. If it is None, no step is skipped."""

    @property
    def can_skip(self) -> bool:
        """Whether :attr:`found_inf` can make this optimizer skip a step."""
        return True


def make_recordable(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True


def skips_on_flag(optimizer: Optimizer) -> bool:
    """Whether an optimizer skips a step if a flag on the device says so, as torch's `GradScaler` requires."""
    if isinstance(optimizer, SkippingOptimizer):
        return optimizer.can_skip
    return isinstance(optimizer, SKIPPING) and bool(optimizer.defaults.get("fused"))


@contextmanager
def skipping(optimizer: Any, flag: Tensor) -> Iterator[None]:
    """Open a context in which a fused optimizer skips its steps if `flag` is true."""
    optimizer.grad_scale, optimizer.found_inf = None, flag.float()
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def require_maker(optimizer: object) -> None:
    is_class = isinstance(optimizer, type) and not issubclass(optimizer, Optimizer)
    if isinstance(optimizer, PyroOptim) or not callable(optimizer) or is_class:
        raise ValueError(f"{NEEDED}, got {_checks.described(optimizer)}.")


def require_schedule(schedule: Any) -> Schedule:
    needed = ("step", "state_dict", "load_state_dict")
    if isinstance(schedule, type) or not all(callable(getattr(schedule, name, None)) for name in needed):
        raise ValueError(
            "`schedule` must be a function from an optimizer to one of torch's schedulers, such as "
            "functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=20), got one that returns "
            f"{_checks.described(schedule)}."
        )
    return schedule


def require_usable(optimizer: Optimizer) -> None:
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "`optimizer` must work with noisy gradients, got LBFGS, whose line search evaluates the same loss several "
            "times in a step; use Adam, or `fit_laplace` for the mode."
        )
    if isinstance(optimizer, SparseAdam):
        raise ValueError("`optimizer` must work with the dense gradients of the KL, got SparseAdam; use Adam.")


def made_by(maker: Optimizer | OptimizerMaker, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the user's optimizer, or the one that the user's function makes. Warn if it lacks parameters."""
    made = maker if isinstance(maker, Optimizer) else maker(parameters)
    if not isinstance(made, Optimizer):
        raise ValueError(f"{NEEDED}, got a function that made {_checks.described(made)}.")
    require_usable(made)
    given = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    foreign = len(given - {id(parameter) for parameter in parameters})
    if foreign:
        raise ValueError(
            f"`optimizer` must have parameters of the guide or the model only, got {foreign} of {len(given)} foreign; "
            "make it from `[*guide.parameters(), *model.parameters()]`, or pass a function that makes it."
        )
    missing = [parameter.numel() for parameter in parameters if id(parameter) not in given]
    if missing:
        warnings.warn(
            f"`optimizer` must have all parameters of guide and model, got {len(given)} of {len(parameters)}: the "
            f"others ({sum(missing):,} numbers) are not learned. If you intend this, call `requires_grad_(False)` on "
            "them.",
            stacklevel=2,
        )
    return made
