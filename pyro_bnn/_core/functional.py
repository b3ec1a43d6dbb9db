"""Calls of a module with given tensors in place of its parameters."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .inputs import Inputs, leaves, shapes
from .inputs import call as call_network
from .scope import EXCLUSIVE, filtered_warnings


def parameter_to_buffer(net: nn.Module, path: str) -> None:
    """Turn a parameter into a buffer, which moves with the module but is not changed by optimizers."""
    owner, attribute = _owner(net, path)
    value = owner._parameters.pop(attribute, None)
    if value is not None:  # None if already done: a module may have several names
        if value.is_complex():
            raise ValueError(
                f"random weights must be real, got `{path}` of {value.dtype}; leave it out of `where`, or make it of "
                "two real parameters, as with `torch.complex(self.real, self.imag)`."
            )
        owner.register_buffer(attribute, value.detach())


def buffer_to_parameter(net: nn.Module, path: str, parameter: nn.Parameter) -> None:
    """Replace a buffer by a parameter, which may have another shape."""
    owner, attribute = _owner(net, path)
    owner._buffers.pop(attribute, None)  # None if already done: a module may have several names
    owner.register_parameter(attribute, parameter)


def _owner(net: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that owns a parameter, and the parameter's name in it. `get_submodule` would be slower."""
    *prefix, attribute = path.split(".")
    owner: nn.Module | None = net
    for part in prefix:
        owner = None if owner is None else owner._modules[part]
    assert owner is not None
    return owner, attribute


def _present(net: nn.Module, path: str) -> Tensor:
    owner, attribute = _owner(net, path)
    value = owner._buffers.get(attribute)
    value = owner._parameters[attribute] if value is None else value
    assert value is not None
    return value


def present_values(net: nn.Module, paths: Iterable[str]) -> dict[str, Tensor]:
    """Return the current values of parameters. Within :func:`swapped`, these are the tensors that were swapped in."""
    owners = {path: _owner(net, path) for path in paths}
    return {path: getattr(owner, attribute) for path, (owner, attribute) in owners.items()}


def num_axes(net: nn.Module, path: str) -> int:
    return _present(net, path).dim()


def num_lead_axes(net: nn.Module, tensors: Mapping[str, Tensor]) -> int:
    """Return the largest number of draw axes of a tensor. These axes lie in front of the parameter's own axes."""
    return max(value.dim() - num_axes(net, path) for path, value in tensors.items())


EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def prepare_embedding(net: nn.Module, path: str, name: str) -> None:
    """Turn off an embedding's sparse gradients. Raise if an option of the layer changes drawn weights or gradients."""
    layer, attribute = _owner(net, path)
    if not isinstance(layer, EMBEDDINGS) or attribute != "weight":
        return
    remedy = f"make the layer without it, or leave `{name}` out of `where`"
    if layer.max_norm is not None:
        raise ValueError(
            f"`{name}` is random and its layer must not change it, but {type(layer).__name__} has `max_norm="
            f"{layer.max_norm}`, which changes the drawn weights in place; {remedy}."
        )
    if layer.scale_grad_by_freq:
        raise ValueError(
            f"`{name}` is random and needs the true gradient of the likelihood, but {type(layer).__name__} has "
            f"`scale_grad_by_freq=True`, which scales it; {remedy}."
        )
    layer.sparse = False


def as_used(net: nn.Module, path: str, value: Tensor) -> Tensor:
    """Return `value`, but with the layer's own values in the padding row of an embedding."""
    return _with_padding(*_owner(net, path), value)


def _with_padding(layer: nn.Module, attribute: str, value: Tensor) -> Tensor:
    if not isinstance(layer, EMBEDDINGS) or attribute != "weight" or layer.padding_idx is None:
        return value
    original = layer.get_buffer(attribute)
    rows = torch.arange(len(original), device=original.device).unsqueeze(-1)
    return torch.where(rows == layer.padding_idx, original, value)


def refresh_recurrent_weights(net: nn.Module) -> None:
    """Make recurrent layers look up their weights at each call; otherwise torch uses a list made before the draw."""
    for layer in net.modules():
        if isinstance(layer, nn.RNNBase):
            layer.register_forward_pre_hook(_refresh)


def _refresh(layer: nn.Module, _: object) -> None:
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]  # type: ignore[assignment, union-attr]


