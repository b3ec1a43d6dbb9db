"""Records the torch operations in a run of a network, to find modules whose results can be kept."""

import operator
import random
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ..reflection import tensors_within

TABLES = ("_parameters", "_buffers", "_modules")


class State:
    """A snapshot of modules, for a later comparison. Values of the tensors in `changing` are not compared."""

    def __init__(self, modules: Iterable[nn.Module], changing: Collection[Tensor] = ()) -> None:
        modules = list(dict.fromkeys(modules))
        self._dicts: list[dict[str, Any]] = [
            table for module in modules for table in (vars(module), *(vars(module)[name] for name in TABLES))
        ]
        self._values = [[*table.values()] for table in self._dicts]
        self._contents = [[_content(value) for value in values] for values in self._values]
        tensors = (t for module in modules for table in TABLES[:2] for t in vars(module)[table].values())
        ignored = {id(tensor) for tensor in changing}
        held = [t for t in tensors if isinstance(t, Tensor) and id(t) not in ignored]
        self._tensors = [(t, t._version) for t in held if not t.is_inference()]

    def is_same(self, *, deep: bool) -> bool:
        """Return whether the modules are unchanged. If `deep`, compare the contents of lists and dictionaries, too."""
        if not self.has_same_tensors():
            return False
        for table, values, contents in zip(self._dicts, self._values, self._contents, strict=True):
            now = [*table.values()]
            if len(now) != len(values):
                return False
            if (deep or not all(map(operator.is_, now, values))) and not all(map(_is_like, now, values, contents)):
                return False
        return True

    def has_same_tensors(self) -> bool:
        """Return whether the tensors are unchanged. This is faster than :meth:`is_same`."""
        return all(tensor._version == version for tensor, version in self._tensors)


def generators_of_others() -> tuple[object, ...]:
    """Return the states of Python's and NumPy's generators, from which a network may draw."""
    state: Any = np.random.get_state()  # noqa: NPY002  # the generator from which most code draws
    name, keys, *rest = state
    return random.getstate(), name, keys.tobytes(), *rest


def _content(value: Any) -> list[Any] | None:
    """Return the items of a container, or the state of a random generator or of a method's generator; else None."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set)):
        return [*value]
    owner = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(owner, random.Random):
        return [repr(owner.getstate())]
    if type(owner).__module__.startswith("numpy.random"):
        bits = getattr(owner, "bit_generator", owner)
        return [repr(owner.get_state() if hasattr(owner, "get_state") else getattr(bits, "state", None))]
    return None


def _is_like(now: Any, before: Any, content: list[Any] | None) -> bool:
    if content is None:
        return now is before
    found = _content(now) if type(now) is type(before) else None
    return found is not None and len(found) == len(content) and all(map(_is_equal, found, content))


def _is_equal(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and isinstance(first, (str, int)) and first == second)


Forward = Callable[..., Any]

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)


class Diverged(Exception):  # noqa: N818  # control flow: the caller runs the network as a whole
    """Raised if a network takes a different branch than in its recorded run, and needs a tensor that was not kept."""


class _OpaqueError(Exception):
    """Raised for an object that may hide tensors, such as an instance of a user's class."""


