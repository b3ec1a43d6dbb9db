"""What the benchmarks on images share: corruptions, scores, and a schedule of the learning rate."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, SequentialLR
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from pyro_bnn import metrics
from pyro_bnn.data import add_noise, blur, lower_contrast

CORRUPTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "noise": add_noise,
    "blur": blur,
    "contrast": lower_contrast,
}


class Augmented(Dataset):
    """Batches of images by index, with new random augmentations at each call."""

    def __init__(self, x: Tensor, y: Tensor, augment: Callable[[Tensor], Tensor]) -> None:
        self._x, self._y, self._augment = x, y, augment

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        return self._augment(self._x[rows]), self._y[rows]

    def batches(self, batch_size: int, seed: int, num_images: int | None = None) -> DataLoader:
        """A loader of batches in random order. With `num_images`, each pass has only so many of the images."""
        order = RandomSampler(self, num_samples=num_images, generator=torch.Generator().manual_seed(seed))
        return DataLoader(self, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


class OnDevice:
    """Batches in random order of images that are all on a GPU. Each pass has new random augmentations.

    A pass has `num_images` of the images, or all, and is augmented at once, so that no step waits for the GPU.
    `convert` then changes each batch.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        augment: Callable[[Tensor], Tensor],
        convert: Callable[[Tensor], Tensor] | None = None,
        *,
        batch_size: int,
        seed: int,
        num_images: int | None = None,
    ) -> None:
        self._x, self._y, self._augment, self._convert = x, y, augment, convert
        self._generator = torch.Generator().manual_seed(seed)
        self._batch_size, self._num_images = batch_size, len(x) if num_images is None else num_images

    def __len__(self) -> int:
        return math.ceil(self._num_images / self._batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._x), generator=self._generator)[: self._num_images].to(self._x.device)
        x, y = self._augment(self._x[order]), self._y[order]
        for rows, labels in zip(x.split(self._batch_size), y.split(self._batch_size), strict=True):
            yield rows if self._convert is None else self._convert(rows), labels


def quality(probs: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(probs, y),
        "nll": metrics.negative_log_likelihood(probs, y),
        "ece": metrics.expected_calibration_error(probs, y),
        "brier": metrics.brier_score(probs, y),
    }


def cosine(optimizer: Optimizer, *, num_epochs: int, is_warm: bool) -> LRScheduler:
    """A cosine, after an epoch at a tenth of the rate if `is_warm`, in which the scales adapt to the data."""
    if not is_warm:
        return CosineAnnealingLR(optimizer, T_max=num_epochs)
    warm = ConstantLR(optimizer, factor=0.1, total_iters=1)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, T_max=max(num_epochs - 1, 1))], milestones=[1])
