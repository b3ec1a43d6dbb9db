"""Conversion of objects to plain data for files and back, and descriptions of values.

Data from files are checked, since they may be forged.
"""

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from . import checks as _checks
from .files import raw_bytes
from .inputs import Shared
from .summary import counted

T = TypeVar("T")

MOST_NUMBERS = 16  # tensors with more elements are described by a digest instead of their elements


def plain(value: Any) -> Any:
    """Turn dataclasses at any depth into dictionaries, without copying tensors."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def record(kind: type[T], values: object, where: str) -> T:
    """Make a dataclass from the result of :func:`plain`. Error messages name `where` and the field."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # T is a dataclass
    if not isinstance(values, Mapping) or set(values) != set(names):
        got = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise ValueError(f"`{where}` must have the fields {sorted(names)}, got {got}.")
    return kind(**{name: _checked(values[name], hints[name], f"{where}.{name}") for name in names})


def _checked(value: Any, hint: Any, where: str) -> Any:
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
    return _checks.got(value)[:40] if isinstance(value, int | float | str | NoneType) else type(value).__name__


def check_tensors(owner: str, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Do the same as :func:`check_state`, and raise if a number is not finite."""
    check_state(owner, got, expected)
    for name, value in got.items():
        check_finite(f"`{name}` of {owner}", value)


def check_state(owner: str, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise unless a state has exactly the names of `expected`, with the same shapes and dtypes."""
    for name, value in expected.items():
        if name not in got:
            raise ValueError(f"the file lacks `{name}` of {owner}; {owner} is of another kind than the saved one.")
        check_tensor(f"`{name}` of {owner} in the file", got[name], value.shape, value.dtype)
    require_no_more(owner, got, expected)


def require_no_more(owner: str, got: Mapping[str, object], expected: Collection[str]) -> None:
    unknown = [name for name in got if name not in expected]
    if unknown:
        raise ValueError(
            f"the file has `{unknown[0]}`, which {owner} lacks; {owner} is of another kind than the saved one."
        )


def check_tensor(label: str, value: Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> None:
    if value.dtype != dtype:
        raise ValueError(f"{label} must be {dtype}, got {value.dtype}.")
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{label} must have shape {tuple(shape)}, got {_checks.shape(value)}.")


def check_finite(label: str, value: Tensor) -> None:
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        count = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"{label} must be finite, got {counted(count, 'NaN or infinite number')} of {value.numel()}; fit again."
        )


def require_tensors(owner: str, state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return a module's state. Raise if it has a value that is not a tensor."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the state of {owner} must hold tensors only to be saved, but `{name}` is of type "
                f"{type(value).__name__}; make it a buffer."
            )
    return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}


def check_numbers(owner: str, got: Mapping[str, Tensor], own: Mapping[str, Tensor], constants: Collection[str]) -> None:
    """Raise if a number is not finite, or a running variance of batch normalisation is negative.

    An infinite element of a buffer in `constants`, such as an attention mask, is allowed if `own` has the same element.
    """
    for name, value in got.items():
        same = own[name].to(value.device) == value
        is_constant = name in constants and value.is_floating_point() and bool((same | value.isfinite()).all())
        if not is_constant:
            check_finite(f"`{name}` of {owner}", value)
        if name.rpartition(".")[2] == "running_var" and bool((value < 0).any()):
            raise ValueError(f"`{name}` of {owner} must not be negative, got {float(value.min()):.4g}.")


def words(value: object) -> str:
    """Describe a value. Equal values give the same text in all processes."""
    if isinstance(value, Tensor):
        return str(value.tolist()) if value.numel() <= MOST_NUMBERS else digest(value)
    if isinstance(value, Shared):
        return f"shared {words(value.value)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {words(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(words(part) for part in value) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{field.name}={words(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def digest(*tensors: Tensor) -> str:
    """Return a checksum of the dtypes, shapes and elements of tensors."""
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(raw_bytes(tensor.cpu()))
    return f"the digest {result.hexdigest()[:16]}"
