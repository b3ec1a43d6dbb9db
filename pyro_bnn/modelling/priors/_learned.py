"""Gaussian priors with learned scales: empirical Bayes."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ._base import HierarchicalPrior, prior_name, scale_like
from ._hierarchical import Per, centred_normal, check_per


@dataclass(frozen=True)
class LearnedNormalPrior(HierarchicalPrior):
    r"""N(0, s^2) on every element, with a standard deviation s that maximises the ELBO (empirical Bayes).

    .. math:: \hat s = \arg\max_s \max_q \mathrm{ELBO}(q, s),

    which for an exact guide maximises the evidence :math:`\log p(y \mid s)`. The learned number is :math:`\log s`, a
    parameter of the model: ``model.prior_parameters.0.log_scale`` for the layer ``net.0``, or
    ``model.prior_parameters.0.weight.log_scale`` for the parameter ``net.0.weight``. Its steps change s by a factor.

    Under a mean-field guide and an overparametrised network the learned scale can collapse towards 0, and the weights
    with it; :class:`HierarchicalNormalPrior` keeps the scale's uncertainty. MCMC and Laplace's method do not change the
    scale.

    Args:
        scale: First value of s, above 0.
        per: "layer" if the parameters of a layer share a scale, "parameter" if each parameter has its own.

    Raises:
        ValueError: If `scale` is not above 0, or `per` is none of these words.

    References:
        MacKay (1992), Bayesian Interpolation, https://doi.org/10.1162/neco.1992.4.3.415.
    """

    scale: float = 1.0
    per: Per = "layer"

    def __post_init__(self) -> None:
        _checks.positive("scale", self.scale)
        check_per(self.per)

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        """The logarithm of the scale."""
        return {prior_name(name, self.per, "log_scale"): scale_like("scale", self.scale, parameter).log()}

    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """N(0, scale^2)."""
        return centred_normal(values[prior_name(name, self.per, "log_scale")].exp())
