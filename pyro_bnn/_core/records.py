"""Conversion of dataclasses to plain data and back, with checks of every field, since a file may be forged."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from . import checks as _checks

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries of their fields, at any depth; tensors and other values are not copied."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def record(kind: type[T], values: object, where: str) -> T:
    """A dataclass from the result of :func:`plain`.

    Fields may be finite numbers (whole numbers of at most 64 bits), booleans, texts, tensors, dataclasses, and optional
    values, lists, tuples and dictionaries of these. In messages, the name of a wrong field follows `where`.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # T is a dataclass
    if not isinstance(values, Mapping) or set(values) != set(names):
        got = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise ValueError(f"`{where}` must have the fields {sorted(names)}, got {got}.")
    return kind(**{name: _checked(values[name], hints[name], f"{where}.{name}") for name in names})


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value, converted to the annotated type of a field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (other,) = [argument for argument in arguments if argument is not NoneType]
        return None if value is None else _checked(value, other, where)
    if origin in (list, tuple):
        return origin(_items(value, arguments[0], where))
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"`{where}` must be a dictionary with names as keys, got {_shown(value)}.")
        return {key: _checked(item, arguments[1], f"{where}[{key!r}]") for key, item in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return record(hint, value, where)
    if hint is float:
        if not math.isfinite(_checks.as_float(value)):
            raise ValueError(f"`{where}` must be a finite number, got {_shown(value)}.")
    elif hint is not Any and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ValueError(f"`{where}` must be of type {hint.__name__}, got {_shown(value)}.")
    elif hint is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"`{where}` must be a whole number of 64 bits, got {_shown(value)}.")
    return value


def _items(value: Any, hint: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"`{where}` must be a list, got {_shown(value)}.")
    if hint is float and all(type(item) is float for item in value) and all(map(math.isfinite, value)):
        return list(value)  # a fast path, since a history may have a million numbers
    return [_checked(item, hint, f"{where}[{index}]") for index, item in enumerate(value)]


def _shown(value: object) -> str:
    """The value if it is a number or a text, otherwise its type."""
    return _checks.got(value)[:40] if isinstance(value, int | float | str | NoneType) else type(value).__name__
