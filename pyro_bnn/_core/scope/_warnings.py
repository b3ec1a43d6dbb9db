"""Filters of warnings, and warnings about how a fit ended. All threads share the filters."""

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
    """In a `with` block, ignore the warnings of a category, or raise them as errors.

    Only warnings whose text begins with the regular expression `message` are affected.
    Other threads wait, since two blocks that overlap would leave one filter in place forever. Use this function for
    short computations only, and :func:`silent_fits` for a whole fit.
    """
    with EXCLUSIVE, warnings.catch_warnings():
        warnings.filterwarnings(action, message, category)
        yield


_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


@contextmanager
def silent_fits() -> Iterator[None]:
    """In a `with` block, turn off this thread's warnings about how a fit ended.

    The caller must report the result of the fit.
    """
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def warn_of_fit(message: str, category: type[Warning]) -> None:
    """Warn about how a fit ended, except in a `with` block of :func:`silent_fits`."""
    if not _is_silent.get():
        warnings.warn(message, category, stacklevel=outer_stacklevel())


BETWEEN = frozenset({__name__.partition(".")[0], "sklearn", "joblib"})
"""Packages whose lines are not those of a user: this package, and those that call its estimators."""


def outer_stacklevel() -> int:
    """Return a `stacklevel` for `warnings.warn`, so that the warning points to the user's line.

    The function that calls `warnings.warn` must also call `outer_stacklevel`.
    The user's line is the innermost line in the call stack that belongs neither to this package, nor to scikit-learn,
    nor to joblib.
    """
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    return level
