"""Likelihoods of numbers and counts."""

import math
from collections.abc import Mapping
from typing import ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..._core import checks as _checks
from ...scores.uncertainty import RegressionPrediction
from ._base import NumberLikelihood, require_multiple, require_output_dims
from ._numbers import NumbersLikelihood, lifted

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class GaussianLikelihood(NumbersLikelihood[RegressionPrediction], NumberLikelihood):
    """N(output, scale^2), with one noise scale for all data.

    Output and targets have the same shape, (N, O) or (N,).

    Args:
        scale: Standard deviation of the noise. A number fixes it. None makes it a learnable parameter that starts at 1.
            A distribution over positive numbers (scalar, or with event shape (O,)) makes it a latent variable
            ``likelihood.scale`` with that prior.

    Raises:
        ValueError: If a number is not above 0, or if the support of a distribution is not the positive numbers.
    """

    free_names: ClassVar[Mapping[str, str]] = {"scale": "rho"}

    def __init__(self, scale: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.add_positive("scale", scale)

    def noise_scale(self) -> Tensor:
        """The fixed or learned standard deviation of the noise, a tensor of shape ().

        Raises:
            ValueError: If it is a latent variable, which has no single value.
        """
        if "scale" in self._pyro_samples:
            raise ValueError("the noise scale is a latent variable; draw it with `posterior.sample(...)`.")
        return self.number("scale")

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("GaussianLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Normal(output, lifted(self.number("scale"), self._event_dims["scale"], output), validate_args=False)


class _Standardising(dist.Normal):
    """A Gaussian whose log-density divides by the scale before it squares.

    torch divides by the variance, and in the gradient by its square. In single precision, the gradient in the log
    variance is then infinite for a scale of 1e-7 and an error of 3e5, although its true value is 5e24.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        standardised = (value - self.loc) / self.scale
        return -0.5 * standardised.square() - self.scale.log() - HALF_LOG_TAU


class HeteroscedasticGaussianLikelihood(NumberLikelihood):
    """N(mean, exp(log variance)); the two halves of the network's last axis are the mean and the log variance.

    Output of shape (N, 2 * O) goes with targets of shape (N, O).
    """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_multiple("HeteroscedasticGaussianLikelihood", output, 2)
        mean, log_variance = output.chunk(2, -1)
        return _Standardising(mean, (0.5 * log_variance).exp(), validate_args=False)

    def num_outputs(self, num_targets: int) -> int:
        return 2 * num_targets


class PoissonLikelihood(NumberLikelihood):
    """Counts with rate exp(output); output and targets have the same shape, (N, O) or (N,)."""

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("PoissonLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Poisson(output.exp(), validate_args=False)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise unless targets are whole numbers of at least 0."""
        expected = "targets of PoissonLikelihood must be whole numbers"
        if y.is_complex():
            raise ValueError(f"{expected}, got {y.dtype}; convert with `y.real`.")
        _checks.finite("y", y)
        if bool((y < 0).any()) or (y.is_floating_point() and bool((y != y.floor()).any())):
            raise ValueError(f"{expected} of at least 0, got values down to {float(y.min())}.")

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().as_targets(y, dtype).to(dtype)
