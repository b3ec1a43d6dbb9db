"""The diagonal of a Gauss-Newton matrix, layer by layer."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import functional


def diagonal_by_layer(net: nn.Module, x: Tensor, roots: Callable[[Tensor], Tensor]) -> Tensor | None:
    r"""The diagonal in the parameters that need gradients; None if some are of other layers than those named below.

    With the curvature :math:`L L^\top` in the outputs, it is the sum over rows n and columns c of the squares of
    :math:`J_n^\top L_{n \cdot c}`: the gradients of single rows, of which one pass backwards for each column gives what
    they need. The layers are linear ones of inputs (N, D), and two-dimensional convolutions.

    Args:
        net: The network.
        x: Inputs, shape (N, ...).
        roots: Function from outputs of shape (N, C) to L, shape (N, C, C).

    References:
        Dangel, Kunstner and Hennig (2020), BackPACK, https://arxiv.org/abs/1912.10985.
    """
    layers = [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    parameters = [p for p in net.parameters() if p.requires_grad]
    if sum(p.requires_grad for layer in layers for p in layer.parameters(recurse=False)) != len(parameters):
        return None  # tied weights
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}
    with ExitStack() as stack, torch.enable_grad():
        for layer in layers:
            handle = layer.register_forward_hook(lambda module, i, o: calls[module].append((i[0].detach(), o)))
            stack.callback(handle.remove)
        output = net(x)
    if not all(len(call) == 1 and _is_known(layer, call[0][0]) for layer, call in calls.items()):
        return None
    of_outputs = roots(output.detach())
    sums = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
    for column in range(of_outputs.shape[-1]):
        slopes = torch.autograd.grad(
            output, [calls[layer][0][1] for layer in layers], of_outputs[..., column], retain_graph=True
        )
        for layer, slope in zip(layers, slopes, strict=True):
            _add_squares(layer, calls[layer][0][0], slope, sums)
    return torch.cat([sums[id(parameter)].flatten() for parameter in parameters])


def _is_known(layer: nn.Module, x: Tensor) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear) and x.dim() == 2


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
