"""The plainest estimator of all: each row has weights of its own."""

import torch
from torch import Tensor

from ..guides import Noise, RandomParameter
from ._base import Estimator
from ._layers import Layer, Parameter


class RowWeights(Estimator):
    r"""Draws all weights of a layer anew for every row n, :math:`b_n = (\mu + \sigma \circ \epsilon_n) a_n`.

    Rows are independent, and each has exactly the law of drawn weights, in linear layers and convolutions of any
    kind. There are as many copies of the weights as rows: for small networks.
    """

    @property
    def noise(self) -> Noise:
        """Variances: a draw for all rows is of no use."""
        return Noise.VARIANCE

    def output(self, layer: Layer) -> Tensor:
        """Each row under its own draw; see :meth:`Estimator.output`."""
        num_rows = len(layer.input)
        tensors = [_for_rows(parameter, num_rows) for parameter in (layer.weight, layer.bias)]

        def row(a: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return layer.op(a[None], weight, bias, *layer.options, **layer.keywords)[0]

        axes = (0, *(None if tensor is None else 0 for tensor in tensors))
        output: Tensor = torch.vmap(row, in_dims=axes)(layer.input, *tensors)
        return output


def _for_rows(parameter: Parameter, num_rows: int) -> Tensor | None:
    """Values for each row, shape (N, *event)."""
    if parameter is None:
        return None
    if not isinstance(parameter, RandomParameter):
        return parameter.expand(num_rows, *parameter.shape)
    assert parameter.variance is not None
    scale = parameter.variance.clamp_min(torch.finfo(parameter.variance.dtype).tiny).sqrt()
    noise = torch.randn(num_rows, *parameter.loc.shape, dtype=scale.dtype, device=scale.device)
    return parameter.loc + scale * noise
