"""Archives of images: many JPEG or PNG files in one NumPy file."""

import io
import itertools
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._core import checks as _checks
from .._core.files import DamagedFileError
from ._images import Images, MissingDataError

ARRAYS = {"jpeg": "the bytes of all files, dtype uint8", "offsets": "N + 1 whole numbers", "labels": "N whole numbers"}


def read_packed_images(file: str | Path) -> tuple[Tensor, Tensor]:
    """Read images from an ``.npz`` archive of JPEG or PNG files.

    The archive has three arrays. ``jpeg`` (uint8) holds the bytes of all image files, one file after the other.
    ``offsets`` (N + 1) tells where image i is: from byte ``offsets[i]`` up to byte ``offsets[i + 1]``. ``labels`` (N)
    holds the labels.

    Args:
        file: The archive.

    Returns:
        The images, dtype uint8, shape (N, C, H, W), with C = 1 for grey images and C = 3 for colour; and the labels,
        shape (N,).

    Raises:
        MissingDataError: If there is no such file.
        DamagedFileError: If the file is not such an archive, if an image cannot be decoded, or if the images have
            different sizes.

    Example:
        >>> import io
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from PIL import Image
        >>> from pyro_bnn import data
        >>> files = [io.BytesIO(), io.BytesIO()]
        >>> for file, colour in zip(files, ("red", "white")):
        ...     Image.new("RGB", (2, 2), colour).save(file, "PNG")
        >>> content = [file.getvalue() for file in files]
        >>> path = Path(tempfile.mkdtemp()) / "images.npz"
        >>> offsets = np.cumsum([0, *map(len, content)])
        >>> np.savez(
        ...     path,
        ...     jpeg=np.frombuffer(b"".join(content), np.uint8),
        ...     offsets=offsets,
        ...     labels=[7, 8],
        ... )
        >>> x, y = data.read_packed_images(path)
        >>> x.shape, x[:, :, 0, 0].tolist(), y.tolist()
        (torch.Size([2, 3, 2, 2]), [[255, 0, 0], [255, 255, 255]], [7, 8])
    """
    path = _checks.path("file", file)
    arrays = _arrays(path)
    packed, offsets, labels = (arrays[name] for name in ARRAYS)
    images: Tensor | None = None
    for index, (start, end) in enumerate(itertools.pairwise(offsets)):
        image = _decoded(packed[start:end].tobytes(), f"image {index}", path)
        if images is None:
            images = image.new_empty((len(labels), *image.shape))
        elif image.shape != images.shape[1:]:
            got, first = (_checks.shape(part) for part in (image, images[0]))
            raise _damaged(path, f"image {index} has shape {got} and image 0 {first}; all must have the same size")
        images[index] = image
    assert images is not None
    return images, torch.from_numpy(labels).long()


def load_packed_images(folder: str | Path, *, classes: tuple[str, ...] | None = None) -> Images:
    """Load a data set from the archives ``train.npz`` and ``test.npz``; see :func:`read_packed_images`.

    Args:
        folder: Folder that contains the two archives.
        classes: Names of the classes with the labels 0, 1, ...; by default the names are the numbers.

    Returns:
        The data set, with images of shape (C, H, W) and values in [0, 1].

    Raises:
        ValueError: If a label has no name among `classes`.
        MissingDataError: If an archive does not exist.
        DamagedFileError: If an archive is damaged, or if the two archives have images of different shapes.
    """
    root = _checks.path("folder", folder)
    (x_train, y_train), (x_test, y_test) = (read_packed_images(root / f"{part}.npz") for part in ("train", "test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        got, expected = (_checks.shape(x[0]) for x in (x_test, x_train))
        raise _damaged(root / "test.npz", f"its images have shape {got}, but the images of train.npz {expected}")
    num_classes = 1 + max(int(y_train.max()), int(y_test.max()))
    classes = tuple(str(label) for label in range(num_classes)) if classes is None else tuple(classes)
    if num_classes > len(classes):
        raise ValueError(f"`classes` must name all {num_classes} labels, 0 to {num_classes - 1}, got {[*classes]}.")
    return Images(x_train / 255, y_train, x_test / 255, y_test, classes)


def _decoded(content: bytes, name: str, path: Path) -> Tensor:
    """Decode an image to dtype uint8, shape (C, H, W)."""
    from PIL import Image  # imported late: nothing else needs it

    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            mode, values = image.mode, np.array(image)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow has no specific exception for broken files
        raise _damaged(path, f"{name} is no whole JPEG or PNG file ({error})") from error
    if mode not in ("L", "RGB"):
        raise _damaged(path, f"{name} has the mode {mode}, and must be grey (L) or in colour (RGB)")
    return torch.from_numpy(values[None] if mode == "L" else values.transpose(2, 0, 1))


def _arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of an archive. Raise an error if the archive is incomplete or inconsistent."""
    if not path.is_file():
        raise MissingDataError(
            f"there is no file {path.absolute()}; packed images are an archive of numpy.savez with {_layout()}."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # files must not run code
            arrays = {name: archive[name] for name in archive.files if name in ARRAYS}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, f"it is not an archive of arrays ({error})") from error
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise _damaged(path, f"it lacks {missing}")
    packed, offsets, labels = (arrays[name] for name in ARRAYS)
    for name, kind in (("jpeg", np.uint8), ("offsets", np.integer), ("labels", np.integer)):
        values = arrays[name]
        if values.ndim != 1 or not np.issubdtype(values.dtype, kind):
            raise _damaged(path, f"`{name}` has dtype {values.dtype} and {values.ndim} axes")
    if len(labels) == 0 or len(offsets) != len(labels) + 1:
        raise _damaged(path, f"it has {len(offsets)} offsets and {len(labels)} labels")
    arrays["offsets"], arrays["labels"] = offsets, labels = offsets.astype(np.int64), labels.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != len(packed) or not (np.diff(offsets) > 0).all():
        raise _damaged(path, f"`offsets` do not increase from 0 to {len(packed)}, the number of bytes in `jpeg`")
    if labels.min() < 0:
        raise _damaged(path, f"`labels` has {labels.min()}, but labels are 0, 1, ...")
    return arrays


def _layout() -> str:
    return "; ".join(f"`{name}`: {content}" for name, content in ARRAYS.items())


def _damaged(path: Path, fault: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged: {fault}; it must contain {_layout()}.")
