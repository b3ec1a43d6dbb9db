"""Conversion of arrays, lists of numbers and data frames to tensors.

Floats get the dtype of the model, whole numbers become int64, and booleans stay booleans. A tensor may share the memory
of the array from which it is made. Values that are already tensors are only checked.
"""

import numbers
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .. import checks as _checks
from ..summary import counted
from ._tree import Inputs, Shared

WIDEST = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}
"""The widest NumPy type for signed whole numbers, unsigned whole numbers, floats and booleans."""

REMEDIES = {
    "O": "convert it, such as by `.astype(float)`, or encode its categories as whole numbers",
    **dict.fromkeys("UST", "encode texts as whole numbers"),
    "M": "convert dates to numbers, such as days since the first one",
    "m": "convert durations to numbers, such as seconds",
    "c": "pass real and imaginary parts as two columns",
    "V": "pass each field as a column, such as by `numpy.lib.recfunctions.structured_to_unstructured`",
}
"""What to do about an array that cannot be converted, by the kind of its dtype."""


def as_inputs(name: str, value: object, like: Tensor | None = None) -> Inputs:
    """Convert tensors, arrays, lists or data frames to the inputs of a network.

    A tuple, or a list of tensors or arrays, stands for several inputs. A list of numbers, or of lists of numbers, is
    one input. Converted inputs get the device and the floating-point dtype of `like`. If `like` is None, converted
    inputs are on the CPU, and floats get torch's default dtype.
    """
    if isinstance(value, Tensor):
        return _checked(name, value)
    if isinstance(value, Shared):
        return Shared(_shared(name, value.value, like))
    if isinstance(value, PackedSequence):
        raise ValueError(
            f"`{name}` must have one row for each data point, got a PackedSequence; call `pad_packed_sequence` and "
            "pack inside of the network."
        )
    if isinstance(value, Mapping):
        _require_names(name, value)
        return {key: as_inputs(f"{name}[{key!r}]", part, like) for key, part in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and not _is_array(name, value)):
        if not value:
            raise ValueError(f"`{name}` must hold at least one tensor, got an empty tuple.")
        if all(_is_number(part) for part in value):
            raise ValueError(f"`{name}` must not be a tuple of numbers, as a tuple means several inputs; pass a list.")
        return tuple(as_inputs(f"{name}[{index}]", part, like) for index, part in enumerate(value))
    return _tensor(name, value, like)


def _shared(name: str, value: object, like: Tensor | None) -> Inputs:
    """Convert the value of a shared input.

    The value may be a tensor without axes, since a shared input needs no rows.
    """
    return value if isinstance(value, Tensor) and value.dim() == 0 else as_inputs(name, value, like)


def as_targets(name: str, value: object, like: Tensor | None = None) -> Tensor:
    """Convert a tensor, array, list or data frame to one tensor of targets."""
    if isinstance(value, Tensor):
        return _checked(name, value)
    if isinstance(value, Shared):
        raise ValueError(
            f"`{name}` must be one tensor of targets, got the input {value}; put all inputs of the network into a "
            "tuple of their own, as in ((x_1, Shared(x_2)), y)."
        )
    if isinstance(value, Mapping):
        raise ValueError(f"`{name}` must be one tensor, got a dictionary with the keys {list(value)}; choose one.")
    if isinstance(value, (list, tuple)):
        place, other = _first_other(name, value) or ("", None)
        if place:
            raise ValueError(
                f"`{name}` must be one tensor or array, or a list of numbers, but `{place}` is {_kind(other)}; join "
                "tensors with `torch.stack` or `torch.cat`, and encode texts as whole numbers."
            )
    return _tensor(name, value, like)


def _checked(name: str, value: Tensor) -> Tensor:
    _checks.tensor(name, value)
    if value.is_quantized:
        raise ValueError(f"`{name}` must not be quantized, got {value.dtype}; call `{name}.dequantize()`.")
    if value.is_complex():
        raise ValueError(f"`{name}` must be real, got {value.dtype}; call `torch.view_as_real({name})`.")
    if value.dim() == 0:
        raise ValueError(f"`{name}` must have at least one row, got shape (); call `{name}.reshape(1, ...)`.")
    return value


def _require_names(name: str, value: Mapping[Any, object]) -> None:
    if not value:
        raise ValueError(f"`{name}` must hold at least one tensor, got an empty dictionary.")
    others = [key for key in value if not isinstance(key, str)]
    if others:
        raise ValueError(
            f"the keys of `{name}` must be names of arguments of the network, got {others[0]!r}; use texts, or pass a "
            "tuple."
        )


# --- lists ------------------------------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, (numbers.Number, np.number, np.bool_))


