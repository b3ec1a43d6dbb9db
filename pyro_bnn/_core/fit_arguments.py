"""Checks of the arguments that all fits share, before anything is computed or any file is touched."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from . import checks as _checks
from .checkpointing import Checkpoint

CallbackT = TypeVar("CallbackT", bound=Callable[..., object])


def check_fit(
    *, progress: object = False, checkpoint: object = None, resume: object = None, seed: object = None
) -> None:
    """Raise unless these arguments have the right types."""
    _checks.flag("progress", progress)  # type: ignore[arg-type]
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        Checkpoint(checkpoint)  # type: ignore[arg-type]
    if resume is not None:
        _checks.path("resume", resume)
    if seed is not None:
        _checks.seed(seed)  # type: ignore[arg-type]


def checked_callbacks(callbacks: Iterable[CallbackT]) -> list[CallbackT]:
    """The callbacks of a fit as a list."""
    example = "a list of functions of the history"
    found: list[CallbackT] = _checks.items("callbacks", callbacks, example)
    for callback in found:
        _checks.function("callbacks", callback, example)
        if isinstance(callback, type):
            name = callback.__name__
            raise ValueError(f"`callbacks` must be functions of the history, got the class {name}; pass {name}(...).")
    return found
