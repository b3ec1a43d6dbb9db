"""Contexts that change global state and restore it: seeds, train/eval mode, Pyro's parameter store, warnings."""

import os
import re
import threading
import warnings
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeVar

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.distributions import constraints

from . import _checks


class ProcessLock:
    """A lock of the whole process, which a thread that holds it can take again.

    A process that is forked while another thread holds it begins with a new one; else it would wait for ever.
    """

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


EXCLUSIVE = ProcessLock()
"""Held while something that belongs to the whole process is changed: torch's generators, Pyro's stack and store."""


class AbstractPyroModule(type(PyroModule), ABCMeta):  # type: ignore[misc]
    """Metaclass of abstract and of generic modules; it combines those of PyroModule and of `ABC`."""

    def __getitem__(cls, parameters: Any) -> Any:
        """A generic class with its type parameters, as in annotations; of other classes what Pyro makes of them."""
        return cls.__class_getitem__(parameters) if Generic in cls.__mro__ else super().__getitem__(parameters)


class Stream:
    """Random numbers of its own for a long computation, from torch's generators.

    These generators belong to the whole process. A ``with`` block lends them to the stream: its numbers go on where its
    last block ended, other streams wait, and afterwards the generators are as they were. So a computation in many
    blocks gives the same numbers whatever other threads compute between them.

    Args:
        seed: Seed of the stream; None draws one from torch's generator.
        device: Device of the computation; None is any.
    """

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
        """Where the stream is, between two blocks."""
        return list(self._state)

    def restore(self, state: list[Tensor]) -> None:
        """Go on from what :meth:`state` returned.

        Raises:
            ValueError: If the state is of a machine with another number of GPUs.
        """
        if len(state) != len(self._state):
            raise ValueError(
                f"the random numbers must go on with {len(self._state) - 1} GPU generators, got {len(state) - 1}; "
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
    """A context in which torch's generators are seeded, and other threads' streams wait; then they are as before.

    With the seed None it does nothing.
    """
    if seed is None:
        yield
        return
    with restored(device):
        reseed(seed, device)
        yield


def reseed(seed: int, device: torch.device | None) -> None:
    """Seed the generators from which computations on a device draw, and no others."""
    torch.default_generator.manual_seed(_checks.seed(seed))
    if _draws_on_cuda(device):
        torch.cuda.manual_seed_all(seed)


def _draws_on_cuda(device: torch.device | None) -> bool:
    """Whether draws may come from a GPU; if `device` is None, whether this process has used a GPU."""
    return torch.cuda.is_initialized() if device is None else device.type == "cuda"


@contextmanager
def restored(device: torch.device | None) -> Iterator[None]:
    """A context after which torch's generators are as they were before; inside, other threads' streams wait."""
    with EXCLUSIVE:
        outer = _generator_states(_draws_on_cuda(device))
        try:
            yield
        finally:
            _set_generators(outer)


@contextmanager
def undone(device: torch.device) -> Iterator[Callable[[], None]]:
    """A context that yields a function which puts the generators of a device back to where they were at its begin."""
    states = _generator_states(_draws_on_cuda(device))
    yield lambda: _set_generators(states)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which every submodule is in eval mode; at the end each gets the mode that it had.

    Other threads that share the module wait: theirs would find it in the wrong mode, or put it back too early.
    """
    with EXCLUSIVE:
        training = [vars(submodule) for submodule in module.modules() if submodule.training]
        try:
            for attributes in training:  # an assignment to a module itself takes ten times as long
                attributes["training"] = False
            yield
        finally:
            for attributes in training:
                attributes["training"] = True


@contextmanager
def own_parameters(*modules: object) -> Iterator[None]:
    """A context in which modules do not see entries of the global parameter store under their parameters' names.

    A `PyroModule` looks up its parameters in the store by name, so a second model of the same shape would get those of
    the first. Other entries stay visible, for guides that are plain functions with `pyro.param`. At the end the store
    is restored. The store and the handlers of calls inside belong to the process, so other threads wait.
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


class _NoContext(AbstractContextManager[None]):
    """Stands in for the context of a `PyroModule`: it is never active, so no attribute is a Pyro statement."""

    active, used = 0, True

    def __init__(self) -> None:
        self.param_state: dict[str, dict[str, Any]] = {"params": {}, "constraints": {}}

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, name: str) -> None:
        """No value is kept."""

    def set(self, name: str, value: Tensor) -> None:
        """Keep no value."""


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def without_pyro(module: ModuleT, values: Mapping[str, Tensor] | None = None) -> ModuleT:
    """A twin of a module whose attributes are plain: it uses neither Pyro's handlers nor its parameter store.

    It has the same parameters, buffers and mode. So threads may call twins of one module side by side.

    Args:
        module: The module.
        values: Values of the module's own `PyroSample` attributes; one without a value is drawn at each access.
    """
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    if isinstance(module, PyroModule):
        vars(twin).update(values or {}, _pyro_context=_NoContext())
    children = {name: child if child is None else without_pyro(child) for name, child in module._modules.items()}
    vars(twin)["_modules"] = children
    return twin


