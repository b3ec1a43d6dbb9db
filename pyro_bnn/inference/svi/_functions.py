"""Turns models and guides that are functions into modules, which own the parameters of `pyro.param` statements."""

import weakref
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import transform_to

from ..._core import checks as _checks
from ..._core.scope import EXCLUSIVE, restored


class PyroFunction(nn.Module):
    """A module that calls a function: a Pyro model or guide.

    The function's `pyro.param` statements return the module's own parameters. The first call creates these parameters
    from the values in Pyro's global store or, if there are none, from the initial values in the statements.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function
        self.values = nn.ParameterList()
        self._constraints: dict[str, Any] | None = None

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the function."""
        if self._constraints is None:
            self._constraints = self._made(args, kwargs)
        with _OwnValues(self.value_of):
            return self.function(*args, **kwargs)

    def _made(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
        store = pyro.get_param_store()
        with EXCLUSIVE, store.scope(state=store.get_state()), restored(None), poutine.block(), torch.no_grad():
            trace: Any = poutine.trace(self.function, param_only=True).get_trace(*args, **kwargs)
            constraints = {}
            for name, node in trace.nodes.items():
                if node["type"] == "param":
                    self.values.append(nn.Parameter(node["value"].unconstrained().detach().clone()))
                    constraints[name] = node["kwargs"].get("constraint", torch.distributions.constraints.real)
        return constraints

    def value_of(self, name: str) -> Tensor:
        """The value of the parameter with this name in its statement."""
        assert self._constraints is not None
        names = [*self._constraints]
        if name not in names:
            raise ValueError(
                f"every `pyro.param` statement must run at the first call, got a new one of `{name}`; make it "
                "independent of the batch."
            )
        parameter: Tensor = self.values[names.index(name)]
        value: Any = transform_to(self._constraints[name])(parameter)
        value.unconstrained = weakref.ref(parameter)  # Pyro's ELBOs read this attribute
        return value

    @torch.no_grad()
    def publish(self) -> None:
        """Write the values into Pyro's global store, where calls of the function itself look for them."""
        store = pyro.get_param_store()
        with EXCLUSIVE:
            for name, constraint in (self._constraints or {}).items():
                value = self.value_of(name).detach().clone()
                store.setdefault(name, value, constraint)
                store[name] = value


class _OwnValues(Messenger):
    """Makes the `pyro.param` statements of a function return the parameters of its module."""

    def __init__(self, value_of: Callable[[str], Tensor]) -> None:
        super().__init__()
        self._value_of = value_of

    def _pyro_param(self, msg: Any) -> None:
        if msg["value"] is None:
            msg["value"] = self._value_of(msg["name"])


def as_module(name: str, value: object) -> nn.Module:
    """A model or guide as a module; `name`, "model" or "guide", is for error messages."""
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, type):
        arguments = "model" if name == "guide" else "..."
        raise ValueError(f"`{name}` must be an instance, got the class; pass `{value.__name__}({arguments})`.")
    if not callable(value):
        raise ValueError(
            f"`{name}` must be a module or a function, got {_checks.described(value)}; pass a Pyro {name}."
        )
    return PyroFunction(value)
