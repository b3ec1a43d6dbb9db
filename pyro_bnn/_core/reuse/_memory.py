"""Memory for intermediate results that depend only on the input of a network, not on its random parameters."""

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
    """Finds the modules of a network whose results may be kept: the modules without random or learned parameters.

    `random` and `learned` are the paths of the random and of the learned parameters.
    """

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
    """Keeps the results that do not depend on a network's random parameters, and reuses them for the same input."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._calls: dict[nn.Module, dict[int, Call]] = {}
        self._state: State | None = None
        self._is_block = False
        self.is_off = not plan.is_worthwhile
        """Whether every call runs all modules, because no result can be kept."""

    @property
    def is_used(self) -> bool:
        """Whether results are kept, so that the next call skips modules."""
        return self._state is not None

    def will_watch(self) -> bool:
        """Return whether the next call will be recorded, because it is the first or because the network has changed."""
        self._drop_if_changed()
        return not self.is_off and not self.is_used

    @property
    def has_noise(self) -> bool:
        """Whether the network, for example its dropout, drew random numbers in the recorded call."""
        return self._plan.has_noise

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all kept tensors."""
        return sum(value.numel() * value.element_size() for value in self.kept)

    @property
    def kept(self) -> list[Tensor]:
        return [output.value for output in self._outputs() if output.value is not None]

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that later calls skip."""
        return list(self._calls)

    @property
    def keys(self) -> list[tuple[nn.Module, int, int]]:
        """The origin of each kept tensor: its module, the index of the module's call, and its index in the result."""
        numbered = ((m, i, call) for m, calls in self._calls.items() for i, call in calls.items())
        return [(m, i, p) for m, i, call in numbered for p, o in enumerate(call.outputs) if o.value is not None]

    def refill(self, values: Sequence[Tensor]) -> None:
        """Replace the kept tensors by `values`, which are the results for another input of the same shape."""
        outputs = [output for output in self._outputs() if output.value is not None]
        for output, value in zip(outputs, values, strict=True):
            output.value = value

    def _outputs(self) -> Iterator[RecordedOutput]:
        return (output for calls in self._calls.values() for call in calls.values() for output in call.outputs)

    def forget(self) -> None:
        """Forget all results, and run all modules from now on."""
        self._calls, self._state, self.is_off = {}, None, True

    def begin_block(self) -> None:
        """Begin a block.

        In a block, each call checks whether values of tensors have changed, but does not look for other changes.
        """
        self._is_block = False
        self._drop_if_changed()
        self._is_block = True

    def end_block(self) -> None:
        """End the block. All later calls check again whether the network has changed."""
        self._is_block = False

    def _drop_if_changed(self) -> None:
        if self._state is None:
            return
        if not (self._state.has_same_tensors() if self._is_block else self._state.is_same(deep=False)):
            self._calls, self._state = {}, None

    @contextmanager
    def during(self, drawn: Mapping[str, Tensor]) -> Iterator[None]:
        """Record the network's call in a `with` block, or let the call reuse kept results. `drawn` has weights by path.

        If the call raises :class:`Diverged`, call :meth:`forget` and run the network again.
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
    """Replace the forward passes of modules by `called(module, forward, ...)` in a `with` block. Hooks still run."""
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
