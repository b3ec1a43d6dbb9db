"""Data sets of grey images."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .._files import DamagedFileError
from ._idx import find_idx, read_idx
from ._missing import MissingDataError

__all__ = ["DATA_SETS", "Images", "load_images"]

IMAGE_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
DATA_SETS = (*IMAGE_SETS, "digits")
FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
"""Images and labels, of the training set and of the test set."""

CLASS_NAMES = {
    "fashion-mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
}


@dataclass(frozen=True)
class Images:
    """A data set of grey images.

    Args:
        x_train: Training images, values in [0, 1], shape (N, H, W).
        y_train: Training labels, shape (N,).
        x_test: Test images, shape (M, H, W).
        y_test: Test labels, shape (M,).
        classes: Names of the classes.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]


def load_images(name: str, *, root: str | Path | None = None, download: bool = False) -> Images:
    """MNIST or FashionMNIST, or scikit-learn's 8 x 8 digits.

    Args:
        name: ``mnist``, ``fashion-mnist`` or ``digits`` (which needs no files; a fixed quarter is the test set).
        root: Folder that holds ``MNIST/raw`` or ``FashionMNIST/raw``; default ``$PYRO_BNN_DATA``, else ``./data``.
        download: Fetch missing files into `root`, by torchvision (the extra ``vision``).

    Raises:
        ValueError: If the name is unknown.
        MissingDataError: If the files are not there, and if they cannot be downloaded.
        DamagedFileError: If a file is damaged, or the files do not fit each other.
    """
    if name == "digits":
        return _digits()
    if name not in IMAGE_SETS:
        raise ValueError(f"unknown data set {name!r}; choose from {[*DATA_SETS]}.")
    folder = Path(root or os.environ.get("PYRO_BNN_DATA") or "data")
    raw = folder / IMAGE_SETS[name] / "raw"
    missing = [file for pair in FILES for file in pair if find_idx(raw / file) is None]
    if missing and download:
        _download(name, folder)
    elif missing:
        which = "" if len(missing) == 4 else f" ({', '.join(missing)})"
        raise MissingDataError(
            f"{IMAGE_SETS[name]} was not found in {raw.absolute()}{which}; pass its folder (--data, or "
            "$PYRO_BNN_DATA), or let it be downloaded there (--download)."
        )
    classes = CLASS_NAMES.get(name, tuple(str(digit) for digit in range(10)))
    (x_train, y_train), (x_test, y_test) = (_read_pair(raw, *pair, len(classes)) for pair in FILES)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DamagedFileError(
            f"{raw / FILES[1][0]} holds images of {_size(x_test)} pixels, and {raw / FILES[0][0]} of {_size(x_train)}; "
            "take both from the same data set."
        )
    return Images(x_train / 255, y_train, x_test / 255, y_test, classes)


def _download(name: str, folder: Path) -> None:
    try:
        from torchvision import datasets  # late: an extra, and nothing else needs it
    except ImportError as error:
        raise MissingDataError(
            f"torchvision downloads {IMAGE_SETS[name]}, and it is not installed: pip install 'pyro-bnn[vision]'; or "
            f"put the files into {folder / IMAGE_SETS[name] / 'raw'} yourself."
        ) from error
    try:
        getattr(datasets, IMAGE_SETS[name])(folder, download=True)
    except (RuntimeError, OSError) as error:
        raise MissingDataError(f"{IMAGE_SETS[name]} could not be downloaded into {folder}: {error}") from error


def _read_pair(raw: Path, image_file: str, label_file: str, num_classes: int) -> tuple[Tensor, Tensor]:
    """Images of dtype uint8, and their labels."""
    images, labels = read_idx(raw / image_file, 3), read_idx(raw / label_file, 1).long()
    if len(images) != len(labels):
        raise DamagedFileError(
            f"{raw / image_file} holds {len(images)} images, and {raw / label_file} {len(labels)} labels; take both "
            "from the same data set."
        )
    if int(labels.max()) >= num_classes:
        raise DamagedFileError(
            f"{raw / label_file} is damaged: labels are from 0 to {num_classes - 1}, and it holds {int(labels.max())}; "
            "remove it and let it be downloaded anew (--download)."
        )
    return images, labels


def _size(images: Tensor) -> str:
    return " x ".join(map(str, images.shape[1:]))


def _digits() -> Images:
    from sklearn.datasets import load_digits  # late: importing it takes longer than all of this package
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    split = train_test_split(digits.images / 16.0, digits.target, test_size=0.25, random_state=0)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    return Images(x_train.float(), y_train, x_test.float(), y_test, tuple(str(digit) for digit in range(10)))