def has_hooks_of_others(layer: nn.Module) -> bool:
    """Return whether a module has hooks, apart from that of :func:`refresh_recurrent_weights`."""
    kinds = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hook is not _refresh for hooks in kinds for hook in hooks.values())


@contextmanager
def swapped(net: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Use the given tensors as parameters and buffers inside a `with` block."""
    owners = [_owner(net, path) for path in tensors]
    with EXCLUSIVE:  # threads may share the network
        used = [_with_padding(*owner, value) for owner, value in zip(owners, tensors.values(), strict=True)]
        slots: list[tuple[dict[str, Any], str]] = [(owner._parameters, attribute) for owner, attribute in owners]
        originals = [table.get(attribute) for table, attribute in slots]
        try:
            for (table, attribute), value in zip(slots, used, strict=True):
                table[attribute] = value
            yield
        finally:
            for (table, attribute), original in zip(slots, originals, strict=True):
                if original is not None:
                    table[attribute] = original
                else:
                    table.pop(attribute, None)  # None if already done: a module may have several names


NO_COLUMNS = "the axis of columns is missing, so pass `x[:, None]`"  # advice for inputs of shape (N,)
ONE_ROW = "Expected more than 1 value per channel"  # begins torch's message about batch normalisation in train mode


def call(net: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Return ``net(x)`` with the given tensors, ``{path: tensor}``, as parameters."""
    try:
        with swapped(net, tensors):
            output = call_network(net, x)
    except (RuntimeError, IndexError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        dtypes = ", ".join(dict.fromkeys(str(leaf.dtype) for leaf in leaves(x)))
        problem = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"the network cannot take `x` of shape {shapes(x)} and {dtypes}{_expected(net)}: {problem}; "
            f"{_remedy(error, net, tensors, x)}."
        ) from error
    except ValueError as error:
        if not str(error).startswith(ONE_ROW):
            raise
        raise ValueError(
            f"batch normalisation in train mode needs at least two rows in a batch, got `x` of shape {shapes(x)}; "
            "leave out the last batch (`drop_last=True`), or put the network into eval mode."
        ) from error
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the network must return one tensor, got {type(output).__name__}; wrap it in a module that returns one, "
            "or use a network whose output has `logits`."
        )
    return output


