"""The images of a run: those it is trained on, those it is tested on, and those that stand for the unknown."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..data import Images, load_images
from .config import RunConfig

__all__ = ["known_classes", "load_data", "load_unknown"]

SIBLINGS = {"fashion-mnist": "mnist", "mnist": "fashion-mnist"}
"""The data set whose images are unknown to a run without held-out classes."""


def known_classes(images: Images, hold_out: tuple[int, ...]) -> tuple[Images, Tensor]:
    """Split off some classes as the unknown.

    Args:
        images: The data set.
        hold_out: Labels of the unknown classes.

    Returns:
        The data set of the remaining classes, relabelled 0, 1, ..., and the test images of the unknown ones.

    Raises:
        ValueError: If fewer than two classes remain or a label does not exist.
    """
    num_classes = len(images.classes)
    kept = [label for label in range(num_classes) if label not in hold_out]
    if len(kept) < 2 or not set(hold_out) <= set(range(num_classes)):
        raise ValueError(f"held-out classes must be among 0, ..., {num_classes - 1} and leave two, got {hold_out}.")
    new_label = torch.full((num_classes,), -1)
    new_label[kept] = torch.arange(len(kept))
    train, test = new_label[images.y_train], new_label[images.y_test]
    known = Images(
        x_train=images.x_train[train >= 0],
        y_train=train[train >= 0],
        x_test=images.x_test[test >= 0],
        y_test=test[test >= 0],
        classes=tuple(images.classes[label] for label in kept),
    )
    return known, images.x_test[test < 0]


def load_data(config: RunConfig, *, root: str | Path | None, download: bool = False) -> tuple[Images, Tensor]:
    """A run's images, and the test images of its held-out classes.

    Args:
        config: The run. If it has a validation set, that takes the place of the test set.
        root: Folder of the data, as for :func:`~pyro_bnn.data.load_images`.
        download: Whether to fetch missing files.

    Raises:
        ValueError: If the validation set is as large as the training set, or as for :func:`known_classes`.
    """
    images, unknown = known_classes(load_images(config.dataset, root=root, download=download), config.hold_out)
    if not config.validation:
        return images, unknown
    if not 0 < config.validation < len(images.x_train):
        raise ValueError(f"`validation` must lie between 1 and {len(images.x_train) - 1}, got {config.validation}.")
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(0))
    train, validation = order[: -config.validation], order[-config.validation :]
    split = replace(
        images,
        x_train=images.x_train[train],
        y_train=images.y_train[train],
        x_test=images.x_train[validation],
        y_test=images.y_train[validation],
    )
    return split, unknown


def load_unknown(
    name: str | None, config: RunConfig, known: Images, *, root: str | Path | None, download: bool = False
) -> Tensor | None:
    """The test images of another data set, as the unknown of a run.

    Args:
        name: The data set. If None: no other data set for a run with held-out classes, else the sibling of the run's
            data set (MNIST for FashionMNIST, and the reverse), if it has one.
        config: The run.
        known: The run's own images.
        root: Folder of the data, as for :func:`~pyro_bnn.data.load_images`.
        download: Whether to fetch missing files.

    Returns:
        Images, shape (M, H, W), or None without another data set.

    Raises:
        ValueError: If the images have another size than the run's.
    """
    if name is None and not config.hold_out:
        name = SIBLINGS.get(config.dataset)
    if name is None:
        return None
    unknown = load_images(name, root=root, download=download).x_test
    if unknown.shape[1:] != known.x_test.shape[1:]:
        raise ValueError(f"{name} images are {tuple(unknown.shape[1:])} but the run's {tuple(known.x_test.shape[1:])}.")
    return unknown
