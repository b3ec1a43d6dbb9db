"""Local reparameterisation, which draws outputs instead of weights."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._core import checks as _checks
from ..guides import Noise
from ._base import Estimator
from ._layers import Layer


class LocalReparameterization(Estimator):
    r"""A gradient estimator that draws the outputs of a layer instead of the weights.

    .. math:: b = \gamma + \sqrt\delta\, \epsilon, \qquad \gamma = \sum_i a_i \mu_i, \qquad
              \delta = \sum_i a_i^2 \sigma_i^2, \qquad \epsilon \sim N(0, 1).

    The output of a layer takes two matrix products, and one random number per element.

    For linear layers, each row has exactly the same distribution as with drawn weights. For convolutions, the mean
    and the variance of each output are exact, but the positions of a row get independent noise although they share
    weights. This approximation is common, but it changes the ELBO of networks whose later layers combine positions. For
    these networks, use :class:`Flipout`, which is exact. A linear layer whose input has more than two axes raises an
    error.

    References:
        Kingma, Salimans and Welling (2015), https://arxiv.org/abs/1506.02557.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> adam = torch.optim.Adam(guide.parameters(), lr=0.05)
        >>> lrt = pb.LocalReparameterization()
        >>> with pb.svi_step(model, guide, adam, estimator=lrt) as step:
        ...     elbos = [float(step(x, 2 * x).elbo) for _ in range(300)]
        >>> elbos[-1] > elbos[0]
        True
    """

    @property
    def noise(self) -> Noise:
        return Noise.VARIANCE

    def output(self, layer: Layer) -> Tensor:
        if layer.is_linear and layer.input.dim() > 2:
            raise ValueError(
                f"the linear layer with {layer.names} has an input of shape {_checks.shape(layer.input)}, but "
                "local reparameterisation needs shape (N, D), since positions of a row that share weights would get "
                "independent noise; flatten the input, or use Flipout(), which is exact here."
            )
        mean, variance = layer.mean(), layer.variance()
        if variance.shape != mean.shape:  # only the bias is random
            variance = variance.to(mean.dtype).expand_as(mean).clone(memory_format=torch.contiguous_format)
        return _Noisy.apply(mean, variance)[0]


class _Noisy(torch.autograd.Function):
    r"""Adds Gaussian noise to the mean in place. The backward pass needs only :math:`\epsilon / \sqrt\delta`.

    .. math:: b = \gamma + \sqrt\delta\, \epsilon, \qquad
              \frac{\partial b}{\partial \delta} = \frac{\epsilon}{2 \sqrt\delta}, \quad \text{0 for } \delta = 0.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(mean, variance)
        noise = torch.randn_like(mean)
        noise.mul_(variance.sign())  # 0 where the variance is 0; on a CPU, boolean masks take five times as long
        scale = variance.clamp_min_(torch.finfo(variance.dtype).tiny).sqrt_()
        mean.addcmul_(scale, noise)
        ctx.save_for_backward(noise.div_(scale))
        return mean, scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, Tensor]:
        (ratio,) = ctx.saved_tensors
        return gradient, (gradient * ratio).mul_(0.5)