def _remedy(error: Exception, net: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> str:
    if "type" in str(error) and not any(leaf.is_floating_point() for leaf in leaves(x)):
        return "give floats (1.0 instead of 1, or `x.float()`); whole numbers stay whole, since embeddings need them"
    is_of_shape = any(word in str(error) for word in ("shape", "size", "dim"))
    if is_of_shape and isinstance(x, Tensor) and not net.training:  # in train mode a call may change the network
        columns = [(x[:, None], NO_COLUMNS)] if x.dim() == 1 else []
        for whole, remedy in [(x[None], "the axis of rows is missing, so pass `x[None]` for a single row"), *columns]:
            with suppress(Exception), torch.no_grad(), swapped(net, tensors):
                call_network(net, whole)
                return remedy
    return "give `x` the shape and type that the first layer takes"


def call_batched(net: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Return the outputs for all draws, ``(*draws, N, ...)``. Tensors without draw axes serve all draws."""
    batched = {path: value for path, value in tensors.items() if value.dim() > num_axes(net, path)}
    leads = [value.shape[: value.dim() - num_axes(net, path)] for path, value in batched.items()]
    lead = torch.broadcast_shapes(*leads)
    flat = {p: v.expand(lead + _present(net, p).shape).flatten(0, len(lead) - 1) for p, v in batched.items()}
    return _loop(net, set(flat), {**tensors, **flat}, x).unflatten(0, lead)


def _loop(net: nn.Module, batched: set[str], tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    num_draws = next(len(tensors[path]) for path in batched)
    rows = ({path: v[i] if path in batched else v for path, v in tensors.items()} for i in range(num_draws))
    return torch.stack([call(net, row, x) for row in rows])


BatchedNetwork = Callable[[Mapping[str, Tensor], Inputs], Tensor]  # from {path: (K, ...)} and x to (K, N, ...)

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)
"""Layers that have no parameters and accept additional leading axes."""


def batched(net: nn.Module, example: Mapping[str, Tensor], x: Inputs) -> BatchedNetwork:
    """Return a fast function whose results equal those of a loop over the draws; if there is none, return the loop."""
    paths = set(example)
    loop = functools.partial(_loop, net, paths)

    def several(tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
        if len(next(iter(tensors.values()))) == 1:  # for one draw, `vmap` takes 1.6 times as long as the loop
            return loop(tensors, x)
        return vectorised(net, tensors, x)

    candidates = [run for run in (as_chain(net, paths, x), several) if run is not None]
    return next((run for run in candidates if _agree(run, loop, example, x)), loop)


def vectorised(net: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Run the network for K draws by `torch.func.vmap`; see :data:`BatchedNetwork`."""
    with ordinary_attention():
        return torch.func.vmap(lambda row: call(net, row, x))(dict(tensors))


def equals_loop(run: BatchedNetwork, net: nn.Module, example: Mapping[str, Tensor], x: Inputs) -> bool:
    """Return whether `run` and a loop over the draws give the same outputs and gradients."""
    return _agree(run, functools.partial(_loop, net, {*example}), example, x)


@contextmanager
def ordinary_attention() -> Iterator[None]:
    """In a `with` block, turn off torch's fused attention, which `vmap` does not support."""
    with EXCLUSIVE:  # these settings belong to the process
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


def as_chain(net: nn.Module, random: set[str], x: Inputs) -> BatchedNetwork | None:
    """Return a function that runs a chain of linear and elementwise layers for all draws; None for other networks."""
    if (
        not isinstance(x, Tensor)
        or type(net) is not nn.Sequential
        or any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    ):
        return None
    layers = [(name, layer) for name, layer in net._modules.items() if layer is not None]  # including repeated layers
    first = next((index for index, (_, layer) in enumerate(layers) if type(layer) is nn.Linear), len(layers))
    start, links = [layer for _, layer in layers[:first]], layers[first:]
    is_fixed = not any(path.partition(".")[0] in dict(layers[:first]) for path in random)
    if not (links and is_fixed and all(is_link(name, layer, random) for name, layer in links)):
        return None

    def run(tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        value = x
        for layer in start:
            value = layer(value)
        if value.dim() != 2:
            raise ValueError(f"the linear layers of a chain take values of shape (N, in), got {tuple(value.shape)}.")
        for name, layer in links:
            value = linear(value, tensors, name) if type(layer) is nn.Linear else layer(value)  # (K, N, out)
        return value

    return run


def linear(x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Run a linear layer for K draws. The output has shape (K, N, out) for x of shape (N, in) or (K, N, in)."""
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    if x.dim() == 2:  # the same rows for all draws take one product, with the draws side by side
        joined = nn.functional.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return joined.unflatten(1, weight.shape[:2]).transpose(0, 1)
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def is_link(name: str, layer: nn.Module, random: Collection[str]) -> bool:
    """Return whether a layer is elementwise, or linear with only random parameters."""
    return type(layer) in ELEMENTWISE or (type(layer) is nn.Linear and is_random(name, layer, random))


def is_random(name: str, layer: nn.Linear | nn.Conv2d, random: Collection[str]) -> bool:
    """Return whether all parameters of a layer are random."""
    return f"{name}.weight" in random and (layer.bias is None or f"{name}.bias" in random)


def _agree(first: BatchedNetwork, second: BatchedNetwork, example: Mapping[str, Tensor], x: Inputs) -> bool:
    results = []
    for run in (first, second):
        with torch.enable_grad(), filtered_warnings("error", "There is a performance drop"):  # of a loop in vmap
            given = {path: value.detach().requires_grad_() for path, value in example.items()}
            try:
                output = run(given, x)
                gradients = torch.autograd.grad(output.square().sum(), list(given.values()), allow_unused=True)
            except (RuntimeError, ValueError, NotImplementedError, UserWarning):
                if run is second:
                    raise
                return False
        results.append([output.detach(), *(g for g in gradients if g is not None)])
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(*results, strict=True))


def _expected(net: nn.Module) -> str:
    for name, layer in net.named_modules():
        features = getattr(layer, "in_features", getattr(layer, "in_channels", None))
        if features is not None:
            kind = "feature" if hasattr(layer, "in_features") else "channel"
            plural = "" if features == 1 else "s"
            place = f" `{name}`" if name else ""  # without a name it is the whole network
            return f" (its first layer, {type(layer).__name__}{place}, takes {features} {kind}{plural})"
    return ""
