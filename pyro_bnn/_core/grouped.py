"""Small convolutional networks, run for several draws at once by grouped convolutions.

The channels of all draws lie side by side in memory, so that a CPU computes many of them at once.
"""

from collections.abc import Collection, Iterator, Mapping

from torch import Tensor, nn

from .functional import ELEMENTWISE, is_link, is_random, linear
from .inputs import Inputs, leaves

POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)

# Heuristic: with 8 and 16 output channels, a step for five draws takes 3.6 times that for one; with 32 and 64, 5.9.
NARROW = 16


def can_be_grouped(net: nn.Module, random: Collection[str]) -> bool:
    """Return whether :func:`grouped` can run this network. `random` has the paths of all parameters with draws.

    The layers before the first one with draws may be of any kind. The others must be narrow convolutions, pooling and
    elementwise layers, then `nn.Flatten`, then linear and elementwise layers.
    """
    links = _cut(net, random)[1] if type(net) is nn.Sequential else []
    flat = next((index for index, (_, layer) in enumerate(links) if _flattens_all(layer)), 0)
    return (
        any(type(layer) is nn.Conv2d for _, layer in links[:flat])
        and all(_is_before(*link, random) for link in links[:flat])
        and all(is_link(*link, random) for link in links[flat + 1 :])
    )


def grouped(net: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Run a network for K draws, ``{path: (K, ...)}``, and return an output of shape (K, N, ...)."""
    start, links = _cut(net, tensors)
    (value,), num_draws = leaves(x), len(next(iter(tensors.values())))
    for layer in start:
        value = layer(value)
    value = value.permute(0, 2, 3, 1).repeat(1, 1, 1, num_draws).permute(0, 3, 1, 2)  # (N, K * channels, ...)
    for name, layer in links:
        if type(layer) is nn.Conv2d:
            weight, bias = tensors[f"{name}.weight"].flatten(0, 1), tensors.get(f"{name}.bias")
            bias = None if bias is None else bias.flatten()
            groups = num_draws * layer.groups
            value = nn.functional.conv2d(value, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
        elif type(layer) is nn.Flatten:
            value = value.unflatten(1, (num_draws, -1)).flatten(2).transpose(0, 1)  # (K, N, features)
        else:
            value = linear(value, tensors, name) if type(layer) is nn.Linear else layer(value)
    return value


def _is_before(name: str, layer: nn.Module, random: Collection[str]) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and layer.out_channels <= NARROW and is_random(name, layer, random)
    return isinstance(layer, POOLS) or type(layer) in ELEMENTWISE


def _flattens_all(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1


def _cut(net: nn.Module, random: Collection[str]) -> tuple[list[nn.Module], list[tuple[str, nn.Module]]]:
    """Return the layers before the first one with draws, and the others with their paths."""
    layers = [*_layers(net)]
    owners = {path.rpartition(".")[0] for path in random}
    first = next((index for index, (name, _) in enumerate(layers) if name in owners), len(layers))
    return [layer for _, layer in layers[:first]], layers[first:]


def _layers(net: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the path and layer of each position in nested `nn.Sequential` modules. A layer may occur several times."""
    for name, layer in net._modules.items():
        if type(layer) is nn.Sequential:
            yield from _layers(layer, f"{prefix}{name}.")
        elif layer is not None:
            yield prefix + name, layer
