"""The quantile of split conformal prediction, and the unit of its scores."""

import math

from torch import Tensor

from ..._core import checks as _checks
from ...scores.uncertainty import RegressionPrediction


def conformal_quantile(scores: Tensor, level: float) -> Tensor:
    r"""The smallest value that at least :math:`(n + 1) \cdot` `level` of n scores do not exceed.

    A new score, exchangeable with these, exceeds it with a probability of at most 1 - `level`.

    Args:
        scores: Scores, shape ``(n, *O)``.
        level: Probability, strictly between 0 and 1.

    Returns:
        The value, shape ``(*O)``.

    Raises:
        ValueError: If there are fewer than `level` / (1 - `level`) scores: any finite value would be too small.
    """
    level = _checks.between_zero_and_one("level", level)
    count = max(math.ceil((len(scores) + 1) * level - 1e-9), 1)  # 0.9 is not 9 / 10
    if count > len(scores):
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise ValueError(
            f"`level` {level} needs at least {needed} calibration rows, got {len(scores)}; use more rows or a lower "
            "level."
        )
    return scores.sort(0).values[count - 1]


def deviations(prediction: RegressionPrediction) -> Tensor:
    """Predictive standard deviations, shape ``(N, *O)``; a `ValueError` if one is 0, since scores are divided by it."""
    _checks.kind("prediction", prediction, RegressionPrediction, "a prediction of numbers, made by predict")
    if bool((prediction.total <= 0).any()):
        raise ValueError(
            '`prediction` must have variances above 0, got 0 for some rows; for intervals use the score "absolute".'
        )
    return prediction.total.sqrt()
