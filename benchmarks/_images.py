"""What the benchmarks on images share: corruptions, scores, and a schedule of the learning rate."""

from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, SequentialLR

from pyro_bnn import metrics
from pyro_bnn.data import add_noise, blur, lower_contrast

CORRUPTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "noise": add_noise,
    "blur": blur,
    "contrast": lower_contrast,
}


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
