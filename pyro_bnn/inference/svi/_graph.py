"""Record steps on a GPU as CUDA graphs and replay them. A replay launches all kernels of a step at once."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..._core.inputs import Batch, leaves, map_inputs, named_leaves
from ._natural import NaturalGradient
from ._optimizers import make_recordable
from ._step import GradientStep, StepTerms

NUM_WARMUP = 3  # ordinary steps before a recording, which initialise libraries and the state of the optimizer
MOST_SEEN = 1000  # heuristic: most kinds of steps that are remembered, in case the KL weight changes in each step
MOST_GRAPHS = 4  # heuristic: most kinds of steps that are recorded, since each recording takes a step to make


class RecordingError(ValueError):
    """A step cannot be recorded."""


@dataclass(frozen=True)
class Recording:
    """A recorded step, which reads its batch from `inputs`, and writes to `result`."""

    inputs: Batch
    result: Tensor
    graph: Any


class GraphStep:
    """Records one step of each kind (batch shape and KL weight) as a CUDA graph and replays it.

    A step is recorded if a step of its kind has run before, and the optimizer's numbers, such as the learning rate,
    have not changed since. A step that cannot be recorded causes an error if `is_required`, else a warning.
    """

    def __init__(self, step: GradientStep, *, is_required: bool = True) -> None:
        self._step, self.optimizer, self._is_required = step, step.optimizer, is_required
        self._numbers: object = None
        self._num_warm: dict[object, int] = {}  # ordinary steps by shapes
        self._seen: set[object] = set()
        self._recordings: dict[object, Recording] = {}
        self._outdated: list[Recording] = []  # kept until the next recording, which reuses their memory
        self._has_failed = False
        self._natural = step.optimizer if isinstance(step.optimizer, NaturalGradient) else None
        if self._natural is None:
            make_recordable(step.optimizer)
        else:
            self._natural.prepare_recording()

    def close(self) -> None:
        self._step.close()

    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        numbers = _numbers_in_groups(self.optimizer) if self._natural is None else self._natural.recorded_numbers()
        if numbers != self._numbers:
            self._outdated += self._recordings.values()
            self._recordings, self._seen, self._numbers = {}, set(), numbers
        shapes = tuple((name, leaf.shape, leaf.dtype) for name, leaf in named_leaves("batch", batch))
        kind_of_step = None if self._natural is None else self._natural.kind_of_step()
        kind = kl_weight, kind_of_step, shapes
        if kind in self._recordings:
            recording = self._recordings[kind]
            if self._natural is not None:
                self._natural.was_replayed(kl_weight)
        else:
            is_ready = self._is_ready(kind, shapes) and numbers is not None
            made = self._record(batch, kl_weight) if is_ready else None
            if made is None:
                return StepTerms(on_own_stream(lambda: self._step(batch, kl_weight).values))
            recording = self._recordings[kind] = made
        for static, leaf in zip(leaves(recording.inputs), leaves(batch), strict=True):
            static.copy_(leaf)
        recording.graph.replay()
        return StepTerms(recording.result.clone())

    def _is_ready(self, kind: object, shapes: object) -> bool:
        """Count this step, and return whether to record it."""
        num_warm = self._num_warm.get(shapes, 0)
        is_again = kind in self._seen
        self._num_warm[shapes] = num_warm + 1
        if len(self._seen) < MOST_SEEN:
            self._seen.add(kind)
        return num_warm >= NUM_WARMUP and is_again and len(self._recordings) < MOST_GRAPHS and not self._has_failed

    def _record(self, batch: Batch, kl_weight: float) -> Recording | None:
        """Record a step by running its Python code. The optimizer counts this run as a step."""
        inputs = tuple(map_inputs(torch.clone, part) for part in batch)
        result = torch.empty(4, dtype=torch.float64, device=leaves(inputs)[0].device)
        others = [*self._recordings.values(), *self._outdated]
        beside = others[0].graph if others else None
        try:
            graph = record(lambda: result.copy_(self._step(inputs, kl_weight).values), beside)
        except RecordingError as error:
            if self._is_required:
                raise
            self._has_failed = True
            warnings.warn(f"{error} All steps are ordinary ones, which takes longer.", stacklevel=2)
            return None
        self._outdated.clear()
        return Recording(inputs, result, graph)


def _numbers_in_groups(optimizer: Optimizer) -> object:
    """Return the optimizer's Python numbers, such as the learning rate. A replayed graph keeps their old values."""
    kinds = int, float, tuple
    return [
        {name: value for name, value in group.items() if isinstance(value, kinds)} for group in optimizer.param_groups
    ]


def has_graphs(device: torch.device) -> bool:
    return device.type == "cuda"


def on_own_stream(function: Callable[[], Tensor]) -> Tensor:
    """Run a function on a new CUDA stream, as torch requires for the steps before a recording."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = function()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record(function: Callable[[], object], beside: torch.cuda.CUDAGraph | None) -> torch.cuda.CUDAGraph:
    """Record the kernels that a function launches, without running them. The graph shares memory with `beside`."""
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.clone_state()
    try:
        with torch.cuda.graph(graph, pool=None if beside is None else beside.pool()):
            function()
    except RuntimeError as error:
        generator.graphsafe_set_state(state)  # torch leaves it in a state in which no random numbers can be drawn
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise RecordingError(
            f"the step could not be recorded as a CUDA graph ({str(error).splitlines()[0]}), probably because the "
            "network waits for the GPU, as `item()` and conditions on tensors do; pass `Execution(cuda_graph=False)`."
        ) from error
    return graph
