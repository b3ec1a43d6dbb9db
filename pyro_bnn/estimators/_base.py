"""The estimators."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _checks
from ..guides import MeanFieldGuide, Noise
from ..model import BayesianModel
from ._applied import Applied
from ._layers import Layer


class Estimator(ABC):
    """Decides how the noise of the weights enters the layers of a network during a fit.

    Plain reparameterisation, which needs no estimator, draws each weight once for the whole batch. The noise of the
    rows is then correlated, and the mean over a large batch does not reduce it. An estimator gives each row noise of
    its own with the same law. The expectation of the ELBO stays the same, and its gradient varies less.

    Pass an estimator to :func:`~pyro_bnn.fit_svi`, or in a script of your own wrap the training steps in
    :meth:`applied`. It needs a :class:`~pyro_bnn.BayesianModel` and a :class:`~pyro_bnn.MeanFieldGuide`, and changes
    the calls of `torch.nn.functional.linear`, `conv1d`, `conv2d` and `conv3d` with a random weight or bias. Any other
    use of a random parameter raises an error, and so does a layer whose input does not have the rows of data as its
    first axis. The rows must not depend on each other: batch normalisation in training mode is recognised and raises
    an error, but attention over the batch cannot be recognised.

    A new estimator defines the form of the noise that it asks for, :attr:`noise`, and computes the output of a layer
    from it, :meth:`output`.
    """

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """Form of the noise that the estimator asks for, in addition to the means: deviation of a draw, or variance."""

    @abstractmethod
    def output(self, layer: Layer) -> Tensor:
        """The output of a layer with random parameters.

        Args:
            layer: A call of `linear`, `conv1d`, `conv2d` or `conv3d`.

        Returns:
            A tensor of the shape of the layer's own output. Given the input, each row must have the law of the layer's
            output with weights drawn from the guide; rows may share noise or not.

        Raises:
            ValueError: If the estimator does not support the layer.
        """

    def applied(self, model: BayesianModel, guide: MeanFieldGuide) -> AbstractContextManager[None]:
        """A context in which calls of the guide and then of the model, as an ELBO makes them, use this estimator.

        It is only for training steps with `Trace_ELBO` or `TraceMeanField_ELBO`. `RenyiELBO` weighs whole draws, but an
        estimator draws noise for each row. The context may be entered many times, but not inside itself.

        Args:
            model: The model.
            guide: Its guide.

        Raises:
            ValueError: In this call, if the estimator does not support the arguments. In the context, if it does not
                support a layer, if draws are vectorised, or if the model runs with weights that are not the guide's
                last draw.

        Example:
            >>> from pyro.infer import SVI, Trace_ELBO
            >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, MeanFieldGuide, NormalPrior
            >>> net = torch.nn.Linear(4, 3)
            >>> model = BayesianModel(net, prior=NormalPrior(), likelihood=CategoricalLikelihood(), num_data=150)
            >>> guide = MeanFieldGuide(model)
            >>> with LocalReparameterization().applied(model, guide):
            ...     loss = Trace_ELBO().differentiable_loss(model, guide, torch.zeros(5, 4), torch.arange(5) % 3)
        """
        return Applied(self, model, guide)


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


class Flipout(Estimator):
    r"""Draws the weights once and flips the signs of their deviations, anew for every row n.

    .. math:: b_n = \mu a_n + r_n \circ \Delta (s_n \circ a_n), \qquad \Delta = w - \mu, \qquad
              r_{no}, s_{ni} \in \{-1, 1\}\ \text{uniformly}.

    The positions of a row share their signs, so each row has exactly the law of sampled weights, in linear layers and
    in convolutions of any kind. The deviation of a bias is multiplied by r. Two rows are uncorrelated but not
    independent.

    References:
        Wen et al. (2018), https://arxiv.org/abs/1803.04386.
    """

    @property
    def noise(self) -> Noise:
        """Deviations of one draw, the same for all rows; see :attr:`Estimator.noise`."""
        return Noise.DEVIATION

    def output(self, layer: Layer) -> Tensor:
        """The output with the deviations' signs flipped for each row; see :meth:`Estimator.output`."""
        mean = layer.mean()
        deviation = layer.deviation(layer.input * layer.signs(layer.input))
        return torch.addcmul(mean, layer.signs(mean), deviation)
