"""Separates modules and models from Pyro's global state: parameter store, handlers and traces."""

import re
import weakref
from abc import ABCMeta
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import pyro
from pyro.nn import PyroModule
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.distributions import constraints

from ._exclusive import EXCLUSIVE


class AbstractPyroModule(type(PyroModule), ABCMeta):  # type: ignore[misc]
    """Metaclass of abstract and of generic Pyro modules: it combines the metaclasses of `PyroModule` and `ABC`."""

    def __getitem__(cls, parameters: Any) -> Any:
        """A generic class with its type parameters, as in annotations; other classes behave as in Pyro."""
        return cls.__class_getitem__(parameters) if Generic in cls.__mro__ else super().__getitem__(parameters)


@contextmanager
def own_parameters(*modules: object) -> Iterator[None]:
    """A context in which modules do not see entries of the global parameter store under their parameters' names.

    A `PyroModule` looks up its parameters in the store by name, so a second model of the same shape would get the
    parameters of the first. Other entries stay visible, for guides that are plain functions with `pyro.param`. At the
    end the store is restored. The store and Pyro's handlers belong to the process, so other threads wait.
    """
    names = {name for m in modules if isinstance(m, nn.Module) for name, _ in m.named_parameters()}
    names |= {name.removesuffix("_unconstrained") for name in names}
    prefixes = tuple(f"{m._pyro_name}." for m in modules if isinstance(m, PyroModule) and m._pyro_name)
    store = pyro.get_param_store()
    with EXCLUSIVE:
        visible = store.get_state()
        for key in list(visible["params"]):
            if key.replace("$$$", ".") in names or key.startswith(prefixes):
                del visible["params"][key]
                visible["constraints"].pop(key, None)
        with store.scope(state=visible):
            yield


class _NoContext(nullcontext[None]):
    """Replaces the context of a `PyroModule`.

    The replacement is never active, so that no access to an attribute of the module becomes a Pyro statement.
    """

    active, used = 0, True

    def __init__(self) -> None:
        super().__init__()
        self.param_state: dict[str, dict[str, Any]] = {"params": {}, "constraints": {}}

    def get(self, name: str) -> None:
        """Find no cached value."""

    def set(self, name: str, value: Tensor) -> None:
        """Cache no value."""


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def without_pyro(module: ModuleT, values: Mapping[str, Tensor] | None = None) -> ModuleT:
    """A twin: a copy of a module that uses neither Pyro's handlers nor its parameter store.

    The twin shares parameters, buffers and mode with the module. Threads may call twins of one module concurrently. The
    module's own `PyroSample` attributes have the given values; without a value, they are drawn at each access.
    """
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    if isinstance(module, PyroModule):
        vars(twin).update(values or {}, _pyro_context=_NoContext())
    children = {name: child if child is None else without_pyro(child) for name, child in module._modules.items()}
    vars(twin)["_modules"] = children
    return twin


def leave_pyro(module: nn.Module) -> None:
    """Stop a module, in place, from using Pyro's handlers and parameter store, as :func:`without_pyro` does."""
    for path, part in module.named_modules():
        if isinstance(part, PyroModule):
            vars(part).update(_pyro_context=_NoContext(), _pyro_name=path or "net")


def allow_local_mode(module: PyroModule) -> None:
    """Let a module work with both values of Pyro's setting `module_local_params`, not only with the present one."""
    vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def local_param(name: str, parameter: nn.Parameter) -> Tensor:
    """A `pyro.param` statement for a module's parameter, which Pyro can trace but does not put into its store.

    A frozen parameter gets no statement: Pyro's optimizers would treat its gradient as 0, and weight decay would change
    it.
    """
    if not parameter.requires_grad:
        return parameter
    parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]  # pyro.infer.SVI reads it
    statement = effectful(type="param")(lambda *_, **__: parameter)
    return statement(name, parameter, constraint=constraints.real, event_dim=None, name=name)


@contextmanager
def short_errors() -> Iterator[None]:
    """A context in which errors of a traced model are raised without the list of shapes that Pyro adds."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        original: BaseException = error
        while re.search(r"\n\s*Trace Shapes:", str(original)) and original.__cause__ is not None:
            original = original.__cause__
        if original is error:
            raise
        raise original  # noqa: B904  # its own cause, if it has one, is kept


def is_auxiliary(node: Any) -> bool:
    """Whether a sample site of a guide's trace is auxiliary: the model has no such site."""
    return bool((node["infer"] or {}).get("is_auxiliary"))
