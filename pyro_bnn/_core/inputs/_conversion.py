"""Conversion of arrays, lists and data frames to tensors, which may share the memory of the data."""

import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset, IterableDataset

from .. import checks as _checks
from ..summary import counted
from ._tree import Inputs, Shared, joined, num_rows, shapes, take, to_device

WIDEST = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}  # by `dtype.kind`

REMEDIES = {
    "O": "convert it, such as by `.astype(float)`, or encode its categories as whole numbers",
    **dict.fromkeys("UST", "encode texts as whole numbers"),
    "M": "convert dates to numbers, such as days since the first one",
    "m": "convert durations to numbers, such as seconds",
    "c": "pass real and imaginary parts as two columns",
    "V": "pass each field as a column, such as by `numpy.lib.recfunctions.structured_to_unstructured`",
}
"""Remedies for arrays that cannot be converted, by the kind of their dtype."""


def as_inputs(name: str, value: object, like: Tensor | None = None) -> Inputs:
    """Convert arrays, lists and data frames to tensors; floats get the dtype of `like`. Tensors stay as they are."""
    if isinstance(value, Tensor):
        return _checked(name, value)
    if isinstance(value, Shared):
        inner = value.value
        has_no_axes = isinstance(inner, Tensor) and inner.dim() == 0
        return Shared(inner if has_no_axes else as_inputs(name, inner, like))
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


def as_targets(name: str, value: object, like: Tensor | None = None) -> Tensor:
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
    """Return the name, such as ``x[0][2]``, and the value of the first element that is no number."""
    if not isinstance(value, (list, tuple)):
        return None if _is_number(value) else (name, value)
    unclear = ((index, part) for index, part in enumerate(value) if type(part) not in (float, int))  # for speed
    found = (_first_other(f"{name}[{index}]", part) for index, part in unclear)
    return next((other for other in found if other is not None), None)


def _is_array(name: str, value: list) -> bool:
    """Return whether a list is one array of numbers, not several inputs."""
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
    """Convert each column by itself, since columns of different dtypes would together become an array of objects."""
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
    """Return an array that torch accepts: writable, of native byte order, without negative strides or long doubles."""
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"`{name}` must hold whole numbers below 2**63, got {array.max()}.")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind == "f":
        size = min(array.dtype.itemsize, 8)
        array = array.astype(f"=f{size}", copy=False)
    fits = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return array if fits and array.flags.writeable and array.flags.aligned else array.copy()


Batch = tuple[Any, ...]
"""The arguments of a model. A `BayesianModel` has two arguments: x, which may be nested tensors, and the tensor y."""


@dataclass(frozen=True)
class Arguments:
    """Converts data to a model's arguments: a pair of x and a tensor y if `paired`, otherwise a tuple of any length."""

    device: torch.device | None
    like: Tensor | None
    paired: bool

    def of_data(self, parts: Sequence[object]) -> Batch:
        if not parts:
            raise ValueError("`data` must be a tuple of tensors, got an empty one; pass (x, y).")
        if self.paired and len(parts) != 2:
            raise ValueError(
                f"`data` must be a pair (x, y), got {counted(len(parts), 'part')}; pass several inputs as ((x_1, x_2), "
                "y), and batches as a list or a loader of pairs."
            )
        names = ["x", "y"] if self.paired else [f"data[{index}]" for index in range(len(parts))]
        return self._of_rows(names, parts, "`data` has no rows; pass at least one.")

    def of_batch(self, batch: object) -> Batch:
        parts = (batch,) if isinstance(batch, Tensor) and not self.paired else batch
        if not isinstance(parts, (tuple, list)) or not parts or (self.paired and len(parts) != 2):
            self._refuse(batch)
        if not self.paired:
            return tuple(self._argument(part) for part in parts)
        if_empty = "a batch must have at least one row, got none; leave out empty batches."
        return self._of_rows(["x", "y"], parts, if_empty)

    def _of_rows(self, names: list[str], parts: Sequence[object], if_empty: str) -> Batch:
        batch: list[Any] = []
        first: tuple[str, Any] | None = None
        for name, part in zip(names, parts, strict=True):
            convert = as_targets if name == "y" else as_inputs
            batch.append(convert(name, part, self.like))
            if isinstance(batch[-1], Shared) and not self.paired:
                continue
            first = first or (name, batch[-1])
            if num_rows(batch[-1], name) != num_rows(first[1], first[0]):
                raise ValueError(
                    f"`{first[0]}` and `{name}` must have the same number of rows, got shapes {shapes(first[1])} and "
                    f"{shapes(batch[-1])}."
                )
        if num_rows(tuple(batch), "data") == 0:
            raise ValueError(if_empty)
        return tuple(to_device(part, self.device) for part in batch)

    def _refuse(self, batch: object) -> NoReturn:
        kind, example = ("a pair (x, y)", "(x, y)") if self.paired else ("a tuple of the model's arguments", "a tuple")
        if isinstance(batch, Mapping):
            raise ValueError(
                f"a batch must be {kind}, got a dictionary with the keys {list(batch)}; give the loader a `collate_fn` "
                f"that returns {example}."
            )
        got = counted(len(batch), "part") if isinstance(batch, (tuple, list)) else type(batch).__name__
        if isinstance(batch, Tensor):
            got = "one tensor, without targets"
        several = ", with several inputs as ((x_1, x_2), y)" if self.paired else ""
        raise ValueError(f"a batch must be {kind}, got {got}; let the loader give {example}{several}.")

    def _argument(self, part: Any) -> Any:
        """Convert arrays, and move tensors to the device. Other objects stay as they are."""
        if isinstance(part, Tensor):
            return to_device(part, self.device)
        if isinstance(part, np.ndarray):
            return to_device(as_inputs("batch", part, self.like), self.device)
        if isinstance(part, Shared):
            return Shared(self._argument(part.value))
        if isinstance(part, dict):
            return {key: self._argument(value) for key, value in part.items()}
        if type(part) in (tuple, list):
            return type(part)(self._argument(value) for value in part)
        return part


