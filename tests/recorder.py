"""An imitated CUDA graph for every machine: operations are written down and computed again, without any Python code."""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_bnn.inference.svi import _graph, _svi_step
from pyro_bnn.inference.svi._optimizers import skips_on_flag
from pyro_bnn.inference.svi._step import GradientStep


class Recorder(TorchDispatchMode):
    """A context that writes down operations. A replay computes them again, with the same tensors."""

    def __init__(self):
        super().__init__()
        self._operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self._operations.append((function, args, kwargs or {}, result))
        return result

    def replay(self):
        for function, args, kwargs, result in self._operations:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(function, beside=None):
    """Stand in for `_graph.record`: the operations run at once, so that the first replay does nothing."""
    recorder, num_replays = Recorder(), 0
    with recorder:
        function()

    def replay():
        nonlocal num_replays
        num_replays += 1
        if num_replays > 1:
            with torch.no_grad():
                recorder.replay()

    return SimpleNamespace(replay=replay)


def without_waiting(monkeypatch):
    """Make fits behave as on a GPU with a fused optimizer."""
    init = GradientStep.__init__

    def patched(self, model, guide, parameters, optimizer, processes):
        init(self, model, guide, parameters, optimizer, processes)
        self.waits = not skips_on_flag(optimizer)

    monkeypatch.setattr(GradientStep, "__init__", patched)


def record_steps(monkeypatch):
    """Let fits record steps on a CPU. Returns a list that gets an element for each recording."""
    recorded = []
    without_waiting(monkeypatch)
    monkeypatch.setattr(_svi_step, "has_graphs", lambda device: True)
    monkeypatch.setattr(_graph, "on_own_stream", lambda function: function())
    monkeypatch.setattr(_graph, "record", lambda function, beside: (recorded.append(beside), record(function))[1])
    return recorded
