"""Gaussian priors whose scales are latent variables of the model, or learned (empirical Bayes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.reflection import move_distribution, require_positive
from ._base import HierarchicalPrior, prior_name, scale_like

Per = Literal["layer", "parameter"]
PER = ("layer", "parameter")


def _centred_normal(scale: Tensor) -> TorchDistributionMixin:
    """Return N(0, scale^2) without a check, as the scale is positive by construction."""
    return dist.Normal(torch.zeros_like(scale), scale, validate_args=False)


@dataclass(frozen=True)
class HierarchicalNormalPrior(HierarchicalPrior):
    r"""Gaussians whose standard deviation is a latent variable, so you need not choose the size of the weights.

    .. math:: s \sim p(s), \qquad w_i \mid s \sim N(0, s^2).

    The scale of the layer ``net.0`` is the site ``prior.0.scale``. With ``per="parameter"``, the scale of its weight is
    the site ``prior.0.weight.scale``.

    Args:
        scale_prior: Prior p(s), a Pyro distribution of one positive number; by default HalfNormal(1).
        per: "layer" if the parameters of a layer share a scale, "parameter" if each has its own.

    Raises:
        ValueError: If `scale_prior` is not a distribution of one positive number, or if `per` is neither "layer" nor
            "parameter".

    References:
        Neal (1996), Bayesian Learning for Neural Networks, chapter 1.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> prior, noise = pb.HierarchicalNormalPrior(), pb.GaussianLikelihood(0.1)
        >>> net = torch.nn.Linear(1, 1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> [*pb.MeanFieldGuide(model)()]
        ['prior.scale', 'net.weight', 'net.bias']
    """

    scale_prior: TorchDistributionMixin = field(default_factory=lambda: dist.HalfNormal(1.0))
    per: Per = "layer"

    def __post_init__(self) -> None:
        _checks.one_of("per", self.per, PER)
        event_shape = require_positive("scale", self.scale_prior).event_shape
        if event_shape:
            raise ValueError(f"`scale_prior` must be of one number, got event shape {tuple(event_shape)}.")

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        moved = move_distribution(self.scale_prior, parameter)
        assert isinstance(moved, TorchDistributionMixin)
        return {prior_name(name, self.per, "scale"): moved}

    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return _centred_normal(values[prior_name(name, self.per, "scale")])


@dataclass(frozen=True)
class HorseshoePrior(HierarchicalPrior):
    r"""A sparse prior: Gaussians whose scale is the product of two heavy-tailed scales, a global and a local one.

    .. math:: \tau \sim C^+(0, b), \qquad \lambda_k \sim C^+(0, 1), \qquad
              w_{ki} \mid \tau, \lambda_k \sim N(0, \tau^2 \lambda_k^2),

    with half-Cauchy distributions :math:`C^+`. Most weights are near 0, and a few may be large. In the regularised
    horseshoe, a slab of scale c limits the Gaussian's scale to :math:`c \tau\lambda / \sqrt{c^2 + \tau^2\lambda^2} <
    c`.

    The global scale of the layer ``net.0`` is the site ``prior.0.global_scale``. With ``per="parameter"``, the global
    scale of its weight is the site ``prior.0.weight.global_scale``. The local scales of the weight are the site
    ``prior.0.weight.local_scales``.

    Args:
        global_scale: Median b of the global scale; with a smaller value, fewer weights are large.
        local: "unit" if all weights of a unit (one index of the first axis) share a local scale, as in Ghosh et al., so
            that units can vanish; "weight" if each has its own. Each element of a bias always has its own local scale.
        slab_scale: Scale c of the slab; None for the plain horseshoe.
        per: "layer" if the parameters of a layer share a global scale, "parameter" if each has its own.

    Raises:
        ValueError: If a number is not above 0, or if `local` or `per` is no allowed text.

    References:
        Carvalho, Polson and Scott (2010), https://doi.org/10.1093/biomet/asq017; Ghosh, Yao and Doshi-Velez (2018),
        https://arxiv.org/abs/1806.05975; Piironen and Vehtari (2017), https://arxiv.org/abs/1707.01694.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(8, 2), pb.GaussianLikelihood(0.1)
        >>> prior = pb.HorseshoePrior(0.1, slab_scale=2.0)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> pb.MeanFieldGuide(model)()["prior.weight.local_scales"].shape
        torch.Size([2, 1])
    """

    global_scale: float = 1.0
    local: Literal["unit", "weight"] = "unit"
    slab_scale: float | None = None
    per: Per = "layer"

    def __post_init__(self) -> None:
        _checks.positive("global_scale", self.global_scale)
        if self.slab_scale is not None:
            _checks.positive("slab_scale", self.slab_scale)
        _checks.one_of("local", self.local, ("unit", "weight"))
        _checks.one_of("per", self.per, PER)

    def _names(self, name: str) -> tuple[str, str]:
        return prior_name(name, self.per, "global_scale"), prior_name(name, "parameter", "local_scales")

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        of_all, of_each = self._names(name)
        if self.slab_scale is not None:
            _checks.scale_in("slab_scale", self.slab_scale, parameter.dtype)
        shape = parameter.shape if self.local == "weight" else (*parameter.shape[:1], *[1] * (parameter.dim() - 1))
        ones = parameter.new_ones(shape)
        return {
            of_all: dist.HalfCauchy(scale_like("global_scale", self.global_scale, parameter), validate_args=False),
            of_each: dist.HalfCauchy(ones, validate_args=False).to_event(len(shape)),
        }

    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        of_all, of_each = self._names(name)
        scale = values[of_all] * values[of_each]
        if self.slab_scale is not None:
            scale = scale / (1 + (scale / float(self.slab_scale)).square()).sqrt()
        return _centred_normal(scale)


@dataclass(frozen=True)
class LearnedNormalPrior(HierarchicalPrior):
    r""":math:`N(0, s^2)` for every element, with the scale s that maximises the ELBO (empirical Bayes).

    .. math:: \hat s = \arg\max_s \max_q \mathrm{ELBO}(q, s).

    If the guide is exact, :math:`\hat s` maximises the evidence :math:`\log p(y \mid s)`. The fit learns :math:`\log
    s`, which is the parameter ``model.prior_parameters.0.log_scale`` for the layer ``net.0``. With ``per="parameter"``,
    it is ``model.prior_parameters.0.weight.log_scale`` for the layer's weight. MCMC and Laplace's method do not change
    s.

    With a mean-field guide and an overparametrised network, s can collapse towards 0, together with the weights.
    :class:`HierarchicalNormalPrior` infers the scale with its uncertainty.

    Args:
        scale: Initial value of s, above 0.
        per: "layer" if the parameters of a layer share a scale, "parameter" if each has its own.

    Raises:
        ValueError: If `scale` is not above 0, or if `per` is neither "layer" nor "parameter".

    References:
        MacKay (1992), Bayesian Interpolation, https://doi.org/10.1162/neco.1992.4.3.415.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> prior, noise = pb.LearnedNormalPrior(), pb.GaussianLikelihood(0.1)
        >>> net = torch.nn.Linear(1, 1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> [name for name, _ in model.named_parameters() if "scale" in name]
        ['prior_parameters.log_scale']
    """

    scale: float = 1.0
    per: Per = "layer"

    def __post_init__(self) -> None:
        _checks.positive("scale", self.scale, f", as in {type(self).__name__}(1.0)")
        _checks.one_of("per", self.per, PER)

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        return {prior_name(name, self.per, "log_scale"): scale_like("scale", self.scale, parameter).log()}

    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return _centred_normal(values[prior_name(name, self.per, "log_scale")].exp())
