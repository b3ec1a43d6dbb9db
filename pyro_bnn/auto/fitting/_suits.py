"""Decides whether the gradient estimator that suits most networks for tables can be used."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ..._core.inputs import as_inputs
from ...inference.guides import MeanFieldGuide
from ...inference.scale_maps import Precision
from ...inference.svi import Data
from ...modelling.model import BayesianModel
from ...nets import Standardize

TABLE = 2
"""Number of axes of a table of inputs."""


def suits_local_reparameterization(model: BayesianModel, guide: nn.Module, data: Data) -> bool:
    """Whether every random layer is linear and its input is a table: one row of inputs for each row of data.

    This holds for a sequence of layers of which only linear ones have parameters, if the data are a table or if a
    `Flatten` comes before the first linear layer.
    """
    if not isinstance(guide, MeanFieldGuide) or isinstance(guide.scale_map, Precision):
        return False  # precisions are for natural gradients, which need weight draws
    layers = list(_layers(model.network))
    # Modules that only normalise inputs do not count, and weights may have become buffers.
    with_tensors = [layer for layer in layers if not isinstance(layer, Standardize) and layer.state_dict()]
    if any(isinstance(layer, nn.Unflatten) for layer in layers) or not _are_linear(with_tensors):
        return False
    before = itertools.takewhile(lambda layer: not isinstance(layer, nn.Linear), layers)
    return any(type(layer) is nn.Flatten for layer in before) or _is_table(model, data)


def _are_linear(layers: list[nn.Module]) -> bool:
    return all(isinstance(layer, nn.Linear) for layer in layers)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested sequences, in order; any other module is one layer."""
    if type(network) is nn.Sequential:
        for layer in network:
            yield from _layers(layer)
    else:
        yield network


def _is_table(model: BayesianModel, data: Any) -> bool:
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    x = as_inputs("x", data[0], model.like)
    return isinstance(x, Tensor) and x.dim() == TABLE
