"""Record steps on a GPU as CUDA graphs and replay them. A replay launches all kernels of a step at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..._core.inputs import Batch, leaves, map_inputs, named_leaves
from ._step import GradientStep, StepTerms

NUM_WARMUP = 3
"""Number of ordinary steps before a recording, so that libraries are initialised and the optimizer has made its
state."""

MOST_GRAPHS = 4
"""Heuristic: at most this many kinds of steps are recorded, since each recording has its own memory."""


class GraphStep:
    """Records one step of each kind as a CUDA graph and replays it. The step must not wait for the GPU.

    Steps of one kind have the same batch shape, KL weight and learning rate. Each batch is copied into the tensors that
    the recording reads. The network's Python code does not run in a replay.
    """

    def __init__(self, step: GradientStep) -> None:
        self._step, self.optimizer = step, step.optimizer
        self._rates: list[float] = []
        self._counts: dict[object, int] = {}
        self._recordings: dict[object, tuple[Batch, Tensor, Callable[[], None]]] = {}
        for group in self.optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True

    def close(self) -> None:
        self._step.close()

    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        if rates != self._rates:  # a recording contains the learning rates
            self._recordings.clear()
        self._rates = rates
        kind = (kl_weight, *((name, leaf.shape, leaf.dtype) for name, leaf in named_leaves("batch", batch)))
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if kind not in self._recordings:
            if self._counts[kind] <= NUM_WARMUP or len(self._recordings) >= MOST_GRAPHS:
                return StepTerms(on_own_stream(lambda: self._step(batch, kl_weight).values))
            self._recordings[kind] = self._record(batch, kl_weight)
        inputs, result, replay = self._recordings[kind]
        for static, leaf in zip(leaves(inputs), leaves(batch), strict=True):
            static.copy_(leaf)
        replay()
        return StepTerms(result.clone())

    def _record(self, batch: Batch, kl_weight: float) -> tuple[Batch, Tensor, Callable[[], None]]:
        inputs = tuple(map_inputs(torch.clone, part) for part in batch)
        result = torch.empty(4, dtype=torch.float64, device=leaves(inputs)[0].device)
        return inputs, result, record(lambda: result.copy_(self._step(inputs, kl_weight).values))


def on_own_stream(function: Callable[[], Tensor]) -> Tensor:
    """Run a function on a new CUDA stream. Torch requires this for the steps before a recording."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = function()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record(function: Callable[[], object]) -> Callable[[], None]:
    """Record the kernels that a function launches, without running them. Return a function that runs the recording."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay
