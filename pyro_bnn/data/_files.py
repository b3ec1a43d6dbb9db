"""The folder of data sets, and files of MNIST in the IDX format.

An IDX file has a magic number, the size of each axis, and the values, all big-endian.

References:
    http://yann.lecun.com/exdb/mnist/, "The IDX file format".
"""

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._core import checks as _checks
from .._core.files import DamagedFileError

UNSIGNED_BYTE = 0x08


class MissingDataError(FileNotFoundError):
    """The files of a data set are not in its folder."""


def data_folder(root: object) -> Path:
    """`root`. If it is None, the folder in the environment variable ``PYRO_BNN_DATA``, by default ``data``."""
    return Path(os.environ.get("PYRO_BNN_DATA") or "data") if root is None else _checks.path("root", root)


def find_idx(path: Path) -> Path | None:
    """The file, or its compressed form ``PATH.gz``, or None if neither exists."""
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_idx(path: Path, num_axes: int) -> Tensor:
    """A tensor of dtype uint8 from an IDX file or its compressed form; images have 3 axes, labels have 1."""
    found = find_idx(path)
    if found is None:
        raise MissingDataError(f"there is no file {path}.")
    content = _content(found)
    magic, start = bytes([0, 0, UNSIGNED_BYTE, num_axes]), 4 * (1 + num_axes)
    if content[:4] != magic or len(content) < start:
        raise _damaged(
            found,
            f"it must begin with {magic.hex(' ')} and {num_axes} sizes (images have 3 and labels 1), but it begins "
            f"with {content[:start].hex(' ') or 'nothing'}",
        )
    sizes = tuple(int(size) for size in np.frombuffer(content, ">u4", num_axes, offset=4))
    expected, got = math.prod(sizes), len(content) - start
    if expected == 0:
        raise _damaged(found, f"its header says that it is empty: {' x '.join(map(str, sizes))}")
    if expected != got:
        raise _damaged(found, f"{' x '.join(map(str, sizes))} values need {expected} bytes, but there are {got}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy())


def _content(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"it cannot be unpacked ({error})") from error
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


def _damaged(path: Path, fault: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged: {fault}; remove it and download it again (--download).")
