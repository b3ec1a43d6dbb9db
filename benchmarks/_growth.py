"""How the time and memory of a step grow with the network, and the memory of predictions; each in its own process."""

import functools
import gc
import itertools
import math
import statistics
from collections.abc import Callable

import pyro_bnn as pb

from . import _memory
from ._measure import Cell, Contender, in_new_process
from ._steps import Deterministic, FitSVI, HandWritten, ResidualSetting, Setting, natural

NUM_LAYERS = 4
BATCH_SIZE = 16
BYTES_PER_WEIGHT = 8
"""Bytes of a location and a scale in float32. Memory is given in this unit."""

BYTES_NEEDED = 80
"""Heuristic: a network is left out if less memory than this is free for each weight."""

SMALLEST_OF_SLOPE, SMALLEST_OF_MEMORY = 1e6, 1e7
"""With fewer weights, small operations dominate the time of a step, and libraries dominate its memory."""


def sizes(num_weights: float) -> tuple[int, ...]:
    """Sizes of layers with as many inputs as outputs, which have about this many weights together."""
    return (math.isqrt(round(num_weights / NUM_LAYERS)),) * (NUM_LAYERS + 1)


def one_size(num_weights: float, device: str, by_hand: bool) -> dict[str, float] | None:
    """Number of weights, seconds of a step and peak bytes of one fit; None if the network does not fit."""
    if BYTES_NEEDED * num_weights > _memory.available(device):
        return None
    make = HandWritten if by_hand else FitSVI
    make(Setting((8, 8, 8), batch_size=BATCH_SIZE, num_steps=2, device=device)).burst()  # one-time cost of libraries
    num_steps = 1 if num_weights > 3e7 else 5 if num_weights > 3e6 else 20
    setting = Setting(sizes(num_weights), batch_size=BATCH_SIZE, num_steps=num_steps, device=device)
    assert setting.data
    before = _memory.start(device)
    contender: Contender = make(setting)
    if by_hand:
        contender.burst()  # `fit_svi` runs such an epoch within its burst
    seconds = [contender.burst()]
    used = _memory.peak(device) - before
    for _ in range(0 if num_weights > 3e7 else 2):
        gc.collect()
        seconds.append(contender.burst())
    num = sum(a * b + b for a, b in itertools.pairwise(setting.sizes))
    return {"num": num, "seconds": statistics.median(seconds), "bytes": used}


@functools.cache
def all_sizes(numbers: tuple[float, ...], device: str, threads: int, by_hand: bool) -> list[dict[str, float]]:
    results = [in_new_process("_growth:one_size", number, device, by_hand, threads=threads) for number in numbers]
    return [result for result in results if isinstance(result, dict)]


def slope(numbers: tuple[float, ...], threads: int, by_hand: bool, device: str) -> Cell:
    """Slope of log time against the log of the number of weights, by least squares, for the larger networks."""
    results = all_sizes(numbers, device, threads, by_hand)
    upper = [r for r in results if r["num"] >= 0.9 * min(SMALLEST_OF_SLOPE, sorted(numbers)[-2])]
    line = statistics.linear_regression(*([math.log(r[key]) for r in upper] for key in ("num", "seconds")))
    shown = [f"{r['num']:.1e}: {1e9 * r['seconds'] / r['num']:.3g}" for r in results]
    return Cell([line.slope], detail=f"ns per weight: {', '.join(shown)}{_missing(results, numbers)}")


def memory(numbers: tuple[float, ...], threads: int, by_hand: bool, device: str) -> Cell:
    """Peak memory of model, guide, optimizer and steps / that of locations and scales, for the largest network."""
    results = all_sizes(numbers, device, threads, by_hand)
    upper = [r for r in results if r["num"] >= 0.9 * min(SMALLEST_OF_MEMORY, max(numbers))]
    ratios = {r["num"]: r["bytes"] / (BYTES_PER_WEIGHT * r["num"]) for r in upper}
    shown = [f"{num:.1e} weights: {ratio:.2f}" for num, ratio in ratios.items()]
    return Cell([ratios[max(ratios)]], detail=f"{', '.join(shown)}{_missing(results, numbers)}")


def _missing(results: list, numbers: tuple[float, ...]) -> str:
    return "" if len(results) == len(numbers) else f"; {len(numbers) - len(results)} did not fit into memory"


def prediction_memory(layers: list[int], num_rows: int, num_samples: int, device: str) -> int:
    """Peak bytes of `predict` above those of model, guide and data."""
    used = 0
    for shape, rows, count in ((layers[-2:], 2, 1), (layers, num_rows, num_samples)):  # first: one-time costs
        setting = Setting(tuple(shape), batch_size=rows, num_steps=1, device=device)
        contender = FitSVI(setting)
        x, _ = setting.data
        before = _memory.start(device)
        pb.predict(contender.model, contender.guide, x, num_samples=count)
        used = _memory.peak(device) - before
    return used


def residual_memory(name: str, batch_size: int, width: int, device: str) -> int:
    """Peak bytes of a fit of ResNet-20 above those of the data: network, guide, optimizer, activations."""
    make = {"natural-gradient": natural, "SVI": FitSVI, "deterministic": Deterministic}[name]
    make(ResidualSetting(batch_size=2, num_steps=1, width=1, device=device)).burst()  # one-time cost of libraries
    return _peak(make, ResidualSetting(batch_size=batch_size, num_steps=2, width=width, device=device), num_bursts=2)


def peak_vectors(num_weights: float, device: str, is_deterministic: bool) -> float:
    """Peak memory of a fit with its network, in units of a vector of all weights; for a process of its own."""
    make = Deterministic if is_deterministic else natural
    make(Setting((8, 8, 8), batch_size=BATCH_SIZE, num_steps=2, device=device)).burst()  # one-time cost of libraries
    setting = Setting(sizes(num_weights), batch_size=BATCH_SIZE, num_steps=2, device=device)
    used = _peak(make, setting, num_bursts=1)
    num = sum(p.numel() for p in setting.net().parameters()) if device == "cpu" else num_weights
    return used / (4 * num)  # float32


def natural_memory(num_weights: float, threads: int, device: str) -> Cell:
    """Number of vectors that a fit by natural gradients takes more than a deterministic fit with Adam."""
    found = [
        in_new_process("_growth:peak_vectors", num_weights, device, is_plain, threads=threads, returns_memory=True)
        for is_plain in (False, True)
    ]
    ours, plain = (float(str(value)) for value in found)
    return Cell([ours - plain], detail=f"{ours:.2f} and {plain:.2f} vectors of {num_weights:.0e} weights")


def _peak(make: Callable[[Setting], Contender], setting: Setting, num_bursts: int) -> int:
    """Peak bytes of a fit above those of the data."""
    assert setting.data
    gc.collect()
    before = _memory.start(setting.device)
    contender = make(setting)
    for _ in range(num_bursts):
        contender.burst()
    return _memory.peak(setting.device) - before
