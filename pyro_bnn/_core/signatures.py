"""Error messages for calls with unknown, missing or too many arguments."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

SIMILAR = 0.7
"""Heuristic: smallest ratio of `difflib` at which a name is suggested in place of another."""

SHORTEST = 4
"""Heuristic: smallest number of characters of a name that may be a part of another, as ``epochs`` of ``max_epochs``."""

SYNONYMS: Mapping[str, Sequence[str]] = {
    "burn_in": ("num_warmup",),
    "draws": ("num_samples",),
    "epochs": ("max_iter",),
    "iterations": ("max_iter",),
    "learning_rate": ("optimizer",),
    "loss": ("likelihood",),
    "lr": ("learning_rate", "optimizer"),
    "max_epochs": ("num_epochs", "max_iter"),
    "max_iter": ("max_epochs", "max_iterations", "num_epochs"),
    "max_time": ("time_limit",),
    "n_estimators": ("num_members",),
    "network": ("net",),
    "noise": ("likelihood", "scale"),
    "num_epochs": ("max_iter",),
    "num_steps": ("num_epochs", "max_epochs"),
    "random_state": ("seed",),
    "seed": ("random_state",),
    "sigma": ("scale",),
    "std": ("scale",),
    "timeout": ("time_limit",),
    "tune": ("num_warmup",),
    "units": ("hidden_layer_sizes",),
    "verbose": ("progress",),
}
"""Names of arguments in other libraries, each with names here. The first name that a function has is suggested."""


def explained(example: str, hints: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Return a decorator whose function says what is wrong with a call that does not match its signature.

    The signature of the function does not change. If the decorated object is a class, its `__init__` is replaced.

    Args:
        example: A call that works, which is shown if arguments are missing or too many are given by position.
        hints: What to do in place of passing some unknown arguments, ``{name: advice}``.
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
                problem = _problem(signature, args, kwargs, example, hints or {}) or f"{error}. Example: {example}"
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
) -> str:
    """Return what is wrong with a call, and what to do. The text is empty if the problem is none of those below."""
    parameters = {name: parameter for name, parameter in signature.parameters.items() if name != "self"}
    num_given = len(args) - ("self" in signature.parameters)
    by_position = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    unknown = next((name for name in kwargs if name not in parameters), None)
    if unknown is not None:
        found = f"got an unexpected argument `{unknown}`"
        if unknown in hints:
            return f"{found}; {hints[unknown]}."
        near = nearest(unknown, parameters)
        return f"{found}; did you mean `{near}`?" if near else f"{found}; its arguments are {_joined(parameters)}."
    if num_given > len(by_position):
        pair = " Inputs and targets are one argument, a pair." if "data" in by_position else ""
        return (
            f"takes {len(by_position)} argument(s) by position ({', '.join(by_position)}), got {num_given}; pass the "
            f"others by name.{pair} Example: {example}"
        )
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in kwargs]
    missing = [name for name in missing if name not in by_position[:num_given]]
    if not missing:
        return ""
    named = [*by_position[:num_given], *(name for name in kwargs if name in parameters)]
    given = f", only {_joined(named)}" if named else ""
    return f"needs {_joined(missing)}, which this call does not pass{given}. Example: {example}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant, or an empty text."""
    names = list(names)
    similar = [known for known in SYNONYMS.get(name, ()) if known in names]
    if len(name) >= SHORTEST:
        similar += [known for known in names if name in known or (len(known) >= SHORTEST and known in name)]
    return [*similar, *difflib.get_close_matches(name, names, 1, SIMILAR), ""][0]


def _joined(names: Iterable[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last
