"""Schedules of the learning rate."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, SequentialLR


def cosine(optimizer: Optimizer, *, num_epochs: int, is_warm: bool) -> LRScheduler:
    """The rate on a cosine, after an epoch at a tenth of it if warm: first scales are not yet those of the data."""
    if not is_warm:
        return CosineAnnealingLR(optimizer, T_max=num_epochs)
    warm = ConstantLR(optimizer, factor=0.1, total_iters=1)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, T_max=max(num_epochs - 1, 1))], milestones=[1])