def is_whole(data: object) -> TypeGuard[Sequence[object]]:
    """Whether data are a tuple or a list that holds all rows. For a list of batches, this is false."""
    return isinstance(data, tuple) or (
        isinstance(data, list) and not any(isinstance(item, (tuple, list, Mapping)) for item in data)
    )


def require_data(data: object) -> None:
    if isinstance(data, Dataset):
        options = "batch_size=..." if isinstance(data, IterableDataset) else "batch_size=..., shuffle=True"
        raise ValueError(
            f"`data` must be a loader or a tuple of tensors, got the data set {type(data).__name__}; pass "
            f"`DataLoader(data, {options})`, with `batch_size=None` if the data set gives whole batches."
        )
    is_array = callable(getattr(type(data), "__array__", None))  # arrays, tensors and data frames have it
    if is_array or isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        got = f"a dictionary with the keys {list(data)}" if isinstance(data, Mapping) else _checks.described(data)
        raise ValueError(
            f"`data` must be a pair (x, y) of tensors or arrays, or a loader of such pairs, got {got}; pass (x, y)."
        )


Pair = tuple[Inputs, Tensor]


class Pairs:
    """The batches (x, y) of a data set. Iterating raises an error unless the batches have `num_data` rows in total."""

    def __init__(self, data: object, like: Tensor, num_data: int, batch_size: int = 128) -> None:
        batch_size = _checks.at_least("batch_size", batch_size, 1)
        if isinstance(data, Iterator):
            raise ValueError("`data` must be readable several times, got an iterator; pass tensors or a DataLoader.")
        require_data(data)
        self._batch_size, self._num_data = batch_size, num_data
        self._arguments = Arguments(like.device, like, paired=True)
        self._data: Any = self._arguments.of_data(tuple(data)) if is_whole(data) else data
        self.after_batch: Callable[[int], object] = lambda num_rows: None
        """Function that is called with the number of rows of each batch, for example to move a progress bar."""

    def __iter__(self) -> Iterator[Pair]:
        rows = 0
        for x, y in self._parts() if isinstance(self._data, tuple) else map(self._arguments.of_batch, self._data):
            yield x, y
            rows += num_rows(x)
            self.after_batch(num_rows(x))
        if not rows:
            raise ValueError(
                "the loader is empty; pass one that has at least one batch and starts anew at each iteration."
            )
        if rows != self._num_data:
            raise ValueError(
                f"`data` must have all {self._num_data} rows of the model's data set (`num_data`), got {rows}; "
                "pass each row once, without `drop_last`, or build the model with the right `num_data`."
            )

    def _parts(self) -> Iterator[Pair]:
        x, y = self._data
        assert isinstance(y, Tensor)
        for start in range(0, num_rows(x), self._batch_size):
            part = slice(start, start + self._batch_size)
            yield take(x, part), y[part]

    def first(self) -> Inputs:
        return next(iter(self))[0]

    def whole(self) -> Pair:
        if isinstance(self._data, tuple):
            return self._data
        inputs, targets = zip(*self, strict=True)
        return joined(inputs), torch.cat(targets)
