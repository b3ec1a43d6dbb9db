"""Steps of natural-gradient variational inference: ours, and those of the released package `ivon-opt`."""

import gc
import importlib

from torch import Tensor
from torch.nn import functional as F

from . import _memory
from ._growth import sizes
from ._measure import Cell, in_new_process
from ._steps import INITIAL_SCALE, PRIOR_SCALE, Deterministic, Loop, Setting, natural

BATCH_SIZE = 16
BYTES = 4
"""Bytes of a weight in float32."""


class Ivon(Loop):
    """The released package, with the same prior, data and initial scales."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._net = setting.net()
        num_rows, precision = setting.num_rows, PRIOR_SCALE**-2
        self._optimizer = importlib.import_module("ivon").IVON(
            self._net.parameters(),
            lr=0.1,
            ess=num_rows,
            weight_decay=precision / num_rows,
            hess_init=(INITIAL_SCALE**-2 - precision) / num_rows,
            beta2=0.999,
            rescale_lr=False,
        )

    def step(self, x: Tensor, y: Tensor) -> float:
        with self._optimizer.sampled_params(train=True):
            self._optimizer.zero_grad()
            loss = F.cross_entropy(self._net(x), y)
            loss.backward()
        self._optimizer.step()
        return loss.item()


def peak_vectors(num_weights: float, device: str, is_deterministic: bool) -> float:
    """Peak memory of a fit with its network, in units of a vector of all weights; for a process of its own."""
    make = Deterministic if is_deterministic else natural
    make(Setting((8, 8, 8), batch_size=BATCH_SIZE, num_steps=2, device=device)).burst()  # one-time cost of libraries
    setting = Setting(sizes(num_weights), batch_size=BATCH_SIZE, num_steps=2, device=device)
    assert setting.data
    gc.collect()
    before = _memory.start(device)
    make(setting).burst()
    used = _memory.peak(device) - before
    num = sum(p.numel() for p in setting.net().parameters()) if device == "cpu" else num_weights
    return float(used / (BYTES * num))


def memory(num_weights: float, threads: int, device: str) -> Cell:
    """Number of vectors that a fit takes more than a deterministic fit with Adam."""
    found = [
        in_new_process("_natural:peak_vectors", num_weights, device, is_plain, threads=threads, returns_memory=True)
        for is_plain in (False, True)
    ]
    natural, plain = (float(str(value)) for value in found)
    return Cell([natural - plain], detail=f"{natural:.2f} and {plain:.2f} vectors of {num_weights:.0e} weights")
