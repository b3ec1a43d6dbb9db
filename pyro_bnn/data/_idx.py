"""IDX, the file format of MNIST: a magic number, the size of each axis, and the values, all big-endian.

References:
    http://yann.lecun.com/exdb/mnist/, "The IDX file format".
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._core.files import DamagedFileError
from ._missing import MissingDataError

__all__ = ["find_idx", "read_idx"]

UNSIGNED_BYTE = 0x08
TYPES = {0x08: "unsigned bytes", 0x09: "signed bytes", 0x0B: "shorts", 0x0C: "ints", 0x0D: "floats", 0x0E: "doubles"}


def find_idx(path: Path) -> Path | None:
    """The file itself, or else its compressed form ``PATH.gz``, or None."""
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_idx(path: Path, num_axes: int) -> Tensor:
    """Read an IDX file of unsigned bytes.

    Args:
        path: The file, or its path without ``.gz``.
        num_axes: Number of axes that it must have: 3 for images, 1 for labels.

    Returns:
        Tensor of dtype uint8.

    Raises:
        MissingDataError: If there is no such file, or it cannot be read.
        DamagedFileError: If it is not a whole IDX file of bytes with so many axes; the message says what is wrong.
    """
    found = find_idx(path)
    if found is None:
        raise MissingDataError(f"there is no file {path}.")
    content = _content(found)
    if not content:
        raise _damaged(found, "it is empty")
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        raise _damaged(found, f"it begins with {content[:4].hex(' ')}, which is not the magic number of an IDX file")
    if content[2] != UNSIGNED_BYTE:
        raise _damaged(found, f"its values are {TYPES[content[2]]} (type code {content[2]:#04x}), not unsigned bytes")
    if content[3] != num_axes:
        raise _damaged(
            found, f"it has {content[3]} axes, and must have {num_axes}; images have 3 and labels 1: are they mixed up?"
        )
    start = 4 * (1 + num_axes)
    if len(content) < start:
        raise _damaged(found, "it ends within its header")
    sizes = tuple(int(size) for size in np.frombuffer(content, ">u4", num_axes, offset=4))
    expected, got = math.prod(sizes), len(content) - start
    if expected == 0:
        raise _damaged(found, f"its header says that it holds nothing: {' x '.join(map(str, sizes))}")
    if expected != got:
        fault = "truncated" if got < expected else "too long"
        raise _damaged(
            found, f"it is {fault}: {' x '.join(map(str, sizes))} values need {expected} bytes, and there are {got}"
        )
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
    return DamagedFileError(f"{path} is damaged: {fault}; remove it and let it be downloaded anew (--download).")
