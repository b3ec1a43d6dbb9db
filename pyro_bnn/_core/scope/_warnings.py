"""Filters of warnings, which belong to the process, and warnings about how a fit ended."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from ._exclusive import EXCLUSIVE


@contextmanager
def filtered_warnings(
    action: Literal["ignore", "error"], message: str = "", category: type[Warning] = Warning
) -> Iterator[None]:
    """A context in which warnings of a category whose text begins with a pattern are ignored, or raised.

    Other threads wait, since two overlapping contexts would leave one filter in place forever. Use this context for
    short computations only, and :func:`silent_fits` for a whole fit.
    """
    with EXCLUSIVE, warnings.catch_warnings():
        warnings.filterwarnings(action, message, category)
        yield


_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


@contextmanager
def silent_fits() -> Iterator[None]:
    """A context in which fits of this thread do not warn about how they ended; the caller reports their status."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def warn_of_fit(message: str, category: type[Warning], *, stacklevel: int) -> None:
    """Warn about how a fit ended, unless it runs in :func:`silent_fits`; `stacklevel` is as in `warnings.warn`."""
    if not _is_silent.get():
        warnings.warn(message, category, stacklevel=stacklevel + 1)


def outer_stacklevel() -> int:
    """The `stacklevel` with which the caller's warning points to the first line outside of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    return level
