"""Contexts that change global state and restore it: seeds, train/eval mode, Pyro's parameter store."""

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
    """Metaclass of abstract modules; it combines those of PyroModule and of `ABC`."""


@contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """A context in which torch's generators are seeded; they are restored at the end. None leaves them alone."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if _draws_on_cuda(device) else []):
        reseed(seed, device)
        yield


def reseed(seed: int, device: torch.device | None) -> None:
    """Seed the generators from which computations on a device draw, and no others."""
    torch.default_generator.manual_seed(seed)
    if _draws_on_cuda(device):
        torch.cuda.manual_seed_all(seed)


def _draws_on_cuda(device: torch.device | None) -> bool:
    """Whether draws may come from a GPU; if `device` is None, whether this process has used a GPU."""
    return torch.cuda.is_initialized() if device is None else device.type == "cuda"


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which every submodule is in eval mode; at the end each gets the mode that it had."""
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
    """A context in which modules do not see entries of the global parameter store under their parameters' names.

    A `PyroModule` looks up its parameters in the store by name, so a second model of the same shape would get those of
    the first. Other entries stay visible, for guides that are plain functions with `pyro.param`. At the end the store
    is restored.
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
    """Let a module work with both values of Pyro's setting `module_local_params`, now and later.

    Otherwise a `PyroModule` works only with the value under which it was made.
    """
    vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def local_param(name: str, parameter: nn.Parameter) -> Tensor:
    """A `pyro.param` statement for a parameter of a module: Pyro can trace it, but it stays out of the global store."""
    parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]  # pyro.infer.SVI reads it
    statement = effectful(type="param")(lambda *_, **__: parameter)
    value: Tensor = statement(name, parameter, constraint=constraints.real, event_dim=None, name=name)
    return value


def is_auxiliary(node: Any) -> bool:
    """Whether a sample site of a trace is an auxiliary one of a guide, which the model does not have."""
    return bool((node["infer"] or {}).get("is_auxiliary"))