class Absent(Tensor):
    """Stands for a tensor that was not kept because only skipped modules use it. Operations on it raise `Diverged`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, like: Tensor) -> "Absent":
        return Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise Diverged(f"{func} needs a tensor that was not kept")


class RecordedOutput:
    """A tensor that a recorded call returned. Its value is kept only if code outside of the skipped modules uses it."""

    def __init__(self, tensor: Tensor, *, is_own: bool) -> None:
        self.reference = weakref.ref(tensor)
        self.is_own = is_own  # whether its memory was allocated during the call
        self.value: Tensor | None = None
        self.absent = Absent(tensor)
        self.is_lost = False  # whether a later remembered call changed it in place; its value is then not available
        self.is_copied = False  # whether the network changes it in place, so that each call gets a new copy

    def keep(self, tensor: Tensor) -> None:
        if self.value is None and not self.is_lost:
            self.value = tensor.detach()

    def protect(self) -> None:
        """Keep a copy of the tensor before the network changes it in place."""
        tensor = self.reference()
        if not self.is_copied and not self.is_lost and tensor is not None:
            self.value, self.is_copied = tensor.detach().clone(), True

    def given(self) -> Tensor:
        if self.value is None:
            return self.absent
        return self.value.clone() if self.is_copied else self.value.detach()


class Call:
    """A recorded call of a module. `RecordedOutput`s stand for the tensors in `result`."""

    def __init__(self, inputs: Any, result: Any, outputs: list[RecordedOutput]) -> None:
        self.inputs, self.outputs, self._result = inputs, outputs, result

    def replayed(self, arguments: Any) -> Any:
        """Return the recorded result. Raise `Diverged` if the arguments have another structure or other shapes."""
        if _described(arguments) != self.inputs:
            raise Diverged("a module was called with arguments of another shape")
        return _rebuilt(self._result, RecordedOutput.given, (RecordedOutput,))


class _Frame:
    """A call that is being recorded."""

    def __init__(self) -> None:
        self.made: set[StorageWeakRef | None] = set()
        self.is_pure = True


class Recorder(TorchDispatchMode):
    """Watches a run of a network, and records those calls of modules that are the same in every run.

    These calls depend on no drawn weights, draw no random numbers, and change nothing that existed before. A call whose
    arguments depend on drawn weights is not recorded, but later calls of the same module may be. If a call is
    unsuitable for another reason, its module is never recorded again.
    """

    def __init__(self, drawn: Iterable[Tensor], refused: set[nn.Module]) -> None:
        super().__init__()
        self._drawn: set[StorageWeakRef | None] = {None, *map(_storage, drawn)}
        self.refused = set(refused)
        self.calls: dict[tuple[nn.Module, int], Call] = {}
        self._counts: dict[nn.Module, int] = {}
        self._by_storage: dict[StorageWeakRef | None, list[tuple[RecordedOutput, nn.Module]]] = {}
        self._frame: _Frame | None = None
        self._is_open = True
        self._of_others = generators_of_others()
        self.is_valid = True  # whether the recording can be used; otherwise the next call is recorded
        self.has_noise = False  # whether the network itself draws random numbers
        self.is_hopeless = False  # whether the network draws from a generator that is not torch's and cannot be traced

    def finish(self) -> None:
        if generators_of_others() != self._of_others:
            self.is_valid, self.has_noise, self.is_hopeless = False, True, True
        self._by_storage.clear()
        if not self.is_valid:
            self.calls.clear()

    # --- calls of modules ---------------------------------------------------------------------------------------------

    def called(self, module: nn.Module, forward: Forward, /, *args: Any, **kwargs: Any) -> Any:
        if self._frame is not None:
            return forward(*args, **kwargs)
        index = self._counts.get(module, 0)
        self._counts[module] = index + 1
        if module in self.refused:  # its result may differ between calls, and so may everything computed from it
            result = forward(*args, **kwargs)
            self._drawn.update(_storage(tensor) for tensor in tensors_within(result))
            return result
        if not self._is_open or not self._is_fixed((args, kwargs)):
            return forward(*args, **kwargs)
        state, inputs, self._frame = State(module.modules()), _described((args, kwargs)), _Frame()
        try:
            result = forward(*args, **kwargs)
        finally:
            frame, self._frame = self._frame, None
        if not frame.is_pure or not state.is_same(deep=True) or not self._record(module, index, inputs, result, frame):
            self._refuse(module)
        return result

    def _is_fixed(self, arguments: Any) -> bool:
        try:
            return all(_storage(tensor) not in self._drawn for tensor in _tensors_in(arguments))
        except _OpaqueError:
            return False

    def _record(self, module: nn.Module, index: int, inputs: Any, result: Any, frame: _Frame) -> bool:
        try:
            tensors = {id(tensor): tensor for tensor in _tensors_in(result)}
        except _OpaqueError:
            return False
        outputs: dict[int, RecordedOutput] = {}
        for key, tensor in tensors.items():
            storage = _storage(tensor)
            outputs[key] = RecordedOutput(tensor, is_own=storage in frame.made)
            self._by_storage.setdefault(storage, []).append((outputs[key], module))
        tree = _rebuilt(result, lambda tensor: outputs[id(tensor)], (Tensor,))
        self.calls[module, index] = Call(inputs, tree, list(outputs.values()))
        return True

    def _refuse(self, module: nn.Module) -> None:
        self.refused.add(module)
        self.is_valid = False

    # --- operations ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [*tensors_within(args), *tensors_within(kwargs)]
        written = _written(func, args, kwargs)
        is_drawn = any(_storage(tensor) in self._drawn for tensor in given)
        has_noise = torch.Tag.nondeterministic_seeded in func.tags and not _is_without_dropout(func, args, kwargs)
        self.has_noise |= has_noise
        if self._frame is None:
            self._watch_outside(given, written)
        else:
            self._watch_inside(self._frame, written, is_drawn or has_noise or _trains(func, args, kwargs))
        result = func(*args, **kwargs)
        made = list(tensors_within(result))
        if is_drawn or has_noise:
            self._drawn.update(_storage(tensor) for tensor in (*made, *written))
            self._is_open &= bool(made or written) and torch.Tag.dynamic_output_shape not in func.tags
        if self._frame is not None:
            before = {_storage(tensor) for tensor in given}
            self._frame.made.update({_storage(tensor) for tensor in made} - before)
        return result

    def _watch_outside(self, given: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        for tensor in given:
            for output, _ in self._by_storage.get(_storage(tensor), ()):
                if output.reference() is tensor:
                    output.keep(tensor)
        for tensor in written:
            found = [pair for pair in self._by_storage.get(_storage(tensor), ()) if not pair[0].is_lost]
            if len(found) == 1 and found[0][0].is_own:
                found[0][0].protect()
                continue
            for _, module in found:  # every tensor that shares the memory would have to change in later calls, too
                self._refuse(module)

    def _watch_inside(self, frame: _Frame, written: Sequence[Tensor], is_impure: bool) -> None:
        frame.is_pure &= not is_impure
        for tensor in written:
            storage = _storage(tensor)
            if storage in frame.made:
                continue
            found = [output for output, _ in self._by_storage.get(storage, ())]
            if found and all(output.value is None for output in found):
                for output in found:  # as by `ReLU(inplace=True)` after a remembered call
                    output.is_lost = True
            else:
                frame.is_pure = False
                for output in found:
                    output.protect()


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """Return a key that is the same for tensors that share their memory; None if the memory is unknown."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # of a sparse tensor
        return None


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    if not func._schema.is_mutable:
        return []
    changed = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    return list(tensors_within([value for name, value in _named(func, args, kwargs).items() if name in changed]))


