"""Checks of arguments.

A message names the argument, says what was expected and what was passed instead, and suggests a remedy.
"""

import math
import numbers
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .names import nearest
from .summary import counted

MOST_SHOWN = 100  # largest number of characters of a wrong value that a message shows


def is_number(value: object) -> bool:
    """Return whether a value is a real number and not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_float(value: object) -> float:
    """Convert a number to a float. Numbers too large for a float become infinite; objects of other types become NaN."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]  # a number, as was just checked
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def got(value: object) -> str:
    """Describe a value for a message, such as "2" or "ndarray of shape (50, 1)"."""
    found = as_float(value)
    if math.isinf(found) and not isinstance(value, float):
        return f"a number {'below -' if found < 0 else 'above '}{sys.float_info.max:.2g}"
    text = repr(value)
    if hasattr(value, "shape") and (len(text) > MOST_SHOWN or "\n" in text):
        return f"{described(value)} of shape {shape(value)}"
    if "\n" in text or " at 0x" in text.lower():
        return described(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def positive(name: str, value: float, remedy: str = "") -> float:
    return _number(name, value, "be a finite number above 0", lambda found: 0 < found < math.inf, remedy)


def not_negative(name: str, value: float) -> float:
    return _number(name, value, "be a finite number of at least 0", lambda found: 0 <= found < math.inf)


def between_zero_and_one(name: str, value: float) -> float:
    found = as_float(value)
    remedy = f"; for {found:g} %, write {found / 100:g}" if 2 <= found < 100 else ""
    if isinstance(value, Iterable) and not isinstance(value, str):
        remedy = "; pass one number, and make one call for each"
    return _number(name, value, "lie strictly between 0 and 1", lambda found: 0 < found < 1, remedy)


def number(name: str, value: float) -> float:
    return _number(name, value, "be a finite number", math.isfinite)


def _number(name: str, value: float, condition: str, is_met: Callable[[float], bool], remedy: str = "") -> float:
    found = as_float(value)
    if not is_met(found):
        raise ValueError(f"`{name}` must {condition}, got {got(value)}{remedy}.")
    return found


def scale_in(name: str, value: float | Tensor, dtype: torch.dtype) -> None:
    """Raise if a scale is not positive, or if the scale or 1 / scale^2 overflows in the dtype."""
    largest = torch.finfo(dtype).max
    ends = (value.min().item(), value.max().item()) if isinstance(value, Tensor) else (value, value)
    low, high = map(as_float, ends)
    if not largest**-0.5 <= low <= high <= largest:
        wrong = high if high > largest else low
        raise ValueError(
            f"`{name}` must lie between {largest**-0.5:.2g} and {largest:.2g} in {dtype}, got {wrong:g}; choose "
            "another scale, or a network in float64 (`net.double()`)."
        )


def at_least(name: str, value: int, minimum: int) -> int:
    """Return `value` if it is a whole number from `minimum` to 2**63 - 1."""
    if not math.isfinite(as_float(value)) or int(value) != value or not minimum <= value < 2**63:
        limit = " and below 2**63" if as_float(value) >= 2**63 else ""
        remedy = "; pass one number, such as `len(x)`" if getattr(value, "shape", ()) else ""
        raise ValueError(f"`{name}` must be a whole number of at least {minimum}{limit}, got {got(value)}{remedy}.")
    return int(value)


def in_memory(name: str, count: int, num_bytes: int, remedy: str = "ask for fewer") -> None:
    """Raise if `count` items of `num_bytes` bytes each do not fit into the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * num_bytes > memory:
        raise ValueError(
            f"`{name}` of {count} needs {count * num_bytes / 1e9:.3g} GB, and this machine has {memory / 1e9:.3g} GB "
            f"of memory; {remedy}."
        )


def path(name: str, value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise ValueError(f"`{name}` must be the path of a file or folder, got {got(value)}.")
    return Path(value)


def file_to_write(name: str, value: object) -> Path:
    """Return the path of a file to be written; raise if it is a folder, or if its folder does not exist."""
    found = path(name, value)
    folder = Path(os.path.realpath(found)).parent
    if found.is_dir():
        raise IsADirectoryError(f"`{name}` must be a file, got the folder {found}; name a file in it.")
    if not folder.is_dir():
        raise FileNotFoundError(f"`{name}` must lie in an existing folder, got {found}; make {folder} first.")
    return found


def flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {got(value)}.")
    return value


def one_of(name: str, value: object, options: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in options:
        near = nearest(str(value), options) or nearest(str(value).lower(), options)
        hint = f"; did you mean {near!r}?" if near else "."
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, options))}, got {got(value)}{hint}")
    return value


def seed(value: int) -> int:
    if not math.isfinite(as_float(value)) or int(value) != value or not 0 <= value < 2**63:
        raise ValueError(f"`seed` must be a whole number from 0 to 2**63 - 1, or None, got {got(value)}.")
    return int(value)


def tensor(name: str, value: object) -> Tensor:
    """Return `value` if it is a dense tensor that holds values."""
    if not isinstance(value, Tensor):
        raise ValueError(f"`{name}` must be a tensor, got {described(value)}; make one with `torch.as_tensor`.")
    if value.is_nested:
        raise ValueError(f"`{name}` must not be nested; call `torch.nested.to_padded_tensor`.")
    if value.layout != torch.strided:
        raise ValueError(f"`{name}` must be a dense tensor, got {value.layout}; call `{name}.to_dense()`.")
    if value.is_meta:
        raise ValueError(f"`{name}` must have values, got a tensor on the meta device, which has none; load the data.")
    return value


def real_tensor(name: str, value: object) -> Tensor:
    found = tensor(name, value)
    if not found.is_floating_point():
        raise ValueError(f"`{name}` must be floating point, got {found.dtype}; convert it with `.float()`.")
    return found


def rows(name: str, value: object) -> Tensor:
    found = tensor(name, value)
    if found.dim() == 0 or len(found) == 0:
        raise ValueError(
            f"`{name}` must have at least one row, got shape {shape(found)}; for a single row call `.unsqueeze(0)`."
        )
    return found


def finite(name: str, value: Tensor) -> None:
    value = tensor(name, value)
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        count = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"`{name}` must be finite, got {counted(count, 'NaN or infinite value')} of {value.numel()}; "
            "drop or impute those rows first."
        )


def shape(value: Any) -> tuple[int, ...]:
    """Return a shape as a plain tuple, which prints compactly."""
    return tuple(value.shape)


def reshaped(y: Tensor, expected: Sequence[int]) -> str:
    """If targets differ from `expected` only in axes of length 1, return how to reshape them; otherwise ""."""
    if y.numel() != math.prod(expected) or y.dim() == len(expected):
        return ""
    return "; call `y.squeeze(-1)`" if y.dim() > len(expected) else "; pass `y[:, None]`, or `y.to_frame()` of a Series"


def other_rows(y: Tensor, expected: Sequence[int]) -> str:
    """If targets and predictions have different numbers of rows, return the likely cause; otherwise ""."""
    if y.dim() == 0 or len(y) == expected[0]:
        return ""
    return f": the prediction has {expected[0]} rows and `y` {len(y)}, so they are probably not of the same data set"


def described(value: object) -> str:
    """Return the name of a value's type or, for a class, a text such as "the class Tensor"."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def kind(name: str, value: object, expected: type, example: str) -> None:
    if not isinstance(value, expected):
        raise ValueError(f"`{name}` must be {example}, got {described(value)}.")


def function(name: str, value: object, example: str) -> None:
    if not callable(value):
        raise ValueError(f"`{name}` must be {example}, got {described(value)}.")


def items(name: str, value: object, example: str) -> list:
    """Return an iterable as a list; texts, mappings, tensors and classes are refused."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping, Tensor, type)):
        raise ValueError(f"`{name}` must be {example}, got {described(value)}.")
    return list(value)


def globs(name: str, value: str | Sequence[str]) -> list[str]:
    example = 'a glob on site names or a list of them, such as "**.weight"'
    found = [value] if isinstance(value, str) else items(name, value, example)
    for glob in found:
        if not isinstance(glob, str):
            raise ValueError(f"`{name}` must be {example}, got {described(glob)} in the list.")
    return found


def weights(name: str, values: object, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless there is a finite tensor of the expected shape for every site."""
    kind(name, values, Mapping, "a dict of weights, such as `posterior.median()`")
    assert isinstance(values, Mapping)
    missing = [site for site in expected if site not in values]
    if missing:
        raise ValueError(f"`{name}` lacks the random parameters {missing}; give one value for each.")
    for site, size in expected.items():
        value = tensor(f"{name}[{site!r}]", values[site])
        if shape(value) != tuple(size):
            raise ValueError(f"`{name}` of `{site}` must have shape {tuple(size)}, got {shape(value)}: give one draw.")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"`{name}` of `{site}` must be finite, got NaN or infinity; fit again from another start.")
