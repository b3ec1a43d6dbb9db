"""The diagonal of a Gauss-Newton matrix, layer by layer."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._core.inputs import Inputs, call, num_rows, take

KNOWN = (nn.Linear, nn.Conv2d)
"""Layers whose weights are known to act by the forward pass of their class, unless a subclass has another one."""

NUM_TRIED = 16
"""Rows on which the gradients of layers are compared with autograd's."""

TOLERANCE = 1e-3
"""Largest difference of the two, relative to the largest gradient: rounding is far below in single precision too."""

Call = tuple[Tensor, Tensor]
"""Input and output of a layer."""


def diagonal_by_layer(net: nn.Module, x: Inputs, root: Tensor) -> Tensor | None:
    r"""The diagonal in the parameters that need gradients; None if some are of other layers than those named below.

    With the curvature :math:`L L^\top` in the outputs, it is the sum over rows n and columns r of the squares of
    :math:`J_n^\top L_{n \cdot r}`: the gradients of single rows, of which one pass backwards for each column gives what
    they need. The layers are linear ones of inputs (N, D), and two-dimensional convolutions.

    Args:
        net: The network, for which :func:`acts_by_layers` holds.
        x: Inputs of N rows.
        root: L, shape (N, C, R).

    References:
        Dangel, Kunstner and Hennig (2020), BackPACK, https://arxiv.org/abs/1912.10985.
    """
    parameters = [p for p in net.parameters() if p.requires_grad]
    output, calls = _watched(net, x)
    if not all(len(some) == 1 and _is_known(layer, some[0][0]) for layer, some in calls.items()):
        return None
    sums = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
    for column in root.unbind(-1):
        slopes = torch.autograd.grad(output, [some[0][1] for some in calls.values()], column, retain_graph=True)
        for (layer, some), slope in zip(calls.items(), slopes, strict=True):
            _add_squares(layer, some[0][0], slope, sums)
    return torch.cat([sums[id(parameter)].flatten() for parameter in parameters]).detach()


def acts_by_layers(net: nn.Module, x: Inputs) -> bool:
    """Whether parameters that need gradients act only through linear and convolutional layers, as these act by default.

    It is tried out on some rows: there, the gradients of the layers must be those of the whole network. A layer with a
    forward pass of its own, or a weight that is also used elsewhere, has others.

    Args:
        net: The network, in eval mode.
        x: Inputs of N rows.
    """
    parameters = [p for p in net.parameters() if p.requires_grad]
    if not all(isinstance(layer, KNOWN) for layer in _layers(net)):
        return False
    with torch.enable_grad():
        output, calls = _watched(net, take(x, slice(min(NUM_TRIED, num_rows(x)))))
        along = torch.linspace(1, 2, output.numel()).to(output).view(output.shape)
        expected = torch.autograd.grad(output, parameters, along, retain_graph=True, materialize_grads=True)
        pairs = [(layer, single) for layer, some in calls.items() for single in some]
        slopes = torch.autograd.grad(output, [o for _, (_, o) in pairs], along, materialize_grads=True)
        found = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
        for (layer, (taken, _)), slope in zip(pairs, slopes, strict=True):
            forward = nn.Linear.forward if isinstance(layer, nn.Linear) else nn.Conv2d.forward
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            given = forward(layer, taken)  # type: ignore[arg-type]
            if given.shape != slope.shape:
                return False
            for parameter, part in zip(own, torch.autograd.grad(given, own, slope), strict=True):
                found[id(parameter)] += part
    pairs_of = zip(expected, found.values(), strict=True)
    return all(bool((a - b).abs().max() <= TOLERANCE * a.abs().max()) for a, b in pairs_of)


def _layers(net: nn.Module) -> list[nn.Module]:
    """The modules that have parameters that need gradients."""
    return [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


def _watched(net: nn.Module, x: Inputs) -> tuple[Tensor, dict[nn.Module, list[Call]]]:
    """The output of a network, and the calls of its layers with parameters that need gradients.

    What follows gets copies of the outputs, which it may change in place.
    """
    calls: dict[nn.Module, list[Call]] = {layer: [] for layer in _layers(net)}

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls[module].append((inputs[0].detach().clone(), output))
        return output.clone()

    with ExitStack() as stack, torch.enable_grad():
        for layer in calls:
            stack.callback(layer.register_forward_hook(watch).remove)
        output = call(net, x)
    assert isinstance(output, Tensor)
    return output, calls


def _is_known(layer: nn.Module, x: Tensor) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear and x.dim() == 2


def _add_squares(layer: nn.Module, x: Tensor, slope: Tensor, sums: dict[int, Tensor]) -> None:
    """Add the squares of the gradients of all rows, given those in the layer's outputs."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        patches = functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (N, D, L)
        flat = slope.flatten(2)
        squares, of_bias = (flat @ patches.mT).square().sum(0), flat.sum(-1)
    else:
        squares, of_bias = slope.square().mT @ x.square(), slope
    if weight.requires_grad:
        sums[id(weight)] += squares.view(weight.shape)
    if isinstance(bias, Tensor) and bias.requires_grad:
        sums[id(bias)] += of_bias.square().sum(0)
