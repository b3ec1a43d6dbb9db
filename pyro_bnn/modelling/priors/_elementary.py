"""Fixed priors with the same settings for every parameter. The settings are checked when a prior is made."""

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.signatures import explained
from ..distributions import ScaleMixtureNormal
from ._base import Prior, scale_like


def _no_mean(call: str) -> dict[str, str]:
    """Return advice, by argument, for users who pass a mean before the scale, as torch's distributions require."""
    return dict.fromkeys(["", "loc", "mean"], f"{call} has mean 0") | dict.fromkeys(["sd", "std"], f"write {call}")


@dataclass(frozen=True)
class _ScalePrior(Prior):
    scale: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive("scale", self.scale, f", as in {type(self).__name__}(1.0)")

    def _scale(self, parameter: Tensor) -> Tensor:
        return scale_like("scale", self.scale, parameter)


@explained("NormalPrior(1.0)", _no_mean("NormalPrior(scale)"))
@dataclass(frozen=True)
class NormalPrior(_ScalePrior):
    r"""Independent Gaussian prior :math:`N(0, \text{scale}^2)` of every weight.

    Args:
        scale: Standard deviation, above 0.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = pb.nets.mlp([1, 20, 1]), pb.GaussianLikelihood(0.1)
        >>> for prior in pb.NormalPrior(0.3), pb.NormalPrior(1.0):
        ...     model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=9)
        ...     _ = torch.manual_seed(0)
        ...     outputs = [model(torch.ones(1, 1)) for _ in range(100)]
        ...     print(prior, f"sd of outputs: {torch.stack(outputs).std():.1f}")
        NormalPrior(scale=0.3) sd of outputs: 0.5
        NormalPrior(scale=1.0) sd of outputs: 4.3
    """

    @classmethod
    def from_weight_decay(cls, weight_decay: float, *, num_data: int) -> "NormalPrior":
        r"""Return the prior that weight decay corresponds to, if the loss is a *mean* over the data.

        .. math:: \frac1N \sum_n -\log p(y_n \mid w) + \frac{\lambda}{2} \lVert w \rVert^2
                  \;=\; -\frac1N \log p(w, y) + \text{const}, \qquad \text{scale} = \frac{1}{\sqrt{\lambda N}}.

        Weight decay adds :math:`\lambda w` to the gradient of all parameters, including biases, as in
        ``torch.optim.SGD(weight_decay=)``. If the loss is a *sum*, pass ``num_data=1``. If the penalty has no factor of
        one half, pass twice the `weight_decay`. For a mean squared error, divide `weight_decay` by :math:`2 \sigma^2`,
        with the noise's standard deviation :math:`\sigma`. The decoupled decay of `AdamW` corresponds to no prior.

        Args:
            weight_decay: The factor :math:`\lambda`, above 0.
            num_data: Number N of rows in the mean.

        Raises:
            ValueError: If an argument is out of range.

        Example:
            >>> from pyro_bnn import NormalPrior
            >>> NormalPrior.from_weight_decay(1e-2, num_data=100)
            NormalPrior(scale=1.0)
        """
        _checks.positive("weight_decay", weight_decay)
        return cls(1 / math.sqrt(weight_decay * _checks.at_least("num_data", num_data, 1)))

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        return dist.Normal(parameter.new_zeros(()), self._scale(parameter), validate_args=False)


@dataclass(frozen=True)
class NetworkNormalPrior(_ScalePrior):
    r"""Gaussian prior :math:`N(w_0, \text{scale}^2)` of every weight, where :math:`w_0` is its value in the network.

    For a pretrained network, this is the prior of MOPED. If the pretraining and the fit use the same data, the data
    count twice, and the posterior is overconfident. Compare models on data that neither the pretraining nor the fit
    used.

    The means share the memory of the weights in the model's copy of the network.

    Args:
        scale: Standard deviation, above 0.

    References:
        Krishnan et al. (2020), Specifying Weight Priors in Bayesian Deep Neural Networks with Empirical Bayes (MOPED),
        https://arxiv.org/abs/1906.05323. With ``NetworkInit(weight_fraction=0.1)``, a guide starts as in this paper.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> layer = torch.nn.Linear(100, 10)
        >>> weights = pb.NetworkNormalPrior(0.3).elementwise(
        ...     "weight", layer.weight, layer
        ... )
        >>> bool((weights.loc == layer.weight).all())
        True
    """

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        return dist.Normal(parameter.detach(), self._scale(parameter), validate_args=False)


