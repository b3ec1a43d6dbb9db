"""The trend of an objective and the standard error of the trend."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

NUM_BLOCKS = 10
"""A trend is fitted to the means of so many blocks, whose errors hardly correlate once a fit has converged."""


@dataclass(frozen=True)
class Trend:
    """The rise of a straight line that is fitted to an objective. A positive rise means that the objective improved."""

    num_values: int  # steps or epochs
    rise: float  # in nats
    noise: float  # standard error of the rise, in nats


def trend_of(objective: Sequence[float]) -> Trend:
    r"""Fit a straight line to an objective by least squares.

    The objective has one value for each step or epoch, and at least ten values. The values are divided into B blocks.
    The line is fitted to the means :math:`m_b` of the blocks at the times :math:`t_b = b - (B - 1) / 2`:

    .. math:: \hat\beta = \frac{\sum_b t_b m_b}{\sum_b t_b^2}, \qquad
              \mathrm{se}(\hat\beta) = \sqrt{\frac{\sum_b (m_b - \bar m - \hat\beta t_b)^2}{(B - 2) \sum_b t_b^2}}.

    The rise of the line is :math:`B \hat\beta`.
    """
    parts = torch.tensor(objective, dtype=torch.float64).tensor_split(NUM_BLOCKS)
    means = torch.stack([part.mean() for part in parts])
    times = torch.arange(NUM_BLOCKS, dtype=torch.float64) - (NUM_BLOCKS - 1) / 2
    slope = (times @ means) / times.square().sum()
    residuals = means - means.mean() - slope * times
    variance = residuals.square().sum() / (NUM_BLOCKS - 2) / times.square().sum()
    return Trend(len(objective), NUM_BLOCKS * float(slope), NUM_BLOCKS * float(variance.sqrt()))