def leave_pyro(module: nn.Module) -> None:
    """Make the attributes of a module plain, in place, as :func:`without_pyro` does in a twin."""
    for path, part in module.named_modules():
        if isinstance(part, PyroModule):
            vars(part).update(_pyro_context=_NoContext(), _pyro_name=path or "net")


def allow_local_mode(module: PyroModule) -> None:
    """Let a module work with both values of Pyro's setting `module_local_params`, now and later.

    Otherwise a `PyroModule` works only with the value under which it was made.
    """
    vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def local_param(name: str, parameter: nn.Parameter) -> Tensor:
    """A `pyro.param` statement for a parameter of a module: Pyro can trace it, but it stays out of the global store.

    A frozen parameter gets none. To an optimizer of Pyro it would be one with gradient 0, which weight decay changes.
    """
    if not parameter.requires_grad:
        return parameter
    parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]  # pyro.infer.SVI reads it
    statement = effectful(type="param")(lambda *_, **__: parameter)
    value: Tensor = statement(name, parameter, constraint=constraints.real, event_dim=None, name=name)
    return value


@contextmanager
def short_errors() -> Iterator[None]:
    """A context that raises errors of a traced model as they were, without the list of all shapes that Pyro adds."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        original: BaseException = error
        while re.search(r"\n\s*Trace Shapes:", str(original)) and original.__cause__ is not None:
            original = original.__cause__
        if original is error:
            raise
        raise original  # noqa: B904  # its own cause, if it has one, is kept


@contextmanager
def filtered_warnings(
    action: Literal["ignore", "error"], message: str = "", category: type[Warning] = Warning
) -> Iterator[None]:
    """A context in which warnings of a category whose text begins with a pattern are ignored, or raised.

    The filters belong to the process, so other threads wait: two such contexts that overlap would leave one filter for
    ever. Short computations only; what a whole fit warns of is :func:`silent_fits`'s affair.
    """
    with EXCLUSIVE, warnings.catch_warnings():
        warnings.filterwarnings(action, message, category)
        yield


_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


@contextmanager
def silent_fits() -> Iterator[None]:
    """A context in which this thread's fits do not warn of how they ended: who opens it tells it from their status."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def warn_of_fit(message: str, category: type[Warning], *, stacklevel: int) -> None:
    """Warn of how a fit ended unless :func:`silent_fits` leaves it to a caller; levels are those of `warnings.warn`."""
    if not _is_silent.get():
        warnings.warn(message, category, stacklevel=stacklevel + 1)


def is_auxiliary(node: Any) -> bool:
    """Whether a sample site of a trace is an auxiliary one of a guide, which the model does not have."""
    return bool((node["infer"] or {}).get("is_auxiliary"))
