"""Flipout, which multiplies the deviations of the weights by random signs for each row."""

import torch
from torch import Tensor

from ..guides import Noise
from ._base import Estimator
from ._layers import Layer


class Flipout(Estimator):
    r"""A gradient estimator that draws the weights once, and multiplies their deviations by random signs for each row.

    .. math:: b_n = \mu a_n + r_n \circ \Delta (s_n \circ a_n), \qquad \Delta = w - \mu, \qquad
              r_{no}, s_{ni} \in \{-1, 1\}\ \text{uniformly}.

    The signs of a row are the same at all its positions, such as the pixels of an image. So the output of each row has
    exactly the same distribution as with drawn weights, also in convolutions. The deviation of a bias is multiplied by
    the sign :math:`r_{no}` of the output. The outputs of two rows are uncorrelated but not independent.

    References:
        Wen et al. (2018), https://arxiv.org/abs/1803.04386.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> adam = torch.optim.Adam(guide.parameters(), lr=0.05)
        >>> with pb.svi_step(model, guide, adam, estimator=pb.Flipout()) as step:
        ...     elbos = [float(step(x, 2 * x).elbo) for _ in range(300)]
        >>> elbos[-1] > elbos[0]
        True
    """

    @property
    def noise(self) -> Noise:
        return Noise.DEVIATION

    def output(self, layer: Layer) -> Tensor:
        mean = layer.mean()
        deviation = layer.deviation(layer.input * layer.signs(layer.input))
        return torch.addcmul(mean, layer.signs(mean), deviation)
