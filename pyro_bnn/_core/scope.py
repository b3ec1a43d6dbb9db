"""Context managers that restore global state: generators, modes, Pyro's parameter store, warnings."""

import inspect
import os
import re
import threading
import warnings
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeVar

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.distributions import constraints

from . import checks as _checks


class ProcessLock:
    """A reentrant lock. A forked process makes a new lock, since a thread of its parent may hold the old one."""

    def __init__(self) -> None:
        self._renew()
        if os.name == "posix":
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


EXCLUSIVE = ProcessLock()  # lock for state that threads share, such as torch's generators and Pyro's parameter store


class Stream:
    """Random numbers for several `with` blocks, each of which continues where the last stopped. Other threads wait."""

    def __init__(self, seed: int | None, device: torch.device | None = None) -> None:
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self._cuda = _draws_on_cuda(device)
        with seeded(seed, device):
            self._state = _generator_states(self._cuda)
        self._outer: list[list[Tensor]] = []

    def __enter__(self) -> "Stream":
        EXCLUSIVE.__enter__()
        self._outer.append(_generator_states(self._cuda))
        if len(self._outer) == 1:
            _set_generators(self._state)
        return self

    def __exit__(self, *_: object) -> None:
        outer = self._outer.pop()
        if not self._outer:
            self._state = _generator_states(self._cuda)
            _set_generators(outer)
        EXCLUSIVE.__exit__()

    def state(self) -> list[Tensor]:
        """Return the states of the generators at the end of the last block."""
        return list(self._state)

    def restore(self, state: list[Tensor]) -> None:
        if len(state) != len(self._state):
            raise ValueError(
                f"the random numbers must continue with {len(self._state) - 1} GPU generators, got {len(state) - 1}; "
                "resume on the kind of machine that made the file."
            )
        self._state = list(state)


def _generator_states(cuda: bool) -> list[Tensor]:
    return [torch.default_generator.get_state(), *(torch.cuda.get_rng_state_all() if cuda else [])]


def _set_generators(states: list[Tensor]) -> None:
    torch.default_generator.set_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])


@contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators in a `with` block, and restore them; without a seed, do nothing."""
    if seed is None:
        yield
        return
    with restored(device):
        reseed(seed, device)
        yield


def reseed(seed: int, device: torch.device | None) -> None:
    """Seed the generators that computations on `device` use, and no others."""
    torch.default_generator.manual_seed(_checks.seed(seed))
    if _draws_on_cuda(device):
        torch.cuda.manual_seed_all(seed)


def _draws_on_cuda(device: torch.device | None) -> bool:
    """Return whether computations on `device` draw random numbers on a GPU; for None, whether a GPU was used."""
    return torch.cuda.is_initialized() if device is None else device.type == "cuda"


@contextmanager
def restored(device: torch.device | None) -> Iterator[None]:
    """Restore torch's generators after a `with` block. Other threads wait."""
    with EXCLUSIVE:
        outer = _generator_states(_draws_on_cuda(device))
        try:
            yield
        finally:
            _set_generators(outer)


@contextmanager
def undone(device: torch.device) -> Iterator[Callable[[], None]]:
    """Yield a function that resets a device's generators to their states at the start of the `with` block."""
    states = _generator_states(_draws_on_cuda(device))
    yield lambda: _set_generators(states)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put all submodules into eval mode in a `with` block, while other threads wait."""
    with EXCLUSIVE:
        training = [vars(submodule) for submodule in module.modules() if submodule.training]
        try:
            for attributes in training:  # a plain assignment to a module's attribute takes ten times as long
                attributes["training"] = False
            yield
        finally:
            for attributes in training:
                attributes["training"] = True


class AbstractPyroModule(type(PyroModule), ABCMeta):  # type: ignore[misc]
    """Metaclass of Pyro modules that are abstract or generic."""

    def __getitem__(cls, parameters: Any) -> Any:
        """Return ``Class[int]`` for a generic class; otherwise do as `PyroModule` does."""
        return cls.__class_getitem__(parameters) if Generic in cls.__mro__ else super().__getitem__(parameters)


@contextmanager
def own_parameters(*modules: object) -> Iterator[None]:
    """In a `with` block, hide the entries of Pyro's store that have the names of the modules' own parameters."""
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
    """Pyro context in which a `PyroModule` reads its attributes without Pyro statements."""

    active, used = 0, True

    def __init__(self) -> None:
        super().__init__()
        self.param_state: dict[str, dict[str, Any]] = {"params": {}, "constraints": {}}

    def get(self, name: str) -> None:
        """Return None, since nothing is cached."""

    def set(self, name: str, value: Tensor) -> None:
        """Do nothing."""


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def without_pyro(module: ModuleT, values: Mapping[str, Tensor] | None = None) -> ModuleT:
    """Return a copy that shares the parameters, but uses neither Pyro's handlers nor its store.

    `values` sets `PyroSample` attributes by name. An attribute that `values` lacks has a new random value at each read.
    """
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    if isinstance(module, PyroModule):
        vars(twin).update(values or {}, _pyro_context=_NoContext())
    children = {name: child if child is None else without_pyro(child) for name, child in module._modules.items()}
    vars(twin)["_modules"] = children
    return twin


def leave_pyro(module: nn.Module) -> None:
    """Change a module in place, so that it uses neither Pyro's handlers nor its store."""
    for path, part in module.named_modules():
        if isinstance(part, PyroModule):
            vars(part).update(_pyro_context=_NoContext(), _pyro_name=path or "net")


def allow_local_mode(module: PyroModule) -> None:
    """Let a module work with both values of Pyro's setting `module_local_params`."""
    vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def local_param(name: str, parameter: nn.Parameter) -> Tensor:
    """Return a parameter, by a `pyro.param` statement without Pyro's store; return a frozen parameter directly."""
    if not parameter.requires_grad:  # Pyro's optimizers would give it the gradient 0, to which weight decay is added
        return parameter
    parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]  # pyro.infer.SVI reads it
    statement = effectful(type="param")(lambda *_, **__: parameter)
    return statement(name, parameter, constraint=constraints.real, event_dim=None, name=name)


@contextmanager
def short_errors() -> Iterator[None]:
    """In a `with` block, remove the list of shapes that Pyro adds to errors."""
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
    """Return whether a site of a guide's trace is not in the model."""
    return bool((node["infer"] or {}).get("is_auxiliary"))


@contextmanager
def filtered_warnings(
    action: Literal["ignore", "error"], message: str = "", category: type[Warning] = Warning
) -> Iterator[None]:
    """In a `with` block, ignore warnings or raise them. `message` is a regular expression for their beginning."""
    with EXCLUSIVE, warnings.catch_warnings():  # blocks that overlap would leave one filter in place forever
        warnings.filterwarnings(action, message, category)
        yield


_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


@contextmanager
def silent_fits() -> Iterator[None]:
    """In a `with` block, turn off this thread's warnings about how a fit ended, since the caller reports the status."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def warn_of_fit(message: str, category: type[Warning]) -> None:
    if not _is_silent.get():
        warnings.warn(message, category, stacklevel=outer_stacklevel())


BETWEEN = frozenset({__name__.partition(".")[0], "sklearn", "joblib"})  # packages whose code is not the user's


def outer_stacklevel() -> int:
    """Return the `stacklevel` at which a warning shows the user's line."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    return level
