"""Local reparameterisation: outputs are drawn, not weights."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _checks
from ..guides import Noise
from ._base import Estimator
from ._layers import Layer


class LocalReparameterization(Estimator):
    r"""Draws a layer's outputs instead of its weights.

    .. math:: b = \gamma + \sqrt\delta\, \epsilon, \qquad \gamma = \sum_i a_i \mu_i, \qquad
              \delta = \sum_i a_i^2 \sigma_i^2, \qquad \epsilon \sim N(0, 1),

    which takes two products of matrices, and one noise number for every element of the output.

    For linear layers this is the exact law of each row. For convolutions the mean and variance of every output are
    exact, but the noise of two positions of a row is drawn as if it were independent, although they share weights. This
    is the usual approximation; for a network that mixes positions the ELBO is then not exactly that of sampled weights.
    :class:`Flipout` is exact for convolutions. A linear layer applied to several positions of a row (an input of more
    than two dimensions) raises an error.

    References:
        Kingma, Salimans and Welling (2015), https://arxiv.org/abs/1506.02557.
    """

    @property
    def noise(self) -> Noise:
        """Variances, since no weight is drawn for the network; see :attr:`Estimator.noise`."""
        return Noise.VARIANCE

    def output(self, layer: Layer) -> Tensor:
        """A draw of the layer's output; see :meth:`Estimator.output`."""
        if layer.is_linear and layer.input.dim() > 2:
            raise ValueError(
                f"{layer.names} is used in a linear layer whose input has shape {_checks.shape(layer.input)}, but "
                "local reparameterisation needs shape (N, D), since positions of a row that share weights would get "
                "independent noise; flatten the input, or use Flipout(), which is exact here."
            )
        mean, variance = layer.mean(), layer.variance()
        output: Tensor = _Noisy.apply(mean, variance.expand_as(mean), torch.randn_like(mean))
        return output


class _Noisy(torch.autograd.Function):
    """Mean plus square root of the variance times noise; the root's derivative at 0 is set to 0 instead of infinity."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        scale = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt_()
        ctx.save_for_backward(scale, noise, variance == 0)
        return torch.addcmul(mean, scale, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        scale, noise, is_zero = ctx.saved_tensors
        return gradient, (gradient * noise).div_(scale).mul_(0.5).masked_fill_(is_zero, 0.0), None
