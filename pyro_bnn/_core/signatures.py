"""Error messages for calls with unknown, missing or too many arguments."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

from .checks import described
from .names import joined, nearest
from .summary import counted

ALPHA = "pass `level=1 - alpha`, such as `level=0.9` for alpha = 0.1"  # in place of MAPIE's argument

EXPLAINED = "_is_explained"  # mark of a function that explains wrong calls

F = TypeVar("F", bound=Callable[..., Any])


def explained(
    example: str,
    hints: Mapping[str, str] | None = None,
    kinds: Mapping[str, Callable[[object], bool]] | None = None,
    *,
    name: str = "",
) -> Callable[[F], F]:
    """Return a decorator of a function, or of a class's `__init__`, that explains calls with wrong arguments.

    The errors show `example`, a correct call. `hints` has advice for unknown arguments, by name. Its entry "" is the
    advice for too many arguments; it is used only if no argument must be passed by name. For a class, the decorator
    replaces `__init__`.

    `kinds` maps the name of an argument to a function that returns whether a value suits it. If the user leaves out an
    argument, the values after it move one place forward, so the missing argument is the first one with an unsuitable
    value. `name` is the name of the function, if it is not its own.
    """

    def decorated(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorated(function.__init__)  # type: ignore[misc]
            return function

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                signature = inspect.signature(function)  # not kept, since a compiler of torch could not follow it
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    called = name or function.__qualname__.removesuffix(".__init__")
                    problem = (
                        _problem(signature, args, kwargs, example, hints or {}, kinds or {})
                        or f"{error}. Example: {example}"
                    )
                    raise TypeError(f"{called}() {problem}") from None
                raise

        vars(checked)[EXPLAINED] = True
        return checked  # type: ignore[return-value]  # it has the signature of the function

    return decorated


def explain_calls(value: Any) -> Any:
    """Return a public class, which is changed, or a function, that explains wrong calls as :func:`explained` does."""
    function = value.__init__ if isinstance(value, type) else value  # type: ignore[misc]  # of the class itself
    is_own = isinstance(function, FunctionType) and function.__module__.startswith(__name__.partition(".")[0])
    if not is_own or EXPLAINED in vars(function):
        return value
    needed = [one for one in _parameters(inspect.signature(function)).values() if one.default is one.empty]
    given = (f"{one.name}={one.name}" if one.kind is one.KEYWORD_ONLY else one.name for one in needed)
    result = explained(f"{value.__name__}({', '.join(given)})", name=value.__name__)(value)
    setattr(sys.modules[value.__module__], value.__name__, result)  # where `pickle` looks for a function
    return result


def _parameters(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the parameters without `self`, `*args` and `**kwargs`."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: one for name, one in signature.parameters.items() if name != "self" and one.kind not in several}


def _problem(
    signature: inspect.Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    example: str,
    hints: Mapping[str, str],
    kinds: Mapping[str, Callable[[object], bool]],
) -> str:
    """Return what is wrong with a call and what to do, or an empty text."""
    parameters = _parameters(signature)
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
        taken = f" ({', '.join(by_position)})" if by_position else ""
        pair = " Inputs and targets are one argument, a pair." if "data" in by_position else ""
        return (
            f"takes {counted(len(by_position), 'argument')} by position{taken}, got {num_given}; "
            f"{rest}.{pair} Example: {example}"
        )
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in kwargs]
    missing = [name for name in missing if name not in by_position[:num_given]]
    for name, value in zip(by_position, args[len(args) - num_given :], strict=False):
        if missing and name in kinds and not kinds[name](value):
            return f"needs `{name}`, got {described(value)} in its place. Example: {example}"
    return f"needs {joined(missing)}, which this call does not pass. Example: {example}" if missing else ""
