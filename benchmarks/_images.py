"""What the benchmarks on images share: corruptions, scores, and a schedule of the learning rate."""

from collections.abc import Callable

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
