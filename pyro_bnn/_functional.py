"""Run a module with given tensors in the place of its own parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def parameter_to_buffer(net: nn.Module, path: str) -> None:
    """Turn one parameter into a buffer, which is no longer learnable but follows the module to its device."""
    owner, attribute = _owner(net, path)
    value = owner._parameters.pop(attribute)
    assert value is not None
    owner.register_buffer(attribute, value.detach())


def _owner(net: nn.Module, path: str) -> tuple[nn.Module, str]:
    prefix, _, attribute = path.rpartition(".")
    return net.get_submodule(prefix), attribute


def refresh_recurrent_weights(net: nn.Module) -> None:
    """Make LSTM, GRU and RNN layers look their weights up at each call: they keep a list that swapping would miss."""
    for layer in net.modules():
        if isinstance(layer, nn.RNNBase):
            layer.register_forward_pre_hook(_refresh)


def _refresh(layer: nn.Module, _: object) -> None:
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]  # type: ignore


@contextmanager
def _swapped(net: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Put tensors in the place of buffers, by path, and put the buffers back."""
    owners = [_owner(net, path) for path in tensors]
    originals = [owner._buffers[attribute] for owner, attribute in owners]
    try:
        for (owner, attribute), value in zip(owners, tensors.values(), strict=True):
            owner._buffers[attribute] = value
        yield
    finally:
        for (owner, attribute), original in zip(owners, originals, strict=True):
            owner._buffers[attribute] = original


def call(net: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The output of `net` with `tensors` (by path) swapped in; `torch.func.functional_call`, but traceable."""
    try:
        with _swapped(net, tensors):
            output = net(x)
    except RuntimeError as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise ValueError(
            f"the network cannot take `x` of shape {tuple(x.shape)} and {x.dtype}{_expected(net)}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the network must return one tensor, got {type(output).__name__}; wrap it in a module that does."
        )
    return output


def call_batched(net: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One output per draw; tensors have shape `(*draws, *parameter)` or just that of the parameter."""
    batched = {path: value for path, value in tensors.items() if value.dim() > net.get_buffer(path).dim()}
    leads = [value.shape[: value.dim() - net.get_buffer(path).dim()] for path, value in batched.items()]
    lead = torch.broadcast_shapes(*leads)
    flat = {p: v.expand(lead + net.get_buffer(p).shape).flatten(0, len(lead) - 1) for p, v in batched.items()}
    outputs = [call(net, {**tensors, **{path: v[i] for path, v in flat.items()}}, x) for i in range(lead.numel())]
    return torch.stack(outputs).unflatten(0, lead)


def _expected(net: nn.Module) -> str:
    for name, layer in net.named_modules():
        features = getattr(layer, "in_features", getattr(layer, "in_channels", None))
        if features is not None:
            kind = "features" if hasattr(layer, "in_features") else "channels"
            return f" (its first layer, {type(layer).__name__} `{name}`, takes {features} {kind})"
    return ""
