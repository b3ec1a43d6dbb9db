"""Memory for results that depend only on a network's input, not on its random parameters."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ..functional import has_hooks_of_others
from ._recording import Call, Forward, RecordedOutput, Recorder, State


class Plan:
    """Finds modules whose results may be kept: they contain no parameter whose path is in `random` or `learned`."""

    def __init__(self, net: nn.Module, random: set[str], learned: Collection[str] = ()) -> None:
        owners = {path.rpartition(".")[0] for path in (*random, *learned)}
        self.random = random
        self.learned = [net.get_parameter(path) for path in learned]
        around = {path for owner in owners for path in accumulate(owner.split("."), "{}.{}".format)}
        has_global = bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)
        named = dict(net.named_modules(remove_duplicate=False))
        random_modules = {module for path, module in named.items() if not path or path in around}
        fixed = [module for module in dict.fromkeys(named.values()) if module not in random_modules and not has_global]
        hooked = {module for module in fixed if any(map(has_hooks_of_others, module.modules()))}
        self.modules = [module for module in fixed if module not in hooked]
        # Whether the network has no hooks, which may count or inspect calls.
        self.is_free = not has_global and not any(map(has_hooks_of_others, net.modules()))
        self.refused: set[nn.Module] = set()  # modules whose calls cannot be remembered, as an earlier recording showed
        self.has_noise = False  # whether the network itself draws random numbers
        # Whether any call can be remembered.
        self.is_worthwhile = any(True for module in self.modules for _ in chain(module.parameters(), module.buffers()))


class Memory:
    """Keeps results of modules, and reuses them for the same input."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._calls: dict[nn.Module, dict[int, Call]] = {}
        self._state: State | None = None
        self._is_block = False
        self.is_off = not plan.is_worthwhile  # whether no result can be kept, so that every call runs all modules

    @property
    def is_used(self) -> bool:
        """Whether the next call skips modules."""
        return self._state is not None

    def will_watch(self) -> bool:
        """Return whether the next call is recorded: the first one, and the first one after a change of the network."""
        self._drop_if_changed()
        return not self.is_off and not self.is_used

    @property
    def has_noise(self) -> bool:
        """Whether the recorded call drew random numbers, as dropout does."""
        return self._plan.has_noise

    @property
    def num_bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.kept)

    @property
    def kept(self) -> list[Tensor]:
        return [output.value for output in self._outputs() if output.value is not None]

    @property
    def modules(self) -> list[nn.Module]:
        return list(self._calls)

    @property
    def keys(self) -> list[tuple[nn.Module, int, int]]:
        """The origin of each kept tensor: the module, the index of the call, and the tensor's index in the result."""
        numbered = ((m, i, call) for m, calls in self._calls.items() for i, call in calls.items())
        return [(m, i, p) for m, i, call in numbered for p, o in enumerate(call.outputs) if o.value is not None]

    def refill(self, values: Sequence[Tensor]) -> None:
        """Replace the kept tensors by those for another input of the same shape."""
        outputs = [output for output in self._outputs() if output.value is not None]
        for output, value in zip(outputs, values, strict=True):
            output.value = value

    def _outputs(self) -> Iterator[RecordedOutput]:
        return (output for calls in self._calls.values() for call in calls.values() for output in call.outputs)

    def forget(self) -> None:
        self._calls, self._state, self.is_off = {}, None, True

    def begin_block(self) -> None:
        """Begin a block of calls. Within it, only changes of the modules' tensors are noticed."""
        self._is_block = False
        self._drop_if_changed()
        self._is_block = True

    def end_block(self) -> None:
        self._is_block = False

    def _drop_if_changed(self) -> None:
        if self._state is None:
            return
        if not (self._state.has_same_tensors() if self._is_block else self._state.is_same(deep=False)):
            self._calls, self._state = {}, None

    @contextmanager
    def during(self, drawn: Mapping[str, Tensor]) -> Iterator[None]:
        """In a `with` block, record a call of the network, or let it reuse results. `drawn` has weights by path.

        If the block raises :class:`Diverged`, call :meth:`forget` and run the network again.
        """
        self._drop_if_changed()
        if self.is_off:
            yield
        elif self._state is not None:
            with _forwards(list(self._calls), self._replaying()):
                yield
        else:
            changing = (value for path, value in drawn.items() if path in self._plan.random)
            recorder = Recorder((*changing, *self._plan.learned), self._plan.refused)
            with _forwards(self._plan.modules, recorder.called), recorder:
                yield
            self._learn(recorder)

    def _replaying(self) -> Callable[..., Any]:
        counts: dict[nn.Module, int] = {}

        def called(module: nn.Module, forward: Forward, /, *args: Any, **kwargs: Any) -> Any:
            index = counts.get(module, 0)
            counts[module] = index + 1
            call = self._calls[module].get(index)
            return forward(*args, **kwargs) if call is None else call.replayed((args, kwargs))

        return called

    def _learn(self, recorder: Recorder) -> None:
        recorder.finish()
        self._plan.refused = recorder.refused
        self._plan.has_noise |= recorder.has_noise
        if recorder.is_hopeless:
            self.forget()
        if not recorder.is_valid:
            return  # the refused module is known now, so the next call records the rest
        for (module, index), call in recorder.calls.items():
            self._calls.setdefault(module, {})[index] = call
        if not self.kept:
            self.forget()
            return
        self._state = State(part for module in self._calls for part in module.modules())


@contextmanager
def _forwards(modules: list[nn.Module], called: Callable[..., Any]) -> Iterator[None]:
    """In a `with` block, let modules run `called(module, forward, ...)` in place of `forward`. Hooks still run."""
    originals = []
    try:
        for module in modules:
            attributes = vars(module)
            originals.append((attributes, attributes.get("forward")))
            attributes["forward"] = partial(called, module, module.forward)
        yield
    finally:
        for attributes, original in originals:
            if original is None:
                del attributes["forward"]
            else:
                attributes["forward"] = original
