"""Evaluation of a network for a block of draws: one draw after the other or, for a small network, all at once."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..._core.functional import BatchedNetwork, as_chain, vectorised
from ..._core.inputs import Inputs, num_rows
from ..._core.reflection import tensors_within
from ..._core.reuse import Diverged, Memory, State, generators_of_others
from ..._core.scope import filtered_warnings, undone
from ...inference.posterior import Draw
from ...modelling.model import BayesianModel

T = TypeVar("T")

MOST_DRAWS = 64
"""Heuristic: largest number of draws in a block. Larger blocks would not be faster."""


@dataclass(frozen=True)
class Limits:
    """Heuristic limits: how large a block of draws may be, and which networks run with several draws at once."""

    numbers: int
    """Largest number of elements of a tensor that stacks the outputs of all draws of a block. The limit also holds for
    a tensor that stacks the values of one parameter for all draws that run at once."""
    work: int
    """Largest product of weights, rows and draws in a block, so that other threads can run every few milliseconds."""
    num_bytes: int
    """Largest memory of one tensor inside a network that runs for several draws at once."""
    work_of_draw: int
    """Largest product of weights and rows with which several draws run at once."""
    weights: int
    """Largest number of weights with which several draws run at once."""


ON_CPU = Limits(numbers=2**20, work=2**24, num_bytes=2**24, work_of_draw=2**20, weights=2**15)
"""Up to these sizes, most of the time of a run is overhead; beyond, joining weights costs more than it saves."""

ON_GPU = Limits(numbers=2**25, work=2**38, num_bytes=2**28, work_of_draw=2**34, weights=2**22)
"""A GPU computes a thousand times as much as Python starts in the same time."""


class Block:
    """Collects weight draws, and runs the network block by block: draw by draw, or for all draws of a block at once."""

    def __init__(self, model: BayesianModel, x: Inputs, memory: Memory, *, may_join: bool) -> None:
        self._model, self._x, self._memory = model, x, memory
        self._may_join = may_join and not model.interception.is_active
        self._limits = ON_CPU if model.device.type == "cpu" else ON_GPU
        self._of_likelihood = [name for name in model.latent_names if name.startswith("likelihood.")]
        self._work = 0  # weights times rows; 0 before the first draw
        self._is_little = False
        self._at_once: BatchedNetwork | None = None
        self._outputs: list[Tensor] = []
        self.draws: list[Draw] = []
        self.size = 1
        """Number of draws in the next block."""

    def take(self, draw: Draw) -> None:
        """Add a draw. The network runs immediately with the new draw, or later with several draws at once."""
        if not self._work:
            num_weights = sum(draw[name].numel() for name in self._model.site_names)
            self._work = max(num_weights * num_rows(self._x), 1)
            is_small = self._work <= self._limits.work_of_draw and num_weights <= self._limits.weights
            self._is_little = self._may_join and is_small
        if self._at_once is None:
            before = (State(self._model.network.modules()), generators_of_others()) if self._is_little else None
            self._outputs.append(self._output(draw))
            if before is not None:
                self._is_little = before[0].is_same(deep=True) and before[1] == generators_of_others()
        is_whole = self._at_once is not None or self._is_little
        self.draws.append(draw if is_whole else {name: draw[name] for name in self._of_likelihood})

    def _output(self, draw: Draw) -> Tensor:
        return remembered(self._model, self._memory, partial(self._model.output_given, draw, self._x))

    def run(self) -> tuple[Tensor, Draw]:
        """Return the outputs for all K draws, shape (K, N, ...), and the K draws of the likelihood's variables."""
        draws, self.draws = self.draws, []
        at_once, is_first = self._at_once, self.size == 1
        if at_once is None:
            outputs, self._outputs = torch.stack(self._outputs), []
        elif self._memory.will_watch():  # the network was changed since the last block
            outputs = torch.stack([self._output(draw) for draw in draws])
        else:
            weights = self._weights(draws)

            def run() -> Tensor:
                with self._memory.during({}):
                    return at_once(weights, self._x)

            outputs = remembered(self._model, self._memory, run)
        if is_first and len(draws) > 1:
            self._choose(draws, outputs)
        return outputs, {name: torch.stack([draw[name] for draw in draws]) for name in self._of_likelihood}

    def _weights(self, draws: list[Draw]) -> Draw:
        """Return the weights of K draws, ``{path: shape (K, *parameter)}``."""
        joined = {name: torch.stack([draw[name] for draw in draws]) for name in self._model.site_names}
        return {path: joined[name] for name in joined for path in self._model.parameter_paths[name]}

    def _choose(self, draws: list[Draw], outputs: Tensor) -> None:
        """Choose the size of the next block, and whether the network runs for further draws one by one or at once."""
        numbers, most = max(outputs[0].numel(), 1), MOST_DRAWS
        if self._is_little and not self._memory.will_watch():
            weights = self._weights(draws)
            with suppress(Diverged):
                found = faster(self._model.network, weights, self._x, outputs, partial(self._memory.during, {}))
                if found is not None:
                    most = self._limits.num_bytes // max(found[1], 1)
                    self._at_once = found[0] if most > 1 else None
            numbers = max(numbers, *(value[0].numel() for value in weights.values()))
        self._is_little = self._at_once is not None
        most = most if self._is_little else MOST_DRAWS
        limits = self._limits
        self.size = max(1, min(most, MOST_DRAWS, limits.numbers // numbers, limits.work // self._work))


def remembered(model: BayesianModel, memory: Memory, run: Callable[[], T]) -> T:
    """Call `run`, which runs the network with the results in `memory`, and again without them if it fails."""
    if not memory.is_used:
        with model.interception.remembering(memory):
            return run()
    with undone(model.device) as undo:
        try:
            with model.interception.remembering(memory):
                return run()
        except Exception:  # code outside of torch may need a value that was not stored
            memory.forget()
            undo()
            return run()


def faster(
    net: nn.Module,
    example: Mapping[str, Tensor],
    x: Inputs,
    expected: Tensor,
    replayed: Callable[[], AbstractContextManager[None]],
) -> tuple[BatchedNetwork, int] | None:
    """Return a function that runs a network for many draws, and its memory in bytes per draw; None if none fits.

    `example` has K draws of all random weights, by path. A function fits if its outputs are `expected` up to rounding,
    shape (K, N, ...). Each trial run takes place in a context that `replayed` returns.
    """
    if expected.is_meta:  # there are no numbers to compare
        return None
    tolerance = torch.finfo(expected.dtype).eps ** 0.75 * _magnitudes(expected)
    with filtered_warnings("error", "There is a performance drop"):  # with this warning `vmap` is as slow as a loop
        chain = as_chain(net, set(example), x)
        for run in (chain, partial(vectorised, net)):
            if run is None:
                continue
            try:
                with replayed(), nullcontext() if run is chain else _Largest() as largest:
                    found = run(example, x)
            except (RuntimeError, ValueError, NotImplementedError, UserWarning):
                continue
            if found.shape == expected.shape and bool(((found - expected).abs() <= tolerance).all()):
                num_bytes = _bytes_of_chain(net, example, expected) if largest is None else largest.num_bytes
                return run, num_bytes // len(expected)
    return None


def _bytes_of_chain(net: nn.Module, example: Mapping[str, Tensor], expected: Tensor) -> int:
    """Return the bytes of the largest tensor in a chain; :class:`_Largest` would load torch's compiler."""
    width = max(layer.out_features for layer in net.modules() if isinstance(layer, nn.Linear))
    numbers = max(expected.shape[:2].numel() * width, *(value.numel() for value in example.values()))
    return numbers * expected.element_size()


class _Largest(TorchDispatchMode):
    """A dispatch mode of torch that records the size of the largest tensor that operations create."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = (tensor.untyped_storage().nbytes() for tensor in tensors_within(result))
        self.num_bytes = max(self.num_bytes, *sizes, 0)
        return result


def _magnitudes(outputs: Tensor) -> Tensor:
    """Return absolute values, at least their lower quartile: a small output may be a difference of large terms."""
    sizes = outputs.abs()
    quartile = sizes.flatten().kthvalue((sizes.numel() + 3) // 4).values  # a mask of -1e9 would dominate a mean
    return sizes.clamp(min=quartile)
