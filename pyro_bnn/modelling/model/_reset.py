"""New initial weights for the network of a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..._core.summary import few
from ._model import BayesianModel, random_paths
from ._selection import SITE_PREFIX

METHODS = ("reset_parameters", "_reset_parameters")  # draw a layer's weights; `nn.MultiheadAttention` has the second


def reset_network(model: BayesianModel, reset: Callable[[nn.Module], object] | None = None) -> None:
    """Give the network of a model new initial weights, in place, by `reset` or the layers' own `reset_parameters`.

    Frozen parameters keep their values, and so do buffers of layers without weights to learn.
    """
    network, random = model.network, random_paths(model)
    learned = {path for path, parameter in network.named_parameters() if parameter.requires_grad} | random
    with _as_parameters(network, random), torch.no_grad():
        before = {path: value.clone() for path, value in network.named_parameters(remove_duplicate=False)}
        if reset is None:
            _reset_layers(network, learned)
        else:
            reset(network)
        after = dict(network.named_parameters(remove_duplicate=False))
        for path in before.keys() - learned:
            after[path].copy_(before[path])
        if reset is not None and all(torch.equal(before[path], after[path]) for path in before):
            raise ValueError(
                "`reset` must give the network new initial weights in place, so that the members of an ensemble "
                "differ, but it changed none of the weights."
            )


def _reset_layers(network: nn.Module, learned: set[str]) -> None:
    """Reset each layer that owns weights to learn, inner layers first."""
    owners = {path.rpartition(".")[0] for path in learned}
    methods = []
    for path, layer in reversed(list(network.named_modules())):
        if path not in owners:
            continue
        method = next((getattr(layer, name) for name in METHODS if callable(getattr(layer, name, None))), None)
        if method is None:
            name = f"{SITE_PREFIX}.{path}".rstrip(".")
            raise ValueError(
                f"each member of an ensemble needs new initial weights, but the layer `{name}` of class "
                f"{type(layer).__name__} has no method `reset_parameters`, which draws them; add this method, or pass "
                "`reset=`, a function that gives a network new weights in place."
            )
        methods.append(method)
    parameters = {path: value for path, value in network.named_parameters(remove_duplicate=False) if path in learned}
    for parameter in parameters.values():
        parameter.fill_(torch.nan)  # to see which the methods set
    for method in methods:
        method()
    left = [path for path in parameters if bool(network.get_parameter(path).isnan().any())]
    if left:
        raise ValueError(
            f"each member of an ensemble needs new initial weights, but the method `reset_parameters` of the layers "
            f"does not set {few(f'`{SITE_PREFIX}.{path}`' for path in left)}; pass `reset=`, a function that gives a "
            "network new weights in place."
        )


@contextmanager
def _as_parameters(network: nn.Module, random: set[str]) -> Iterator[None]:
    """In a ``with`` block, turn random weights from buffers into parameters, as methods of some layers expect."""
    buffers: list[tuple[nn.Module, str, Tensor]] = []
    for path in random:
        prefix, _, name = path.rpartition(".")
        owner = network.get_submodule(prefix)
        value = owner._buffers[name]
        if value is not None:  # None if the module has two names, and was found under the other one
            owner._buffers[name] = None  # keeps its place in the order of the buffers
            owner._parameters[name] = nn.Parameter(value)  # in the same memory, so tied weights stay tied
            buffers.append((owner, name, value))
    try:
        yield
    finally:
        for owner, name, value in buffers:
            parameter = owner._parameters.pop(name)
            if parameter is not None and parameter.data_ptr() != value.data_ptr():
                value.copy_(parameter.detach())
            owner._buffers[name] = value
