"""The model's own copy of a network, into which drawn weights can be put."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..._core import checks as _checks
from ..._core.copies import copied as copy_of

MODULE_TABLES = ("_parameters", "_modules", "_buffers")  # attributes in which a module keeps its registered parts


def private_copy(net: nn.Module) -> nn.Module:
    """Copy a network, with the original modules in place of compiled ones."""
    _require_network(net)
    for name, module in net.named_modules():
        _require_plain(f"net.{name}".rstrip("."), module)
    _require_reachable(net)
    for name, parameter in [*net.named_parameters(), *net.named_buffers()]:
        _require_values(name, parameter)
    copied = _uncompiled(copy_of(net))
    for module in list(copied.modules()):
        for name, child in module.named_children():
            module.add_module(name, _uncompiled(child))
        _make_constants(module)
    return copied


def _make_constants(module: nn.Module) -> None:
    """Turn integer and empty parameters into buffers, since no fit could change them."""
    for name, value in list(module.named_parameters(recurse=False, remove_duplicate=False)):
        if not (value.is_floating_point() or value.is_complex()) or value.numel() == 0:
            delattr(module, name)
            module.register_buffer(name, value.detach())


def _uncompiled(module: nn.Module) -> nn.Module:
    while type(module).__name__ == "OptimizedModule":  # importing its class takes a second
        module = module.get_submodule("_orig_mod")
    return module


def _require_network(net: object) -> None:
    lacks = remedy = ""
    if isinstance(net, nn.Module):
        if getattr(net.forward, "__func__", None) is not nn.Module.forward:
            return
        lacks = ", which has no `forward`"
    if isinstance(net, type):
        remedy = f"; pass an instance, {net.__name__}(...)"
    elif isinstance(net, (list, tuple, nn.ModuleList)):
        remedy = "; join its layers by `nn.Sequential(*layers)`"
    elif callable(net):
        remedy = "; call it in the `forward` of a module"
    raise ValueError(f"`net` must be a torch.nn.Module, got {_checks.described(net)}{lacks}{remedy}.")


def _require_plain(name: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"`{name}` must be a plain module, got a scripted or traced one, into which no drawn weights can be put; "
            "pass the module from which it was made."
        )
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise ValueError(
            f"`{name}` must be a plain module, got {type(module).__name__}, which synchronises only parameters of its "
            "own; pass the module inside, `net.module`."
        )


def _require_reachable(net: nn.Module) -> None:
    """Raise if a parameter is in a Python container, where no draw could replace it."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for path, module in net.named_modules():
        for attribute, value in vars(module).items():
            if attribute in MODULE_TABLES or (isinstance(module, nn.RNNBase) and attribute == "_flat_weights"):
                continue  # `refresh_recurrent_weights` updates this list
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            found = [names[id(part)] for part in parts if id(part) in names]
            if found:
                raise ValueError(
                    f"`{'.'.join(filter(None, ('net', path, attribute)))}` is a {type(value).__name__} with the "
                    f"parameter `{found[0]}`, which would not get the drawn weights; use a `ParameterList` or "
                    "`ParameterDict`, or reach the parameter through its layer."
                )


def _require_values(name: str, value: Tensor) -> None:
    if isinstance(value, (UninitializedParameter, UninitializedBuffer)):
        raise ValueError(f"`net` must have weights, but `{name}` has no shape yet; run `net` once on an example batch.")
    if value.is_meta:
        raise ValueError(f"`net` must have weights, but `{name}` is on the device meta; call `to_empty(device=...)`.")
    if not value.is_floating_point():
        return
    is_weight = isinstance(value, nn.Parameter)  # a buffer may be a mask with minus infinity
    if bool(value.isnan().any()) or (is_weight and bool(value.isinf().any())):
        raise ValueError(
            f"`net` must have finite weights, got NaN or infinity in `{name}`; load or initialise it again."
        )


def rest_frozen(net: nn.Module, random: Collection[str]) -> None:
    """Put each module whose parameters are all frozen, and not in `random`, into eval mode, without dropout."""
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        parameters = list(module.parameters())
        is_learned = any(parameter.requires_grad for parameter in parameters)
        if parameters and not is_learned and not any(path.startswith(prefix) for path in random):
            module.eval()
