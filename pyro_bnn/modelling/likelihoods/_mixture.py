"""A likelihood for targets with several plausible values at one input."""

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.nn.functional import softplus

from ..._core import checks as _checks
from ...scores.uncertainty import Accumulator, MixtureAccumulator, MixtureDensityPrediction
from ..distributions import NormalMixture
from ._base import Likelihood, require_multiple, require_real


class MixtureDensityLikelihood(Likelihood[MixtureDensityPrediction]):
    r"""A mixture of M Gaussians for each target; all its parameters are network outputs (mixture density network).

    .. math:: p(y \mid x) = \sum_{m=1}^M \pi_m(x)\, N(y; \mu_m(x), \sigma_m(x)^2), \qquad
              \pi = \mathrm{softmax}(a), \quad \sigma_m = \epsilon + \log(1 + e^{\rho_m}).

    Output of shape (N, 3 * O * M) goes with targets of shape (N, O). The last axis has three equal parts, in this
    order: logits a, means :math:`\mu`, and :math:`\rho`. Each part holds the M components of the first target, then
    those of the second, and so on. Given x, targets are independent of each other.

    Densities are summed in log space. The softplus is :math:`e^\rho` for small scales and linear for large ones. A
    large :math:`\rho` therefore does not overflow, and the mean of the variances stays moderate if :math:`\rho` is
    uncertain. The lower bound :math:`\epsilon` limits the density of a component that shrinks onto one point. In single
    precision and with the default :math:`\epsilon`, density and gradients are finite for all finite logits and
    :math:`\rho` if targets lie within :math:`10^{10}` of the means.

    Equal components would get equal gradients; :meth:`initial_bias` gives them different means.

    Args:
        num_components: Number of Gaussians M; 1 is a :class:`~pyro_bnn.HeteroscedasticGaussianLikelihood` with another
            map from outputs to scales.
        min_scale: Lower bound :math:`\epsilon` of the standard deviations, in units of the targets, above 0. The
            default suits targets of size 1: it is far below their usual noise, and above the rounding error of single
            precision.

    Raises:
        ValueError: If `num_components` is below 1 or `min_scale` not above 0.

    References:
        Bishop (1994), Mixture Density Networks,
        https://publications.aston.ac.uk/id/eprint/373/1/NCRG_94_004.pdf.

    Example:
        >>> likelihood = MixtureDensityLikelihood(4)
        >>> likelihood(torch.zeros(5, 24)).batch_shape  # two targets, of 12 outputs each
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
        r"""Bias of the last layer that gives the components different means; set ``net[-1].bias.data`` to it.

        The weights of the components start equal, their means at the targets' quantiles :math:`(m - \tfrac12) / M`, and
        their scales at the targets' standard deviation divided by M.

        Args:
            y: Training targets, shape (N, O).

        Returns:
            The bias, shape (3 * O * M,).

        Raises:
            ValueError: If y does not have shape (N, O), or one of its columns is constant.
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
