"""The trend of an objective, compared with its noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

NUM_BLOCKS = 10
"""A trend is fitted to the means of this number of blocks, whose errors hardly correlate once a fit has converged."""


@dataclass(frozen=True)
class Trend:
    """The rise, positive for an improvement, of a straight line through an objective."""

    num_values: int  # steps or epochs
    rise: float  # in nats
    noise: float  # standard error of the rise, in nats


def trend_of(objective: Sequence[float]) -> Trend:
    r"""The trend of an objective: least squares through block means :math:`m_b` at :math:`t_b = b - (B - 1) / 2`.

    .. math:: \hat\beta = \frac{\sum_b t_b m_b}{\sum_b t_b^2}, \qquad
              \mathrm{se}(\hat\beta) = \sqrt{\frac{\sum_b (m_b - \bar m - \hat\beta t_b)^2}{(B - 2) \sum_b t_b^2}},

    and the rise is :math:`B \hat\beta`. The objective has one value per step or epoch, and at least ten.
    """
    parts = torch.tensor(objective, dtype=torch.float64).tensor_split(NUM_BLOCKS)
    means = torch.stack([part.mean() for part in parts])
    times = torch.arange(NUM_BLOCKS, dtype=torch.float64) - (NUM_BLOCKS - 1) / 2
    slope = (times @ means) / times.square().sum()
    residuals = means - means.mean() - slope * times
    variance = residuals.square().sum() / (NUM_BLOCKS - 2) / times.square().sum()
    return Trend(len(objective), NUM_BLOCKS * float(slope), NUM_BLOCKS * float(variance.sqrt()))
