"""The calibration error that chance gives: the yardstick of what an observed one says."""

import torch
from torch import Tensor

from ..._core import checks as _checks
from ._classification import confidence_bins
from ._inputs import Numbers, as_tensor, class_inputs


def calibration_error_by_chance(
    probs: Numbers, *, num_bins: int = 15, num_samples: int = 1000, seed: int = 0, equal_mass: bool = False
) -> Tensor:
    r"""Expected calibration errors that a perfectly calibrated classifier would show on as many rows.

    The error of finitely many rows is never 0: in each bin, the accuracy misses the confidence by chance. Labels are
    drawn from the probabilities themselves, for which those are perfectly calibrated by construction,

    .. math:: E = \frac1N \sum_b \Big| \sum_{n \in b} (c_n - t_n) \Big|, \quad t_n \sim \mathrm{Bernoulli}(c_n),

    with the confidences :math:`c_n = \max_c p_{nc}`. An :func:`expected_calibration_error` below the 95 % quantile of
    these is no evidence of miscalibration.

    Args:
        probs: Class probabilities, shape (N, C).
        num_bins: Number of bins of the confidence, as for :func:`expected_calibration_error`.
        num_samples: Number R of sets of labels.
        seed: Seed of the labels.
        equal_mass: Whether the bins hold equally many inputs, as for :func:`expected_calibration_error`.

    Returns:
        Calibration errors, shape (R,).

    References:
        Bröcker and Smith (2007), Increasing the Reliability of Reliability Diagrams; Vaicenavicius et al. (2019),
        https://arxiv.org/abs/1902.06977.

    Example:
        >>> certain = torch.tensor([[1.0, 0.0]])
        >>> calibration_error_by_chance(certain, num_samples=2).tolist()
        [0.0, 0.0]
    """
    probs = as_tensor("probs", probs)
    probs, _ = class_inputs(probs, torch.zeros(probs.shape[:1], dtype=torch.long))
    _checks.at_least("num_samples", num_samples, 1)
    generator = torch.Generator().manual_seed(_checks.seed(seed))
    confidence = probs.amax(-1).double().cpu()
    index, _ = confidence_bins(confidence, num_bins, equal_mass=equal_mass)
    errors = []
    for _ in range(num_samples):
        is_right = torch.rand(len(confidence), generator=generator, dtype=torch.double) < confidence
        errors.append(torch.bincount(index, confidence - is_right.double(), minlength=num_bins).abs().sum())
    return torch.stack(errors) / len(confidence)
