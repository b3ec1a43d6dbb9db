"""A plain network at one point, whose parameters are the weights that become random."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ..._core.copies import copied
from ..._core.inputs import Inputs, Pair, call
from ..._core.scope import EXCLUSIVE, without_pyro
from ...modelling.model import BayesianModel


def plain_network(model: BayesianModel, values: Mapping[str, Tensor], random: Collection[str]) -> nn.Module:
    """A copy of a model's network in eval mode, with given weights.

    Args:
        model: The model, which stays as it is.
        values: A value of every site of the network.
        random: Sites whose parameters need gradients; no others do.
    """
    weights = model.network_weights(values)
    with EXCLUSIVE:  # another thread's draw may be in the network
        net = without_pyro(copied(model.network))
    net.requires_grad_(False).eval()
    for site, paths in model.parameter_paths.items():
        shared = nn.Parameter(weights[paths[0]].detach().clone(), requires_grad=site in random)  # of tied weights
        for path in paths:
            owner, _, name = path.rpartition(".")
            layer = net.get_submodule(owner)
            delattr(layer, name)
            layer.register_parameter(name, shared)
    return net


def sites_of(net: nn.Module, model: BayesianModel) -> list[str]:
    """The sites of the parameters that need gradients, in the order in which the network has them."""
    sites = {path: site for site, paths in model.parameter_paths.items() for path in paths}
    return [sites[path] for path, parameter in net.named_parameters() if parameter.requires_grad]


MANY_ROWS = 4096
"""Heuristic: rows of a batch of features. Each batch costs a pass over a matrix of up to 36 million numbers."""


class Head:
    """A linear last layer that has all the random weights of a network, apart from the body before it.

    Args:
        net: The network.
        layer: Its last layer.
    """

    def __init__(self, net: nn.Module, layer: nn.Linear) -> None:
        self._net, self.layer = net, layer

    def batches(self, source: Iterable[Pair]) -> Iterator[tuple[Tensor, Tensor]]:
        """What the last layer takes, shape (N, D), with the targets, in large batches."""
        parts: list[tuple[Tensor, Tensor]] = []
        for x, y in source:
            with torch.no_grad():
                taken, _ = _inputs_of(self.layer, self._net, x)
            parts.append((taken[0], y))
            if sum(len(targets) for _, targets in parts) >= MANY_ROWS:
                yield _joined(parts)
                parts = []
        if parts:
            yield _joined(parts)


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    features, targets = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(targets)


def head_of(net: nn.Module, x: Inputs) -> Head | None:
    """The last layer of a network, if it is linear, gives the output, and has all the parameters that need gradients.

    Args:
        net: The network, in eval mode.
        x: Some inputs, for a trial.
    """
    owners = [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    if len(owners) != 1 or type(owners[0]) is not nn.Linear or not owners[0].weight.requires_grad:
        return None
    layer = owners[0]
    if not all(parameter.requires_grad for parameter in layer.parameters()):
        return None
    with torch.no_grad():
        taken, output = _inputs_of(layer, net, x)
        is_last = len(taken) == 1 and taken[0].dim() == 2 and torch.equal(layer(taken[0]), output)
    return Head(net, layer) if is_last else None


def _inputs_of(layer: nn.Module, net: nn.Module, x: Inputs) -> tuple[list[Tensor], Tensor]:
    """What a layer is given in a run of the network, and what the network returns."""
    taken: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        output = call(net, x)
    finally:
        handle.remove()
    assert isinstance(output, Tensor)
    return taken, output
