"""CIFAR-10 in the files in which it was published, by torchvision."""

from pathlib import Path

import torch
from torch import Tensor

from .._core.extras import optional
from .._core.files import DamagedFileError
from .._core.scope import filtered_warnings

__all__ = ["CIFAR10_FILES", "CIFAR10_FOLDER", "read_cifar10"]

CIFAR10_FOLDER = "cifar-10-batches-py"
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")


def read_cifar10(root: Path, *, is_train: bool) -> tuple[Tensor, Tensor]:
    """Images of dtype uint8, shape (N, 3, 32, 32), and their labels.

    The files are pickles, which run the code that they hold. Torchvision opens none of them before the checksums of all
    are those of the published ones.

    Args:
        root: Folder that holds ``cifar-10-batches-py`` with all files.
        is_train: Whether to read the training images, and not the test images.

    Raises:
        ImportError: If torchvision is not installed.
        DamagedFileError: If a file is not the published one.
    """
    datasets = optional("torchvision", "torchvision", "vision").datasets
    try:
        with filtered_warnings("ignore"):  # numpy warns of arrays that were pickled by its first versions
            part = datasets.CIFAR10(root, train=is_train, download=False)
    except RuntimeError as error:
        raise DamagedFileError(
            f"the files in {root / CIFAR10_FOLDER} are damaged: their checksums are not those of the published "
            "CIFAR-10; remove the folder and let it be downloaded anew (--download)."
        ) from error
    return torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(part.targets)
