"""The likelihood of numbers with outliers."""

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..._core import checks as _checks
from ._base import NumberLikelihood, require_output_dims


class LaplaceLikelihood(NumberLikelihood):
    r"""Laplace(output, scale), whose standard deviation is :math:`\sqrt 2` times the scale.

    Output and targets have the same shape, (N, O) or (N,). The best point is a median, not a mean: outliers pull less.

    Args:
        scale: Mean absolute deviation of the noise.

    Raises:
        ValueError: If the scale is not above 0.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(_checks.positive("scale", scale), dtype=torch.float64))

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Laplace(output, scale)."""
        require_output_dims("LaplaceLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Laplace(output, self.get_buffer("scale"), validate_args=False)
