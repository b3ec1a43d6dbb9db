"""Contexts that change something global and put it back: seeds, train/eval mode, Pyro's parameter store."""

import weakref
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.distributions import constraints


class AbstractPyroModule(type(PyroModule), ABCMeta):  # type: ignore[misc]
    """Metaclass of abstract modules: that of PyroModule is its own, so that `ABC` alone does not mix in."""


@contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Run with torch's generators seeded, then restore them; with `None` just use them as they are."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if _draws_on_cuda(device) else []):
        reseed(seed, device)
        yield


def reseed(seed: int, device: torch.device | None) -> None:
    """Seed the generators that work on a device draws from, and no others."""
    torch.default_generator.manual_seed(seed)
    if _draws_on_cuda(device):
        torch.cuda.manual_seed_all(seed)


def _draws_on_cuda(device: torch.device | None) -> bool:
    """Whether draws may come from a GPU; without a device, whether this process has used one."""
    return torch.cuda.is_initialized() if device is None else device.type == "cuda"


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put every submodule into eval mode, and each back into the mode it had."""
    training = [submodule for submodule in module.modules() if submodule.training]
    try:
        for submodule in training:
            submodule.training = False
        yield
    finally:
        for submodule in training:
            submodule.training = True


@contextmanager
def own_parameters(*modules: object) -> Iterator[None]:
    """Hide from the modules what the global parameter store holds under their names, then restore the store.

    A `PyroModule` looks its parameters up in the store by name, so a second model of the same shape would be handed
    those of the first. Other entries stay visible, for guides that are plain functions around `pyro.param`.
    """
    names = {name for m in modules if isinstance(m, nn.Module) for name, _ in m.named_parameters()}
    names |= {name.removesuffix("_unconstrained") for name in names}
    prefixes = tuple(f"{m._pyro_name}." for m in modules if isinstance(m, PyroModule) and m._pyro_name)
    store = pyro.get_param_store()
    visible = store.get_state()
    for key in list(visible["params"]):
        if key.replace("$$$", ".") in names or key.startswith(prefixes):
            del visible["params"][key]
            visible["constraints"].pop(key, None)
    with store.scope(state=visible):
        yield


def allow_local_mode(module: PyroModule) -> None:
    """Let a module work whichever way Pyro's setting `module_local_params` stands, then and later.

    A `PyroModule` is otherwise bound to the setting under which it was made, and fails under the other.
    """
    vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def local_param(name: str, parameter: nn.Parameter) -> Tensor:
    """A `pyro.param` statement for a parameter that its module owns: traced, but kept out of the global store."""
    parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]  # pyro.infer.SVI asks for it
    statement = effectful(type="param")(lambda *_, **__: parameter)
    value: Tensor = statement(name, parameter, constraint=constraints.real, event_dim=None, name=name)
    return value


def is_auxiliary(node: Any) -> bool:
    """Whether a trace's sample site is a guide's own device, with no counterpart in the model."""
    return bool((node["infer"] or {}).get("is_auxiliary"))
