"""Likelihoods of numbers and counts."""

import math
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroSample
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from ..._core import checks as _checks
from ..._core.reflection import require_positive
from ..._core.scope import local_param
from ._base import MovedPrior, NumberLikelihood, require_multiple, require_output_dims

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class GaussianLikelihood(NumberLikelihood):
    """N(output, scale^2), with one noise scale for all data.

    Output and targets have the same shape, (N, O) or (N,).

    Args:
        scale: Standard deviation of the noise. A number fixes it. None makes it a learnable parameter that starts at 1.
            A distribution over positive numbers (scalar, or with event shape (O,)) makes it a latent variable
            ``likelihood.scale`` with that prior.

    Raises:
        ValueError: If a number is not above 0, or if the support of a distribution is not the positive numbers.
    """

    def __init__(self, scale: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.scale: Any
        self._scale_event_dim = 0
        if scale is None:
            self.rho = nn.Parameter(torch.tensor(0.5413248546129181, dtype=torch.float64))  # softplus(rho) = 1
        elif isinstance(scale, Distribution):
            prior = require_positive("scale", scale)
            self._scale_event_dim = prior.event_dim
            self.register_buffer("like", torch.zeros(()))  # holds the device and dtype
            self.scale = PyroSample(MovedPrior(prior))
        else:
            self.keep_exact("fixed_scale", torch.tensor(_checks.positive("scale", scale), dtype=torch.float64))

    def extra_repr(self) -> str:
        if "fixed_scale" in self._buffers:
            return f"scale={float(self.get_buffer('fixed_scale')):.4g}"
        return "latent scale" if "scale" in self._pyro_samples else "learned scale"

    def noise_scale(self) -> Tensor:
        """The fixed or learned standard deviation of the noise, a tensor of shape ().

        Raises:
            ValueError: If it is a latent variable, which has no single value.
        """
        if "scale" in self._pyro_samples:
            raise ValueError("the noise scale is a latent variable; draw it with `posterior.sample(...)`.")
        return self._scale()

    def _scale(self) -> Tensor:
        if "rho" in self._parameters:
            parameter = self._parameters["rho"]
            assert parameter is not None
            if not self._pyro_context.active:
                return softplus(parameter)
            name = f"{self._pyro_name}.rho" if self._pyro_name else "rho"
            return softplus(local_param(name, parameter))
        return self.get_buffer("fixed_scale") if "fixed_scale" in self._buffers else self.scale

    def draw_shape(self) -> torch.Size:
        """Draw axes of a latent scale, without the data axis of size 1 of vectorised particles."""
        if "scale" not in self._pyro_samples:
            return torch.Size()
        lead = self.scale.shape[: self.scale.dim() - self._scale_event_dim]
        return lead[:-1] if len(lead) > 1 else lead

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Normal(output, scale)."""
        require_output_dims("GaussianLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Normal(output, self._lifted(self._scale(), output), validate_args=False)

    def _lifted(self, scale: Tensor, output: Tensor) -> Tensor:
        """A latent scale of shape (*draws, *event), with new axes so that it broadcasts with (*draws, N, *event)."""
        num_lead, missing = scale.dim() - self._scale_event_dim, output.dim() - scale.dim()
        if num_lead == 0 or missing <= 0:
            return scale
        return scale.reshape(scale.shape[:num_lead] + (1,) * missing + scale.shape[num_lead:])


class _Standardising(dist.Normal):
    """A Gaussian whose log-density divides by the scale before it squares.

    torch divides by the variance, and in the gradient by its square. In single precision, the gradient in the log
    variance is then infinite for a scale of 1e-7 and an error of 3e5, although its true value is 5e24.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        standardised = (value - self.loc) / self.scale
        log_prob: Tensor = -0.5 * standardised.square() - self.scale.log() - HALF_LOG_TAU
        return log_prob


class HeteroscedasticGaussianLikelihood(NumberLikelihood):
    """N(mean, exp(log variance)); the two halves of the network's last axis are the mean and the log variance.

    Output of shape (N, 2 * O) goes with targets of shape (N, O).
    """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Normal(mean, exp(log_variance / 2))."""
        require_multiple("HeteroscedasticGaussianLikelihood", output, 2)
        mean, log_variance = output.chunk(2, -1)
        return _Standardising(mean, (0.5 * log_variance).exp(), validate_args=False)

    def num_outputs(self, num_targets: int) -> int:
        """Two for each target."""
        return 2 * num_targets


class PoissonLikelihood(NumberLikelihood):
    """Counts with rate exp(output); output and targets have the same shape, (N, O) or (N,)."""

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Poisson(exp(output))."""
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