def _is_without_dropout(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the operation is attention without dropout, which torch wrongly marks as random."""
    default = {a.name: a.default_value for a in func._schema.arguments if a.name == "dropout_p"}
    return bool(default) and (default | _named(func, args, kwargs))["dropout_p"] == 0


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs


def _trains(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the operation is batch normalisation that updates its running statistics."""
    if "batch_norm" not in func._schema.name:
        return False
    named = _named(func, args, kwargs)
    return bool(named.get("training", named.get("train"))) and named.get("running_mean") is not None


# --- arguments and results: tensors in tuples, lists and dictionaries ------------------------------------------------


def _tensors_in(value: Any) -> Iterator[Tensor]:
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        yield value
    elif kind in (tuple, list):
        for part in value:
            yield from _tensors_in(part)
    elif kind is dict:
        for part in value.values():
            yield from _tensors_in(part)
    elif kind not in PLAIN:
        raise _OpaqueError


def _rebuilt(value: Any, replace: Callable[[Any], Any], kinds: tuple[type, ...]) -> Any:
    """Copy nested containers, with `replace` applied to values whose type is in `kinds`."""
    if isinstance(value, kinds):
        return replace(value)
    if type(value) in (tuple, list):
        return type(value)(_rebuilt(part, replace, kinds) for part in value)
    if type(value) is dict:
        return {key: _rebuilt(part, replace, kinds) for key, part in value.items()}
    return value


def _described(value: Any) -> Any:
    """Replace each tensor by its shape, dtype and device, to compare the arguments of calls."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if type(value) in (tuple, list):
        return [_described(part) for part in value]
    return {key: _described(part) for key, part in value.items()} if type(value) is dict else value
