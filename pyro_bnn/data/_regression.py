"""A synthetic regression problem: a noisy sine."""

import torch
from torch import Tensor

from .._core import checks as _checks


def regression_problem(
    num_data: int = 92, *, noise: float = 2.0, gap: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Noisy observations of 10 sin(2 pi x) on [-0.5, 0.5].

    Args:
        num_data: Number of points, N.
        noise: Standard deviation of the noise.
        gap: Width of the interval around 0 without points, below 1.
        seed: Seed of the noise.

    Returns:
        x and y, each of shape (N, 1); x is evenly spaced on either side of the gap.

    Raises:
        ValueError: If an argument is out of range.
    """
    num_data = _checks.at_least("num_data", num_data, 1)
    _checks.in_memory("num_data", num_data, 2 * torch.get_default_dtype().itemsize)
    noise = _checks.not_negative("noise", noise)
    generator = torch.Generator().manual_seed(_checks.seed(seed))
    if not 0 <= _checks.as_float(gap) < 1:
        raise ValueError(f"`gap` must lie in [0, 1), the width of the interval of the data, got {_checks.got(gap)}.")
    x = torch.linspace(-0.5, 0.5, num_data)[:, None]
    if gap:
        x = x * (1 - gap) + torch.where(x < 0, -gap / 2, gap / 2)
    return x, 10 * torch.sin(2 * torch.pi * x) + noise * torch.randn(num_data, 1, generator=generator)
