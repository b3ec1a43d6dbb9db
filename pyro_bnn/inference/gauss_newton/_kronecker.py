"""Kronecker factors of Gauss-Newton matrices."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..._core.inputs import Inputs, Pair, has_shared
from ...modelling.likelihoods import Likelihood
from ..last_layer import owners, watched
from ._gaussian import CurvatureAlongAxes, kronecker
from ._matrices import KNOWN_LAYERS, acts_by_layers, has_formula, inputs_at, root_of, slopes_at

REMEDY = 'leave it out with `where`, or use structure="diagonal"'


def kronecker_curvature(net: nn.Module, batches: Iterable[Pair], likelihood: Likelihood) -> CurvatureAlongAxes:
    r"""Return the Kronecker factors of the layers whose parameters need gradients.

    .. math:: G \approx B \otimes A, \qquad B = \sum_{n, t, r} g_{ntr} g_{ntr}^\top, \qquad
              A = \frac{1}{N T} \sum_{n, t} a_{nt} a_{nt}^\top.

    At each of the T positions of a row, a is the vector that the weight matrix multiplies, and g is the gradient in the
    layer's output, for each column r of :func:`root_of`. The matrix of a bias is B. If rows or classes have weights, A
    is the weighted mean. The scale of Gaussian noise is taken to be 1.

    References:
        Martens and Grosse (2015), https://arxiv.org/abs/1503.05671, for linear layers. Eschenhagen et al. (2023),
        https://arxiv.org/abs/2311.00636, for layers with several positions (the setting "expand").
    """
    _require_layers(net)
    layers = owners(net)
    of_inputs: dict[nn.Module, Tensor] = {}
    of_outputs: dict[nn.Module, Tensor] = {}
    total = 0.0
    for x, y in batches:
        if not of_inputs:
            _require_standard(net, x)
        output, calls = watched(net, x)
        weights = likelihood.fit_weights(y, output.dtype)
        of_rows = output.new_ones(len(output)) if weights is None else weights.reshape(len(output), -1).mean(1)
        total += float(of_rows.sum())
        for layer in layers:
            inputs = torch.cat([inputs_at(layer, taken) for taken, _ in calls[layer]], 1)
            _add(of_inputs, layer, inputs * (of_rows / inputs.shape[1]).sqrt()[:, None, None])
        for column in root_of(likelihood, output.detach(), y).unbind(-1):
            outputs = [of_call for layer in layers for _, of_call in calls[layer]]
            slopes = iter(torch.autograd.grad(output, outputs, column, retain_graph=True))
            for layer in layers:
                _add(of_outputs, layer, torch.cat([slopes_at(layer, next(slopes)) for _ in calls[layer]], 1))
    means = {layer: products / total for layer, products in of_inputs.items()}
    return kronecker([*_factors(layers, means, of_outputs)])


def _add(sums: dict[nn.Module, Tensor], layer: nn.Module, vectors: Tensor) -> None:
    """Add the sum of v v^T over all vectors v, shape (N, T, D), to the matrix of a layer, in double precision."""
    flat = vectors.flatten(0, 1)
    products = (flat.mT @ flat).double()
    sums[layer] = sums[layer] + products if layer in sums else products


def _factors(
    layers: list[nn.Module], of_inputs: dict[nn.Module, Tensor], of_outputs: dict[nn.Module, Tensor]
) -> Iterator[list[Tensor]]:
    """Yield the one or two Kronecker factors of each parameter, in the order of the network's parameters."""
    for layer in layers:
        for name, _ in layer.named_parameters(recurse=False):
            yield [of_outputs[layer], of_inputs[layer]] if name == "weight" else [of_outputs[layer]]


def _require_standard(net: nn.Module, x: Inputs) -> None:
    """Raise if rows of a layer may not be rows of the data, or if a layer does not compute what its class defines."""
    if has_shared(x):
        raise ValueError(
            "Kronecker factors need layers with one row for each row of the data, but a shared input may have other "
            'rows, such as the nodes of a graph; make only the last layer random, or use structure="diagonal".'
        )
    if not acts_by_layers(net, x):
        raise ValueError(
            "Kronecker factors need standard layers, but the gradients of the layers differ from those of the "
            f"network: a layer has its own forward pass, or a weight is also used elsewhere; {REMEDY}."
        )


def _require_layers(net: nn.Module) -> None:
    """Raise unless all random weights belong to whole layers with a formula, which share no parameter."""
    seen: set[int] = set()
    for name, module in net.named_modules():
        own = list(module.parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own):
            continue
        is_whole = all(parameter.requires_grad for parameter in own) and seen.isdisjoint(map(id, own))
        kind = type(module).__name__
        if not isinstance(module, KNOWN_LAYERS) or not is_whole:
            owner = f"{kind} `{name}`" if name else f"the network itself ({kind})"
            raise ValueError(
                "Kronecker factors need linear, or one- or two-dimensional convolutional layers whose weight and bias "
                f"are both random and shared with no other layer, but {owner} is no such layer; leave it out, as with "
                '`where=layers(nn.Linear, nn.Conv2d)`, or use structure="diagonal".'
            )
        if not has_formula(module):
            raise ValueError(
                "Kronecker factors need convolutions without groups, padded by a number of zeros, but "
                f"{kind} `{name}` has {module}; {REMEDY}."
            )
        seen |= set(map(id, own))
