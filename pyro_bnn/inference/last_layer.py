"""Copies of networks with given weights, and the test for a random linear last layer."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from .._core.copies import copied
from .._core.inputs import Inputs, call
from .._core.scope import without_pyro
from ..modelling.model import BayesianModel


def plain_network(model: BayesianModel, values: Mapping[str, Tensor], random: Collection[str]) -> nn.Module:
    """Copy a model's network in eval mode, with the weights `values`. Shared weights stay shared."""
    weights = model.network_weights(values)
    net = without_pyro(copied(model.network))
    net.requires_grad_(False).eval()
    for site, paths in model.parameter_paths.items():
        shared = nn.Parameter(weights[paths[0]].detach().clone(), requires_grad=site in random)
        for path in paths:
            owner, _, name = path.rpartition(".")
            layer = net.get_submodule(owner)
            delattr(layer, name)
            layer.register_parameter(name, shared)
    return net


def last_layer_of(net: nn.Module, x: Inputs) -> nn.Linear | None:
    """Return the last layer if it is linear and owns exactly the parameters that need gradients."""
    found = owners(net)
    if len(found) != 1 or type(found[0]) is not nn.Linear:
        return None
    layer = found[0]
    if not all(parameter.requires_grad for parameter in layer.parameters()):
        return None
    output, calls = watched(net, x)
    taken = [inputs for inputs, _ in calls[layer]]
    is_last = len(taken) == 1 and taken[0].dim() == 2 and torch.equal(layer(taken[0]), output)
    return layer if is_last else None


def owners(net: nn.Module) -> list[nn.Module]:
    """Return the modules with a trainable parameter of their own, not only in a submodule."""
    return [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


def watched(net: nn.Module, x: Inputs) -> tuple[Tensor, dict[nn.Module, list[tuple[Tensor, Tensor]]]]:
    """Run a network; return its output, and the inputs and outputs of all calls of its :func:`owners`."""
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in owners(net)}

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls[module].append((inputs[0].detach().clone(), output))
        return output.clone()  # the next layer may change its input in place

    with ExitStack() as stack, torch.enable_grad():
        for layer in calls:
            stack.callback(layer.register_forward_hook(watch).remove)
        output = call(net, x)
    assert isinstance(output, Tensor)
    return output, calls
