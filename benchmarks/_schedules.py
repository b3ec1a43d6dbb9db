"""Schedules of the learning rate."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, SequentialLR


def cosine(optimizer: Optimizer, *, num_epochs: int, is_warm: bool) -> LRScheduler:
    """A cosine, after an epoch at a tenth of the rate if `is_warm`, in which the scales adapt to the data."""
    if not is_warm:
        return CosineAnnealingLR(optimizer, T_max=num_epochs)
    warm = ConstantLR(optimizer, factor=0.1, total_iters=1)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, T_max=max(num_epochs - 1, 1))], milestones=[1])