def _first_other(name: str, value: object) -> tuple[str, object] | None:
    """Find the first element that is not a number; return its name, such as ``x[0][2]``, and its value."""
    if not isinstance(value, (list, tuple)):
        return None if _is_number(value) else (name, value)
    unclear = ((index, part) for index, part in enumerate(value) if type(part) not in (float, int))  # for speed
    found = (_first_other(f"{name}[{index}]", part) for index, part in unclear)
    return next((other for other in found if other is not None), None)


def _is_array(name: str, value: list) -> bool:
    """Return whether a list stands for one array of numbers, and not for several inputs."""
    other = _first_other(name, value)
    if other is None:
        return True
    if any(_is_number(part) or isinstance(part, str) or part is None for part in value):
        raise ValueError(f"`{name}` must be a list of numbers, but `{other[0]}` is {_kind(other[1])}.")
    return False


def _kind(value: object) -> str:
    return repr(value) if value is None or isinstance(value, str) else f"of type {type(value).__name__}"


# --- arrays -----------------------------------------------------------------------------------------------------------


def _tensor(name: str, value: object, like: Tensor | None) -> Tensor:
    array = _plain(name, _array(name, value))
    tensor = torch.from_numpy(array)
    if not tensor.is_floating_point():
        return tensor if like is None else tensor.to(like.device)
    dtype = torch.get_default_dtype() if like is None else like.dtype
    converted = tensor.to(dtype)
    if converted.dtype != tensor.dtype and bool((converted.isinf() & tensor.isfinite()).any()):
        largest = float(tensor[tensor.isfinite()].abs().max())
        raise ValueError(
            f"`{name}` must lie in the range of {dtype}, got {largest:.3g}; rescale it, or call `model.double()`."
        )
    return converted if like is None else converted.to(like.device)


def _array(name: str, value: Any) -> np.ndarray:
    pandas = sys.modules.get("pandas")  # to recognise its objects without importing it
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _table(name, value)
    if pandas is not None and isinstance(value, (pandas.Series, pandas.Index, pandas.api.extensions.ExtensionArray)):
        return _column(f"`{name}`", value)
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(value):
        raise ValueError(f"`{name}` must be dense, got the sparse {type(value).__name__}; call `{name}.toarray()`.")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"`{name}` must have no masked values; fill them (`{name}.filled(...)`) or drop those rows.")
    if isinstance(value, (list, tuple)):
        try:
            array = np.array(value)
        except ValueError:
            raise ValueError(f"`{name}` must have rows of the same length, got a ragged list; pad the rows.") from None
    elif not isinstance(value, np.generic) and callable(getattr(type(value), "__array__", None)):
        array = np.asarray(value)
    else:
        raise ValueError(
            f"`{name}` must be a tensor, an array, a list of numbers or a data frame, or a tuple or dictionary of "
            f"these, got {f'the number {value}' if _is_number(value) else type(value).__name__}."
        )
    _require_numbers(f"`{name}`", array, array.dtype)
    if array.ndim == 0:
        raise ValueError(f"`{name}` must have at least one row, got shape (); call `{name}.reshape(1, ...)`.")
    return array


def _require_numbers(label: str, array: np.ndarray, dtype: object) -> None:
    if array.dtype.kind not in WIDEST:
        remedy = REMEDIES.get(array.dtype.kind, REMEDIES["O"])
        raise ValueError(f"{label} must hold numbers, got dtype {dtype}; {remedy}.")


def _table(name: str, frame: Any) -> np.ndarray:
    """Convert a data frame column by column, since columns of different dtypes would become an array of objects."""
    columns = [
        _column(f"column {label!r} of `{name}`", frame.iloc[:, position])
        for position, label in enumerate(frame.columns)
    ]
    if not columns:
        raise ValueError(f"`{name}` must have at least one column, got a data frame without any.")
    return np.stack(columns, axis=1)


def _column(label: str, column: Any) -> np.ndarray:
    # Without a dtype, columns that can have `NA` would become objects.
    wanted = None if isinstance(column.dtype, np.dtype) else WIDEST.get(column.dtype.kind)
    if wanted is None:
        _require_numbers(label, column.to_numpy(), column.dtype)
    missing = int(column.isna().sum())
    if missing:
        raise ValueError(
            f"{label} has {counted(missing, 'missing value')} of {len(column)}; fill them (`fillna`) or drop those "
            "rows (`dropna`)."
        )
    return column.to_numpy(dtype=wanted)


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array in a form that torch accepts.

    torch accepts an array that is writable, and has the native byte order, no negative strides and no long doubles.
    """
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"`{name}` must hold whole numbers below 2**63, got {array.max()}.")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind == "f":
        size = min(array.dtype.itemsize, 8)
        array = array.astype(f"=f{size}", copy=False)
    fits = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return array if fits and array.flags.writeable and array.flags.aligned else array.copy()
