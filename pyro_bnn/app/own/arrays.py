"""Conversion of NumPy arrays to the inputs and targets of a network."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..._core.summary import counted
from ..specs import check_content
from .cells import Cells, listed
from .encoding import LARGEST, moments
from .reading import MISSING

PARTS = ("x", "y", "x_train", "y_train", "x_test", "y_test")
Pair = tuple[np.ndarray, np.ndarray]  # inputs and targets


@dataclass(frozen=True)
class ArrayEncoding:
    """The conversion of arrays to inputs: numbers are standardised, or left unchanged."""

    shape: list[int]  # of one row
    mean: list[float]  # subtracted from inputs, one for each feature or one for all; empty if inputs stay as they are
    scale: list[float]  # divides inputs; as many as `mean`
    is_whole: bool  # whether inputs stay whole numbers, such as indices of an embedding

    def inputs(self, x: np.ndarray, shown: str) -> Tensor:
        """Encode the rows of an array as inputs of shape ``(N, *shape)``."""
        _check_numbers("x", x, shown)
        x = x[:, None] if x.ndim == 1 else x
        if [*x.shape[1:]] != self.shape:
            raise ValueError(f"`x` in {shown} must have shape (N, {', '.join(map(str, self.shape))}), got {x.shape}.")
        if self.is_whole:
            if x.dtype.kind not in "iu":
                raise ValueError(f"`x` in {shown} must hold whole numbers, as in training, got {x.dtype}.")
            return torch.from_numpy(x.astype(np.int64))
        inputs = (x - np.array(self.mean)) / np.array(self.scale) if self.mean else np.asarray(x, dtype=np.float64)
        is_far = (np.abs(inputs) > LARGEST).reshape(len(x), -1).any(1)
        if is_far.any():
            raise ValueError(
                f"`x` in {shown} holds numbers that are too large, the first in row {is_far.argmax() + 1}: "
                f"{'standardised with the training rows ' if self.mean else ''}they must lie within {LARGEST:g}; "
                "correct that row, or divide all numbers by a constant before training."
            )
        return torch.from_numpy(np.asarray(inputs, dtype=np.float64)).to(torch.get_default_dtype())


def input_name(index: int) -> str:
    """Return a name for a column of an array of inputs, since the columns of arrays have no names."""
    return f"input {index}"


def input_frame(x: np.ndarray) -> pd.DataFrame:
    """Return the rows of an array of shape (N,) or (N, D) as a table with a column for each input."""
    x = x.reshape(len(x), -1)
    return pd.DataFrame(x, columns=[input_name(i) for i in range(x.shape[1])], copy=False)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays that are named x, y, x_train, y_train, x_test or y_test from a file."""
    check_content(path, "a file of arrays")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # closed also after an error
            names = list(file)
            arrays = {name: np.asarray(file[name]) for name in PARTS if name in names}
    except Exception as error:  # damaged archives raise errors of many kinds
        if "pickle" in str(error).lower():
            raise ValueError(
                f"{path} holds Python objects, which are not read; write plain arrays of numbers by `numpy.savez`."
            ) from error
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {' '.join(str(error).split())}); write it with `numpy.savez`."
        ) from error
    if not arrays:
        raise ValueError(
            f"{path} must hold arrays x and y, or x_train and y_train, but it "
            f"{f'holds {listed(names)}' if names else 'is empty'}."
        )
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"`{name}` in {path} has no rows, got shape {array.shape}.")
    return arrays


