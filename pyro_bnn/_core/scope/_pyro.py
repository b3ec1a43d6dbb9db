"""Functions that keep modules and models apart from Pyro's global state, which is its parameter store and handlers."""

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
    """Metaclass of Pyro modules that are abstract or generic.

    The metaclass combines the metaclasses of `PyroModule` and `ABC`.
    """

    def __getitem__(cls, parameters: Any) -> Any:
        """Return a generic class with the given type parameters, as in the annotation ``Class[int]``.

        For a class that is not generic, call the method of Pyro's metaclass.
        """
        return cls.__class_getitem__(parameters) if Generic in cls.__mro__ else super().__getitem__(parameters)


@contextmanager
def own_parameters(*modules: object) -> Iterator[None]:
    """In a `with` block, hide the entries of Pyro's parameter store that are named like parameters of the modules.

    A `PyroModule` looks up its parameters in the store by name, so a second model of the same shape would get the
    parameters of the first. Other entries stay visible, since a guide may be a plain function that calls `pyro.param`.
    Pyro's parameter store is restored at the end of the block. All threads share the store and Pyro's handlers, so
    other threads wait.
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
    """A replacement for Pyro's context of a `PyroModule`.

    This context is never active, so an access to an attribute of the module never becomes a Pyro statement.
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
    """Return a copy of a module that uses neither Pyro's handlers nor its parameter store.

    The copy has the mode of the module and shares its parameters and buffers. Several threads may call copies of one
    module at the same time. `values` has values for the module's own `PyroSample` attributes, ``{name: value}``. Other
    `PyroSample` attributes get a new random value each time the code reads them.
    """
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    if isinstance(module, PyroModule):
        vars(twin).update(values or {}, _pyro_context=_NoContext())
    children = {name: child if child is None else without_pyro(child) for name, child in module._modules.items()}
    vars(twin)["_modules"] = children
    return twin


def leave_pyro(module: nn.Module) -> None:
    """Change a module in place so that it uses neither Pyro's handlers nor its parameter store."""
    for path, part in module.named_modules():
        if isinstance(part, PyroModule):
            vars(part).update(_pyro_context=_NoContext(), _pyro_name=path or "net")


def allow_local_mode(module: PyroModule) -> None:
    """Make a module work with both values of Pyro's setting `module_local_params`, not only with the present one."""
    vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def local_param(name: str, parameter: nn.Parameter) -> Tensor:
    """Make a `pyro.param` statement for a parameter of a module.

    Pyro can trace the statement, but does not put the parameter into its store. A frozen parameter gets no `pyro.param`
    statement: Pyro's optimizers would give a frozen parameter the gradient 0, and weight decay would then change the
    parameter.
    """
    if not parameter.requires_grad:
        return parameter
    parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]  # pyro.infer.SVI reads it
    statement = effectful(type="param")(lambda *_, **__: parameter)
    return statement(name, parameter, constraint=constraints.real, event_dim=None, name=name)


@contextmanager
def short_errors() -> Iterator[None]:
    """In a `with` block, remove the list of shapes that Pyro adds to the errors of a traced model."""
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
    """Return whether a sample site of a guide's trace is auxiliary, which means that the model has no such site."""
    return bool((node["infer"] or {}).get("is_auxiliary"))
