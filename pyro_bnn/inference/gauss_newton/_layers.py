"""The inputs and the gradients of linear and convolutional layers, from which curvature is computed."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._core.inputs import Inputs, num_rows, take
from ..last_layer import owners, watched

KNOWN_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers whose gradients have explicit formulas. The formulas do not hold for a subclass with its own forward pass."""

NUM_TRIED = 16
"""Number of rows on which gradients from formulas are compared with those from autograd."""

TOLERANCE = 1e-3
"""Largest difference between gradients from formulas and from autograd, relative to the largest gradient."""


def has_formula(layer: nn.Module) -> bool:
    r"""Return whether each row's gradient with respect to the layer's weight is a sum of outer products.

    .. math:: \nabla_W = \sum_t g_t a_t^\top, \qquad \nabla_b = \sum_t g_t.

    The sums are over the positions t of :func:`inputs_at` and :func:`slopes_at`.
    """
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def inputs_at(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the vectors, shape (N, T, D), that a layer with the input x multiplies by its weights at T positions."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        sizes = [layer.kernel_size, layer.dilation, layer.padding, layer.stride]
        if isinstance(layer, nn.Conv1d):  # a convolution of images of height 1
            x = x.unsqueeze(2)
            sizes = [(neutral, *size) for neutral, size in zip((1, 1, 0, 1), sizes, strict=True)]
        return functional.unfold(x, *sizes).mT  # type: ignore[arg-type]
    return x.reshape(len(x), -1, x.shape[-1])


def slopes_at(layer: nn.Module, slope: Tensor) -> Tensor:
    """Reshape a gradient with respect to the output of a layer to (N, T, O), with N and T as in :func:`inputs_at`."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return slope.flatten(2).mT
    return slope.reshape(len(slope), -1, slope.shape[-1])


def acts_by_layers(net: nn.Module, x: Inputs) -> bool:
    """Return whether, on 16 rows, the formulas of standard layers give the same gradients as autograd.

    They differ if a layer has its own forward pass, or if a weight is also used elsewhere.
    """
    parameters = [p for p in net.parameters() if p.requires_grad]
    if not all(isinstance(layer, KNOWN_LAYERS) for layer in owners(net)):
        return False
    with torch.enable_grad():
        output, calls = watched(net, take(x, slice(min(NUM_TRIED, num_rows(x)))))
        along = torch.linspace(1, 2, output.numel()).to(output).view(output.shape)
        expected = torch.autograd.grad(output, parameters, along, retain_graph=True, materialize_grads=True)
        pairs = [(layer, single) for layer, some in calls.items() for single in some]
        slopes = torch.autograd.grad(output, [o for _, (_, o) in pairs], along, materialize_grads=True)
        found = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
        for (layer, (taken, _)), slope in zip(pairs, slopes, strict=True):
            kind = next(kind for kind in KNOWN_LAYERS if isinstance(layer, kind))
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            given = kind.forward(layer, taken)  # type: ignore[arg-type]
            if given.shape != slope.shape:
                return False
            for parameter, part in zip(own, torch.autograd.grad(given, own, slope), strict=True):
                found[id(parameter)] += part
    pairs_of = zip(expected, found.values(), strict=True)
    return all(bool((a - b).abs().max() <= TOLERANCE * a.abs().max()) for a, b in pairs_of)
