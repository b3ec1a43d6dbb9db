"""Data sets of images: known sets, and archives of JPEG or PNG files."""

import gzip
import io
import itertools
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._core import checks as _checks
from .._core.extras import MissingExtraError, optional
from .._core.files import DamagedFileError
from .._core.names import nearest
from .._core.scope import filtered_warnings
from .._core.summary import Shown, Summary, counted, kind_of

IMAGE_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
GREY_SETS = (*IMAGE_SETS, "digits")  # their images have no channel axis

FILES = (("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
"""Files of images and of labels: first those of the training set, then those of the test set."""

CIFAR10_FOLDER = "cifar-10-batches-py"
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

DIGITS = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
CLASS_NAMES = {
    "mnist": DIGITS,
    "fashion-mnist": "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot",
    "digits": DIGITS,
    "cifar10": "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
}

UNSIGNED_BYTE = 0x08


DOWNLOAD = "download it (`download=True` or --download)"


class MissingDataError(FileNotFoundError):
    """Raised if the files of a data set do not exist.

    Example:
        >>> import pyro_bnn as pb
        >>> try:
        ...     pb.data.load_images("mnist", root="nowhere")
        ... except pb.data.MissingDataError as error:
        ...     print("nowhere" in str(error))
        True
    """


def data_folder(root: object) -> Path:
    """Return `root` as a path, by default ``$PYRO_BNN_DATA``, or else ``data``."""
    return Path(os.environ.get("PYRO_BNN_DATA") or "data") if root is None else _checks.path("root", root)


def find_idx(path: Path) -> Path | None:
    """Return the path of a file or, if there is none, of its compressed form ``PATH.gz``; None if both are missing."""
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_idx(path: Path, num_axes: int) -> Tensor:
    """Read a uint8 tensor from an IDX file or its compressed form (http://yann.lecun.com/exdb/mnist/)."""
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
    return DamagedFileError(f"{path} is damaged: {fault}; remove it and {DOWNLOAD}.")


@dataclass(frozen=True, repr=False)
class Images(Shown):
    """A data set of images.

    Args:
        x_train: Training images with values in [0, 1], shape (N, H, W), or (N, 3, H, W) in colour.
        y_train: Training labels, shape (N,).
        x_test: Test images, shape (M, H, W), or (M, 3, H, W).
        y_test: Test labels, shape (M,).
        classes: Names of the classes.

    Example:
        >>> import pyro_bnn as pb
        >>> pb.data.load_images("digits")
        Images: 1,347 to train, 450 to test, 8 x 8, float32 on cpu
          10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]

    def _summary(self) -> Summary:
        size = " x ".join(map(str, self.x_train.shape[1:]))
        title = f"Images: {len(self.x_train):,} to train, {len(self.x_test):,} to test, {size}, {kind_of(self.x_train)}"
        return Summary(title, [f"{counted(len(self.classes), 'class')}: {', '.join(self.classes)}"])


def load_images(name: str, *, root: str | Path | None = None, download: bool = False) -> Images:
    """Load MNIST, FashionMNIST, CIFAR-10, or the 8 x 8 digits of scikit-learn.

    CIFAR-10 is published as pickles, which can contain code. Torchvision (the extra ``vision``) reads them, after it
    has checked the published checksums.

    Args:
        name: ``mnist``, ``fashion-mnist``, ``cifar10`` or ``digits``. The digits need no files; a fixed quarter of them
            is the test set.
        root: Folder that contains ``MNIST/raw``, ``FashionMNIST/raw`` or ``cifar-10-batches-py``; by default
            ``$PYRO_BNN_DATA``, or ``./data`` if this is not set.
        download: Whether to download missing files into `root`, which needs torchvision.

    Raises:
        ValueError: If the name is unknown.
        ImportError: If the files of CIFAR-10 exist, but torchvision is not installed.
        MissingDataError: If the files do not exist, or cannot be downloaded.
        DamagedFileError: If a file is damaged, or if files come from different data sets.

    References:
        Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images,
        https://www.cs.toronto.edu/~kriz/cifar.html.

    Example:
        >>> from pyro_bnn import data
        >>> digits = data.load_images("digits")
        >>> digits.x_train.shape, digits.x_test.shape
        (torch.Size([1347, 8, 8]), torch.Size([450, 8, 8]))
    """
    if not isinstance(name, str) or name not in CLASS_NAMES:
        near = nearest(str(name), CLASS_NAMES)
        meant = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"unknown data set {name!r}{meant}; choose from {[*CLASS_NAMES]}.")
    folder = data_folder(root)
    classes = tuple(CLASS_NAMES[name].split(", "))
    if name == "digits":
        return Images(*_digits(), classes)
    if name == "cifar10":
        raw = folder / CIFAR10_FOLDER
        missing = [file for file in CIFAR10_FILES if not (raw / file).is_file()]
        _provide("CIFAR10", folder, raw, missing, CIFAR10_FILES, download)
        return Images(*_cifar10(folder), classes)
    raw = folder / IMAGE_SETS[name] / "raw"
    files = [file for pair in FILES for file in pair]
    missing = [file for file in files if find_idx(raw / file) is None]
    _provide(IMAGE_SETS[name], folder, raw, missing, files, download)
    (x_train, y_train), (x_test, y_test) = (_read_pair(raw, *pair, len(classes)) for pair in FILES)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DamagedFileError(
            f"{raw / FILES[1][0]} has images of {_size(x_test)} pixels, but {raw / FILES[0][0]} of {_size(x_train)}; "
            "take both from the same data set."
        )
    return Images(x_train / 255, y_train, x_test / 255, y_test, classes)


def _provide(
    published: str, root: Path, folder: Path, missing: Sequence[str], files: Sequence[str], download: bool
) -> None:
    if missing and download:
        _download(published, root, folder)
    elif missing:
        which = "" if len(missing) == len(files) else f" ({', '.join(missing)})"
        raise MissingDataError(
            f"{published} was not found in {folder.absolute()}{which}; pass its folder (`root`, --data or "
            f"$PYRO_BNN_DATA), or {DOWNLOAD}."
        )


def _download(published: str, root: Path, folder: Path) -> None:
    try:
        datasets = optional("torchvision", "torchvision", "vision").datasets
    except MissingExtraError as error:
        raise MissingDataError(
            f"{published} cannot be downloaded: {error} Or put the files into {folder} yourself."
        ) from error
    try:
        getattr(datasets, published)(root, download=True)
    except (RuntimeError, OSError) as error:
        raise MissingDataError(f"{published} could not be downloaded into {root}: {error}") from error


def _cifar10(root: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load CIFAR-10 by torchvision, which verifies checksums before it opens a pickle."""
    datasets = optional("torchvision", "torchvision", "vision").datasets
    try:
        with filtered_warnings("ignore"):  # numpy warns of arrays that its first versions pickled
            parts = [datasets.CIFAR10(root, train=is_train, download=False) for is_train in (True, False)]
    except RuntimeError as error:
        raise DamagedFileError(
            f"the files in {root / CIFAR10_FOLDER} are damaged: their checksums differ from the "
            f"published ones; remove the folder and {DOWNLOAD}."
        ) from error
    (x_train, y_train), (x_test, y_test) = (
        (torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous() / 255, torch.tensor(part.targets))
        for part in parts
    )
    return x_train, y_train, x_test, y_test


def _read_pair(raw: Path, image_file: str, label_file: str, num_classes: int) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(raw / image_file, 3), read_idx(raw / label_file, 1).long()
    if len(images) != len(labels):
        raise DamagedFileError(
            f"{raw / image_file} has {len(images)} images, but {raw / label_file} {len(labels)} labels; take both "
            "from the same data set."
        )
    if int(labels.max()) >= num_classes:
        raise _damaged(raw / label_file, f"labels are from 0 to {num_classes - 1}, but it has {int(labels.max())}")
    return images, labels


def _size(images: Tensor) -> str:
    return " x ".join(map(str, images.shape[1:]))


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from sklearn.datasets import load_digits  # imported late: this takes longer than importing this package
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    split = train_test_split(digits.images / 16.0, digits.target, test_size=0.25, random_state=0)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    return x_train.float(), y_train, x_test.float(), y_test


ARRAYS = {"jpeg": "the bytes of all files, dtype uint8", "offsets": "N + 1 whole numbers", "labels": "N whole numbers"}


def read_packed_images(file: str | Path) -> tuple[Tensor, Tensor]:
    """Read images from an ``.npz`` archive of JPEG or PNG files.

    The archive has three arrays. ``jpeg`` (uint8) holds the bytes of all files, one file after the other. ``offsets``
    has N + 1 numbers: the file of image i begins at byte ``offsets[i]`` and ends before byte ``offsets[i + 1]``.
    ``labels`` has N numbers.

    Args:
        file: The archive.

    Returns:
        Images of dtype uint8, shape (N, C, H, W), with C = 1 for grey and C = 3 for colour; and labels, shape (N,).

    Raises:
        MissingDataError: If there is no such file.
        DamagedFileError: If the file is not such an archive, if an image cannot be decoded, or if images differ in
            size.

    Example:
        >>> import io
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from PIL import Image
        >>> from pyro_bnn import data
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (2, 2), "red").save(file, "PNG")
        >>> jpeg = np.frombuffer(file.getvalue(), np.uint8)
        >>> path = Path(tempfile.mkdtemp()) / "images.npz"
        >>> np.savez(path, jpeg=jpeg, offsets=[0, len(jpeg)], labels=[7])
        >>> x, y = data.read_packed_images(path)
        >>> x.shape, x[:, :, 0, 0].tolist(), y.tolist()
        (torch.Size([1, 3, 2, 2]), [[255, 0, 0]], [7])
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
            raise _bad_archive(path, f"image {index} has shape {got} and image 0 {first}; all must have the same size")
        images[index] = image
    assert images is not None
    return images, torch.from_numpy(labels).long()


def load_packed_images(folder: str | Path, *, classes: tuple[str, ...] | None = None) -> Images:
    """Load the archives ``train.npz`` and ``test.npz``; see :func:`read_packed_images`.

    Args:
        folder: Folder of the two archives.
        classes: Names of the classes 0, 1, ...; by default the numbers.

    Returns:
        Images of shape (C, H, W) with values in [0, 1].

    Raises:
        ValueError: If a label has no name among `classes`.
        MissingDataError: If an archive does not exist.
        DamagedFileError: If an archive is damaged, or the two have images of different shapes.
    """
    root = _checks.path("folder", folder)
    (x_train, y_train), (x_test, y_test) = (read_packed_images(root / f"{part}.npz") for part in ("train", "test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        got, expected = (_checks.shape(x[0]) for x in (x_test, x_train))
        raise _bad_archive(root / "test.npz", f"its images have shape {got}, but the images of train.npz {expected}")
    num_classes = 1 + max(int(y_train.max()), int(y_test.max()))
    classes = tuple(str(label) for label in range(num_classes)) if classes is None else tuple(classes)
    if num_classes > len(classes):
        raise ValueError(f"`classes` must name all {num_classes} labels, 0 to {num_classes - 1}, got {[*classes]}.")
    return Images(x_train / 255, y_train, x_test / 255, y_test, classes)


def _decoded(content: bytes, name: str, path: Path) -> Tensor:
    """Decode an image to uint8, shape (C, H, W)."""
    from PIL import Image  # imported late: nothing else needs it

    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            mode, values = image.mode, np.array(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _bad_archive(path, f"{name} is no whole JPEG or PNG file ({error})") from error
    if mode not in ("L", "RGB"):
        raise _bad_archive(path, f"{name} has the mode {mode}, and must be grey (L) or in colour (RGB)")
    return torch.from_numpy(values[None] if mode == "L" else values.transpose(2, 0, 1))


def _arrays(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingDataError(
            f"there is no file {path.absolute()}; packed images are an archive of numpy.savez with {_layout()}."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # files must not run code
            arrays = {name: archive[name] for name in archive.files if name in ARRAYS}
    except (ValueError, OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise _bad_archive(path, f"it is not an archive of arrays ({error})") from error
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise _bad_archive(path, f"it lacks {missing}")
    packed, offsets, labels = (arrays[name] for name in ARRAYS)
    for name, kind in (("jpeg", np.uint8), ("offsets", np.integer), ("labels", np.integer)):
        values = arrays[name]
        if values.ndim != 1 or not np.issubdtype(values.dtype, kind):
            raise _bad_archive(path, f"`{name}` has dtype {values.dtype} and {values.ndim} axes")
    if len(labels) == 0 or len(offsets) != len(labels) + 1:
        raise _bad_archive(path, f"it has {len(offsets)} offsets and {len(labels)} labels")
    arrays["offsets"], arrays["labels"] = offsets, labels = offsets.astype(np.int64), labels.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != len(packed) or not (np.diff(offsets) > 0).all():
        raise _bad_archive(path, f"`offsets` do not increase from 0 to {len(packed)}, the number of bytes in `jpeg`")
    if labels.min() < 0:
        raise _bad_archive(path, f"`labels` has {labels.min()}, but labels are 0, 1, ...")
    return arrays


def _layout() -> str:
    return "; ".join(f"`{name}`: {content}" for name, content in ARRAYS.items())


def _bad_archive(path: Path, fault: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged: {fault}; it must contain {_layout()}.")