def pairs_of(arrays: Mapping[str, np.ndarray], shown: str, *, checks_targets: bool) -> tuple[Pair, Pair | None]:
    """Return the training rows, and the test rows (None if there are none); raise if a number is not finite."""
    held = listed([*arrays])
    if arrays.keys() & {"x", "y"} and arrays.keys() & {"x_train", "y_train"}:
        raise ValueError(
            f"{shown} holds {held}: the rows to train on are x and y, or x_train and y_train; leave one pair out."
        )
    training = ["x_train", "y_train"] if "x_train" in arrays else ["x", "y"]
    if not arrays.keys() >= {*training}:
        raise ValueError(f"{shown} must hold arrays x and y, or x_train and y_train, but it holds {held}; rename them.")
    given = [name for name in ("x_test", "y_test") if name in arrays]
    if len(given) == 1:
        other = "y_test" if given == ["x_test"] else "x_test"
        raise ValueError(f"{shown} holds {given[0]!r} but no {other!r}; add it, or leave {given[0]!r} out.")
    for x, y in (training, given) if given else (training,):
        if len(arrays[x]) != len(arrays[y]):
            raise ValueError(
                f"`{x}` and `{y}` in {shown} must have equally many rows, got {len(arrays[x])} and {len(arrays[y])}."
            )
        for name in [x, y] if checks_targets else [x]:
            _check_numbers(name, arrays[name], shown)
    found = (arrays[training[0]], arrays[training[1]])
    return found, (arrays["x_test"], arrays["y_test"]) if given else None


def _check_numbers(name: str, array: np.ndarray, shown: str) -> None:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"`{name}` in {shown} must be an array of numbers, got {array.dtype}; encode it as numbers.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        is_bad = ~np.isfinite(array).reshape(len(array), -1)
        rows = is_bad.any(1)
        table = ", or train on a table (*.csv), in which missing inputs are filled" if name[0] == "x" else ""
        raise ValueError(
            f"`{name}` in {shown} holds {counted(int(is_bad.sum()), 'missing or infinite number')}, in {rows.sum()} "
            f"of {len(rows)} rows (the first is row {rows.argmax() + 1}); correct or remove these rows{table}."
        )


def learned_arrays(x: np.ndarray, *, standardize: bool, keep_whole: bool, shown: str) -> ArrayEncoding:
    """Learn how to standardise arrays.

    If the rows are vectors, each feature has its own mean and scale. Otherwise, as for images, all numbers have the
    same mean and scale.
    """
    x = x[:, None] if x.ndim == 1 else x
    if not standardize:
        return ArrayEncoding([*x.shape[1:]], [], [], is_whole=keep_whole and x.dtype.kind in "iu")
    mean, scale = moments(x if x.ndim == 2 else x.reshape(-1, 1), f"`x` in {shown}")
    if not scale.any():
        raise ValueError(f"`x` in {shown} holds the same number in all rows; there is nothing to learn from.")
    return ArrayEncoding([*x.shape[1:]], mean.tolist(), np.where(scale > 0, scale, 1.0).tolist(), is_whole=False)


def array_labels(name: str, y: np.ndarray, shown: str) -> Cells:
    """Turn labels in an array into the cells of a column."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iubUSf":
        raise ValueError(
            f"labels `{name}` in {shown} must be whole numbers or texts of shape (N,), got {y.dtype} of shape "
            f"{y.shape}; choose --likelihood gaussian for several numbers per row."
        )
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    texts = pd.Series([str(label) for label in y.tolist()], index=range(1, len(y) + 1), dtype=object)
    return Cells(name, shown, texts.mask(texts.str.strip().str.lower().isin(MISSING), None))


def numeric_targets(y: np.ndarray, shown: str) -> np.ndarray:
    """Return numeric targets in the shape (N, O)."""
    _check_numbers("y", y, shown)
    if y.ndim > 2:
        raise ValueError(f"`y` in {shown} must have shape (N,) or (N, O), got {y.shape}; flatten the axes of a row.")
    return y.reshape(len(y), -1).astype(np.float64)


def array_checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of named arrays as hexadecimal digits."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def pixels(x: np.ndarray, shape: Sequence[int], shown: str) -> Tensor:
    """Convert images for a run on an image set. Pixels must lie in [0, 1] or be bytes, which are divided by 255."""
    if [*x.shape[1:]] != [*shape] or x.dtype.kind not in "fiu":
        raise ValueError(
            f"`x` in {shown} must hold images of shape (N, {', '.join(map(str, shape))}), got {x.dtype} of "
            f"shape {x.shape}."
        )
    x = x / 255 if x.dtype == np.uint8 else x
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError(f"pixels in {shown} must be numbers in [0, 1], or bytes, got {x.min():g} to {x.max():g}.")
    return torch.from_numpy(np.asarray(x, dtype=np.float64)).to(torch.get_default_dtype())
