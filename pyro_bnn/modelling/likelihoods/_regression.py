"""Likelihoods for regression and counts."""

import math
from collections.abc import Mapping
from typing import ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.nn.functional import hardtanh, softplus

from ..._core import checks as _checks
from ..._core.signatures import explained
from ...scores.uncertainty import Accumulator, MixtureAccumulator, MixtureDensityPrediction, RegressionPrediction
from ..distributions import NormalMixture
from ._base import Likelihood, NumberLikelihood, require_multiple, require_output_dims, require_real
from ._numbers import WEAK, NumbersLikelihood, lifted

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
MIN_SCALE = 1e-15  # of a noise that depends on the inputs, which far from the data could be rounded to 0


class GaussianLikelihood(NumbersLikelihood[RegressionPrediction], NumberLikelihood):
    r"""Gaussian noise of constant size around the output of the network: :math:`N(\text{output}, \text{scale}^2)`.

    Output and targets have the same shape, (N, O) or (N,).

    Args:
        scale: Standard deviation of the noise. A number fixes the scale. A distribution over positive numbers makes the
            scale a latent variable, ``likelihood.scale``, with this prior, which is scalar or has the event shape (O,).
            The default, ``LogNormal(0.0, 3.0)``, is weak for targets of standard deviation 0.01 to 100; standardise
            others. With ``None``, the scale is a learnable parameter that starts at 1, and :func:`~pyro_bnn.fit` is
            variational.

    Raises:
        ValueError: If the scale is not above 0, or its distribution is not over positive numbers.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> import pyro.distributions as dist
        >>> fixed = pb.GaussianLikelihood(0.1)
        >>> round(float(fixed(torch.zeros(1, 1)).stddev), 3)
        0.1
        >>> inferred = pb.GaussianLikelihood()
        >>> narrow = pb.GaussianLikelihood(dist.LogNormal(-1.5, 1.5))
    """

    free_names: ClassVar[Mapping[str, str]] = {"scale": "rho"}

    @explained("GaussianLikelihood(0.1)")
    def __init__(self, scale: float | TorchDistributionMixin | None = WEAK) -> None:
        super().__init__()
        self.add_positive("scale", scale)

    def noise_scale(self) -> Tensor:
        """Return the fixed or learned standard deviation of the noise, shape ().

        Raises:
            ValueError: If the scale is a latent variable, which has no single value.
        """
        if "scale" in self._pyro_samples:
            raise ValueError("the noise scale is a latent variable; draw it with `posterior.sample(...)`.")
        return self.number("scale")

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("GaussianLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Normal(output, lifted(self.number("scale"), self._event_dims["scale"], output), validate_args=False)


class _Standardising(dist.Normal):
    """A Gaussian that divides errors by the scale before squaring. In float32, torch's gradients may overflow."""

    def log_prob(self, value: Tensor) -> Tensor:
        standardised = (value - self.loc) / self.scale
        return -0.5 * standardised.square() - self.scale.log() - HALF_LOG_TAU


class HeteroscedasticGaussianLikelihood(NumberLikelihood):
    r"""Gaussian noise whose size depends on the input.

    Output of shape (N, 2 * O) goes with targets of shape (N, O). Along the last axis, means come first, then log
    variances.

    Args:
        max_scale: Largest standard deviation of the noise, in units of the targets. Without a limit, the noise, an
            exponential of the output, can become arbitrarily large for inputs unlike the training inputs.

    Raises:
        ValueError: If `max_scale` is not above 0.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.HeteroscedasticGaussianLikelihood()
        >>> output = torch.tensor([[3.0, 0.0]])  # a mean, and a log-variance
        >>> likelihood(output).mean, likelihood(output).stddev
        (tensor([[3.]]), tensor([[1.]]))
    """

    @explained("HeteroscedasticGaussianLikelihood(max_scale=10.0)")
    def __init__(self, max_scale: float | None = None) -> None:
        super().__init__()
        self.max_scale = None if max_scale is None else _checks.positive("max_scale", max_scale)

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_multiple("HeteroscedasticGaussianLikelihood", output, 2)
        mean, log_variance = self.split(output)
        return _Standardising(mean, (0.5 * log_variance).exp(), validate_args=False)

    def split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the limited log variance, each (N, O), from an output (N, 2 * O)."""
        mean, log_variance = output.chunk(2, -1)
        largest = math.inf if self.max_scale is None else 2 * math.log(self.max_scale)
        return mean, hardtanh(log_variance, 2 * math.log(MIN_SCALE), largest)

    def extra_repr(self) -> str:
        limit = "" if self.max_scale is None else f"max_scale={self.max_scale:g}"
        return ", ".join(filter(None, [limit, super().extra_repr()]))

    def num_outputs(self, num_targets: int) -> int:
        return 2 * num_targets


class PoissonLikelihood(NumberLikelihood):
    """Counts with rate exp(output). Output and targets have the same shape, (N, O) or (N,).

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.PoissonLikelihood()
        >>> likelihood(torch.tensor([0.0, 2.0])).mean.round(decimals=1)
        tensor([1.0000, 7.4000])
    """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("PoissonLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Poisson(output.exp(), validate_args=False)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        expected = "targets of PoissonLikelihood must be whole numbers"
        if y.is_complex():
            raise ValueError(f"{expected}, got {y.dtype}; convert with `y.real`.")
        _checks.finite("y", y)
        if bool((y < 0).any()) or (y.is_floating_point() and bool((y != y.floor()).any())):
            raise ValueError(f"{expected} of at least 0, got values down to {float(y.min())}.")

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().as_targets(y, dtype).to(dtype)


class MixtureDensityLikelihood(Likelihood[MixtureDensityPrediction]):
    r"""A mixture of M Gaussians for each target, whose parameters are network outputs (mixture density network).

    .. math:: p(y \mid x) = \sum_{m=1}^M \pi_m(x)\, N(y; \mu_m(x), \sigma_m(x)^2), \qquad
              \pi = \mathrm{softmax}(a), \quad \sigma_m = \epsilon + \log(1 + e^{\rho_m}).

    Output of shape (N, 3 * O * M) goes with targets of shape (N, O). The last axis has three equal parts: logits a,
    means :math:`\mu`, and :math:`\rho`. Each part holds the M components of the first target, then those of the second,
    and so on. Given x, targets are independent.

    The lower bound :math:`\epsilon` limits the density of a component that shrinks onto one point. In single precision
    and with the default :math:`\epsilon`, density and gradients are finite for all finite logits and :math:`\rho` if
    targets lie within :math:`10^{10}` of the means.

    Components that start equal stay equal, so give them different means by :meth:`initial_bias`.

    Args:
        num_components: Number M of Gaussians.
        min_scale: Lower bound :math:`\epsilon` of the standard deviations, in units of the targets. The default suits
            targets of magnitude 1: it is far below their usual noise, but above rounding errors of single precision.

    Raises:
        ValueError: If `num_components` is below 1, or `min_scale` is not above 0.

    References:
        Bishop (1994), Mixture Density Networks, https://publications.aston.ac.uk/id/eprint/373/1/NCRG_94_004.pdf.

    Example:
        >>> import torch
        >>> from pyro_bnn import MixtureDensityLikelihood
        >>> likelihood = MixtureDensityLikelihood(4)
        >>> likelihood(torch.zeros(5, 24)).batch_shape  # two targets of 12 outputs
        torch.Size([5, 2])
    """

    def __init__(self, num_components: int, *, min_scale: float = 1e-6) -> None:
        super().__init__()
        self.num_components = _checks.at_least("num_components", num_components, 1)
        self.min_scale = _checks.positive("min_scale", min_scale)

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        name = f"MixtureDensityLikelihood with {self.num_components} components"
        require_multiple(name, output, 3 * self.num_components)
        logits, loc, rho = output.unflatten(-1, (3, -1, self.num_components)).unbind(-3)  # each (..., N, O, M)
        return NormalMixture(logits, loc, self.min_scale + softplus(rho), validate_args=False)

    def num_outputs(self, num_targets: int) -> int:
        return 3 * self.num_components * num_targets

    def extra_repr(self) -> str:
        return f"{self.num_components}"

    def initial_bias(self, y: Tensor) -> Tensor:
        r"""Return a bias for the last layer (``net[-1].bias.data``) that gives the components different means.

        Components start with equal probabilities. The mean of component m is the quantile :math:`(m - \tfrac12) / M` of
        the targets, and each scale is :math:`1 / M` of their standard deviation.

        Args:
            y: Training targets, shape (N, O).

        Returns:
            The bias, shape (3 * O * M,).

        Raises:
            ValueError: If y does not have shape (N, O), or a column is constant.
        """
        _checks.finite("y", _checks.real_tensor("y", y))
        if y.dim() != 2 or len(y) < 2 or not bool((y.std(0) > 0).all()):
            raise ValueError(
                f"`y` must have shape (N, O) and two different values in every column, got {_checks.shape(y)}."
            )
        levels = (torch.arange(self.num_components).to(y) + 0.5) / self.num_components
        loc = y.quantile(levels, dim=0).mT  # (O, M)
        scale = (y.std(0) / self.num_components).unsqueeze(-1).expand_as(loc)
        return torch.stack([torch.zeros_like(loc), loc, scale + (-(-scale).expm1()).log()]).flatten()

    def check_values(self, output: Tensor, y: Tensor) -> None:
        require_real("MixtureDensityLikelihood", y)

    def accumulator(self) -> Accumulator[MixtureDensityPrediction]:
        return MixtureAccumulator()