@explained("LaplacePrior(0.5)", _no_mean("LaplacePrior(scale)"))
@dataclass(frozen=True)
class LaplacePrior(_ScalePrior):
    """Laplace prior of every weight, with mean 0 and standard deviation √2 b.

    Args:
        scale: The scale b in ``exp(-|w| / b) / (2 b)``, above 0.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> layer = torch.nn.Linear(100, 10)
        >>> weights = pb.LaplacePrior(0.5).elementwise("weight", layer.weight, layer)
        >>> weights.stddev.round(decimals=2)
        tensor(0.7100)
    """

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        return dist.Laplace(parameter.new_zeros(()), self._scale(parameter), validate_args=False)


@dataclass(frozen=True)
class ScaleMixturePrior(Prior):
    """Mixture of a wide and a narrow Gaussian with mean 0, as the prior of every weight.

    Args:
        mixing: Probability of the first component, as for :class:`~pyro_bnn.distributions.ScaleMixtureNormal`.
        scale1: Standard deviation of the first component.
        scale2: Standard deviation of the second component.

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424, equation 7.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> layer = torch.nn.Linear(100, 10)
        >>> prior = pb.ScaleMixturePrior(0.25, 1.0, 0.0025)
        >>> weights = prior.elementwise("weight", layer.weight, layer)
        >>> weights.variance.round(decimals=2)
        tensor(0.2500)
    """

    mixing: float = 0.5
    scale1: float = 1.0
    scale2: float = math.exp(-6)

    def __post_init__(self) -> None:
        _checks.between_zero_and_one("mixing", self.mixing)
        _checks.positive("scale1", self.scale1)
        _checks.positive("scale2", self.scale2)

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        mixing = parameter.new_full((), float(self.mixing))
        smallest = torch.finfo(mixing.dtype).eps
        if not smallest <= self.mixing <= 1 - smallest:
            raise ValueError(
                f"`mixing` must lie between {smallest:.2g} and 1 - {smallest:.2g} in {mixing.dtype}, got "
                f"{self.mixing:g}; choose another weight, or a NormalPrior."
            )
        scales = (scale_like(name, getattr(self, name), parameter) for name in ("scale1", "scale2"))
        return ScaleMixtureNormal(mixing, *scales, validate_args=False)


@explained("FanInNormalPrior(2.0)")
@dataclass(frozen=True)
class FanInNormalPrior(Prior):
    r"""Normal prior :math:`N(0, \text{gain}^2 / \text{fan-in})`, under which wider layers do not give larger outputs.

    The fan-in of a weight of shape (out, in, ...) is the product of all dimensions but the first. A parameter with
    fewer than two dimensions, such as a bias, has the fan-in of its layer's ``weight``. In a layer without a ``weight``
    of two or more dimensions, such as a normalisation layer, the standard deviation is `gain`.

    Args:
        gain: Factor of the standard deviation, above 0. With :math:`\sqrt 2`, the second moment of ReLU activations
            stays the same from layer to layer.

    References:
        Neal (1996), Bayesian Learning for Neural Networks, chapter 2.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> layer = torch.nn.Linear(100, 10)
        >>> prior = pb.FanInNormalPrior(2**0.5)
        >>> prior.elementwise("weight", layer.weight, layer).scale.round(decimals=3)
        tensor(0.1410)
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive("gain", self.gain)

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        weight = parameter if parameter.dim() > 1 else getattr(module, "weight", None)
        fan_in = weight[0].numel() if isinstance(weight, Tensor) and weight.dim() > 1 else 1
        scale = scale_like("gain", self.gain / math.sqrt(fan_in), parameter)
        return dist.Normal(parameter.new_zeros(()), scale, validate_args=False)
