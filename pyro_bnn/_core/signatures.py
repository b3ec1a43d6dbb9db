"""Error messages for calls with unknown, missing or too many arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .checks import described
from .names import joined, nearest
from .summary import counted

ALPHA = "pass `level=1 - alpha`, such as `level=0.9` for alpha = 0.1"  # in place of MAPIE's argument

F = TypeVar("F", bound=Callable[..., Any])


def explained(
    example: str, hints: Mapping[str, str] | None = None, kinds: Mapping[str, Callable[[object], bool]] | None = None
) -> Callable[[F], F]:
    """Return a decorator of a function, or of a class's `__init__`, that explains calls with wrong arguments.

    The errors show `example`, a correct call. `hints` has advice for unknown arguments, by name. Its entry "" is the
    advice for too many arguments; it is used only if no argument must be passed by name. For a class, the decorator
    replaces `__init__`.

    `kinds` maps the name of an argument to a function that returns whether a value suits it. If the user leaves out an
    argument, the values after it move one place forward, so the missing argument is the first one with an unsuitable
    value.
    """

    def decorated(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorated(function.__init__)  # type: ignore[misc]
            return function
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                called = function.__qualname__.removesuffix(".__init__")
                problem = (
                    _problem(signature, args, kwargs, example, hints or {}, kinds or {})
                    or f"{error}. Example: {example}"
                )
                raise TypeError(f"{called}() {problem}") from None
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]  # it has the signature of the function

    return decorated


def _problem(
    signature: inspect.Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    example: str,
    hints: Mapping[str, str],
    kinds: Mapping[str, Callable[[object], bool]],
) -> str:
    """Return what is wrong with a call and what to do, or an empty text."""
    parameters = {name: parameter for name, parameter in signature.parameters.items() if name != "self"}
    num_given = len(args) - ("self" in signature.parameters)
    by_position = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    unknown = next((name for name in kwargs if name not in parameters), None)
    if unknown is not None:
        found = f"got an unexpected argument `{unknown}`"
        if unknown in hints:
            return f"{found}; {hints[unknown]}."
        if unknown in ("x", "X", "y") and "data" in parameters:
            return f"{found}; pass inputs and targets as one argument, a pair. Example: {example}"
        near = nearest(unknown, parameters)
        return f"{found}; did you mean `{near}`?" if near else f"{found}; its arguments are {joined(parameters)}."
    if num_given > len(by_position):
        are_more = len(by_position) < len(parameters)
        rest = "pass the others by name" if are_more else hints.get("", "leave the others out")
        pair = " Inputs and targets are one argument, a pair." if "data" in by_position else ""
        return (
            f"takes {counted(len(by_position), 'argument')} by position ({', '.join(by_position)}), got {num_given}; "
            f"{rest}.{pair} Example: {example}"
        )
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in kwargs]
    missing = [name for name in missing if name not in by_position[:num_given]]
    for name, value in zip(by_position, args[len(args) - num_given :], strict=False):
        if missing and name in kinds and not kinds[name](value):
            return f"needs `{name}`, got {described(value)} in its place. Example: {example}"
    return f"needs {joined(missing)}, which this call does not pass. Example: {example}" if missing else ""
