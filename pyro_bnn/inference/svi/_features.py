"""Tables of the outputs of frozen layers, so that these layers run only once for each row of data."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..._core.inputs import Inputs, take, versions
from ..._core.reuse import Memory, Plan, State
from ..._core.scope import EXCLUSIVE, seeded, undone
from ...modelling.model import BayesianModel, random_paths
from ._batches import Batches
from ._step import Execution, running_statistics

MOST_BYTES = 10**9  # heuristic: if the outputs of frozen layers need more memory, the layers run in each step
MOST_TRIES = 8  # heuristic: most runs of the network to find out which layers must run in each step

UNITS = (10**9, "GB"), (10**6, "MB"), (10**3, "kB")


class Features:
    """Tables of the outputs of frozen layers, with an entry for each row of data.

    There are no tables if an output of a frozen layer depends on more than one row of data, if the tables would be too
    large, or after frozen layers have changed. If `is_watched` is true, :meth:`check` also compares the frozen layers
    with a copy of them.
    """

    def __init__(self, model: BayesianModel, batches: Batches, execution: Execution, *, is_watched: bool) -> None:
        self._model, self._batches, self._autocast = model, batches, execution.autocast
        self._tables: list[Tensor] = []
        self._memories: dict[int, Memory] = {}  # by number of rows, which is fixed in a recorded call
        self._taken: tuple[Tensor | None, list[Tensor]] = None, []
        self._fixed: list[tuple[Tensor, Tensor]] = []
        self.in_words = ""  # clause that says how often frozen layers ran, for the end of a sentence
        random = random_paths(model)
        named = dict(model.network.named_parameters(remove_duplicate=False))
        learned = {path: parameter for path, parameter in named.items() if parameter.requires_grad}
        self._plan = Plan(model.network, random, learned)
        # Processes that fit together write all buffers in every step, and each write would count as a change.
        is_alone = execution.num_parts == 1 and not execution.processes.are_many
        if batches.tensors is None or not is_alone or not _have_parameters(self._plan.modules):
            return
        self._x: Inputs = batches.tensors[0]
        self._versions = versions(self._x)
        with EXCLUSIVE:  # a prediction in another thread changes the mode of the network for a while
            is_usable, changing = self._try(running_statistics(model))
            if not is_usable:
                self._forget()
                return
            self._watch([*learned.values(), *map(model.network.get_buffer, random), *changing], is_watched)
        size = _in_words(sum(table.nbytes for table in self._tables))
        self.in_words = f"; features of the frozen layers were computed once for {batches.num_rows:,} rows ({size})"

    def run(self, compute: Callable[[], Tensor]) -> Tensor:
        """Call `compute`, which runs the network once on the current batch. Tables replace the frozen layers."""
        memory = self._filled()
        if memory is None:
            return compute()
        with undone(self._model.device) as undo:
            try:
                with self._model.interception.remembering(memory):
                    return compute()
            except Exception:  # mostly `Diverged`; an error in the user's code is raised again below
                undo()
        self._end()
        return compute()

    def check(self) -> None:
        """Stop using the tables if frozen layers have changed, even if torch's version counters do not show it."""
        with EXCLUSIVE:
            if self._memories and not (
                self._state.is_same(deep=True) and all(_is_equal(tensor, value) for tensor, value in self._fixed)
            ):
                self._end()

    def _filled(self) -> Memory | None:
        """Return the outputs of the frozen layers for the latest batch; None if all layers must run."""
        if not self._memories:
            return None
        if not self._state.is_same(deep=False) or versions(self._x) != self._versions:
            self._end()
            return None
        rows = self._batches.rows
        memory = self._memories.get(self._batches.num_rows if rows is None else len(rows))
        if memory is None:
            return None
        if rows is None:
            memory.refill(self._tables)
        else:
            if self._taken[0] is not rows:  # the draws of a step have the same rows
                self._taken = rows, [table.index_select(0, rows) for table in self._tables]
            memory.refill(self._taken[1])
        return memory

    def _end(self) -> None:
        self._forget()
        self.in_words = "; frozen layers ran only once until they changed, then in every step"

    def _forget(self) -> None:
        self._tables, self._memories, self._taken, self._fixed = [], {}, (None, []), []

    def _try(self, buffers: Sequence[Tensor]) -> tuple[bool, list[Tensor]]:
        """Fill the tables; return whether they are usable, and the buffers that changed. These buffers are restored."""
        before = [buffer.detach().clone() for buffer in buffers]
        with seeded(0, self._model.device), torch.no_grad():
            try:
                is_usable = self._compute() and self._have_independent_rows()
            except Exception:  # a step will raise the same error, unless its batch differs
                is_usable = False
            changed = [pair for pair in zip(buffers, before, strict=True) if not _is_equal(*pair)]
            for buffer, value in changed:  # for example those of batch normalisation after the frozen layers
                buffer.copy_(value)
        return is_usable, [buffer for buffer, _ in changed]

    def _watch(self, changing: Sequence[Tensor], is_watched: bool) -> None:
        """Record the state of all tensors except `changing`, to notice later changes."""
        left_out = {module for memory in self._memories.values() for m in memory.modules for module in m.modules()}
        modules = list(self._model.network.modules())
        # Two kinds of modules may change: recurrent layers that still run, which store the weights of their last call,
        # and refused modules without a left-out module inside, since no left-out call reads their results.
        own_ways = {module for module in self._plan.refused if left_out.isdisjoint(module.modules())}
        own_ways |= {module for module in modules if isinstance(module, nn.RNNBase) and module not in left_out}
        self._state = State((module for module in modules if module not in own_ways), changing)
        if is_watched:
            tensors = {t for module in left_out for t in (*module.parameters(), *module.buffers())}
            self._fixed = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def _compute(self) -> bool:
        keys: list[tuple[nn.Module, int, int]] = []
        for begin, end in self._batches.bounds:
            memory = self._recorded(take(self._x, slice(begin, end)))
            kept = memory.kept
            if not memory.is_used or any(value.dim() == 0 or len(value) != end - begin for value in kept):
                return False
            if begin == 0:
                if not _have_parameters(memory.modules) or not self._fits(memory.num_bytes / end):
                    return False
                keys = memory.keys
                self._tables = [value.new_empty(self._batches.num_rows, *value.shape[1:]) for value in kept]
            if memory.keys != keys or not _are_alike(kept, self._tables):
                return False
            for table, value in zip(self._tables, kept, strict=True):
                table[begin:end] = value
            self._memories.setdefault(end - begin, memory)
        return True

    def _fits(self, bytes_per_row: float) -> bool:
        num_bytes = bytes_per_row * self._batches.num_rows
        if num_bytes > MOST_BYTES:
            self.in_words = f" (frozen layers ran at every step: their features would take {_in_words(num_bytes)})"
        return num_bytes <= MOST_BYTES

    def _have_independent_rows(self) -> bool:
        second = self._batches.bounds[:2][-1]
        rows = torch.arange(0, second[1], 2, device=self._tables[0].device)
        memory = self._recorded(take(self._x, rows))
        expected = [table.index_select(0, rows) for table in self._tables]
        return _are_alike(memory.kept, expected) and all(map(_is_close, memory.kept, expected))

    def _recorded(self, x: Inputs) -> Memory:
        memory = Memory(self._plan)
        values = {name: self._model.initial_value(name) for name in self._model.site_names}
        lower = nullcontext() if self._autocast is None else torch.autocast(self._model.device.type, self._autocast)
        with self._model.interception.remembering(memory), lower:
            for _ in range(MOST_TRIES):
                if memory.is_used or memory.is_off:
                    break
                self._model.output_given(values, x)
        return memory


def _have_parameters(modules: Sequence[nn.Module]) -> bool:
    return any(next(module.parameters(), None) is not None for module in modules)


def _are_alike(values: Sequence[Tensor], tables: Sequence[Tensor]) -> bool:
    """Whether values have the dtypes and shapes of the tables, except for the number of rows."""
    kinds = [[(value.shape[1:], value.dtype) for value in group] for group in (values, tables)]
    return kinds[0] == kinds[1]


def _is_close(value: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal up to rounding, which on a GPU depends on the number of rows."""
    if value.shape != expected.shape or not expected.dtype.is_floating_point:
        return torch.equal(value, expected)
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * float(expected.abs().max())
    return bool((value - expected).abs().max() <= tolerance)


def _is_equal(tensor: Tensor, before: Tensor) -> bool:
    return tensor.device == before.device and tensor.dtype == before.dtype and torch.equal(tensor, before)


def _in_words(num_bytes: float) -> str:
    size, unit = next(((s, u) for s, u in UNITS if num_bytes >= s / 10), UNITS[-1])
    return f"{num_bytes / size:.1f} {unit}"
