"""How a step's time and memory grow with the network."""

import functools
import math

import pyro_bnn as pb

from . import _memory
from ._measure import Cell, in_new_process
from ._steps import FitSVI, Setting

NUM_LAYERS = 4
BYTES_PER_WEIGHT = 8
"""Location and scale in float32: what memory is measured in."""

BYTES_NEEDED = 80
"""Heuristic: with less memory than this for each weight a network is left out."""

SMALLEST_OF_SLOPE, SMALLEST_OF_MEMORY = 1e6, 1e7
"""Below, a step's time is that of its many small operations, and its memory that of the libraries."""


def sizes(num_weights: float) -> tuple[int, ...]:
    """Square layers that have about this many weights together."""
    return (math.isqrt(round(num_weights / NUM_LAYERS)),) * (NUM_LAYERS + 1)


def one_size(num_weights: float, device: str) -> dict[str, float] | None:
    """Weights, and seconds and peak bytes of `fit_svi` on them; None if they do not fit. For a process of its own."""
    if BYTES_NEEDED * num_weights > _memory.available(device):
        return None
    FitSVI(Setting((8, 8, 8), batch_size=16, num_steps=2, device=device)).burst()  # what libraries take once
    setting = Setting(sizes(num_weights), batch_size=16, num_steps=5 if num_weights > 1e6 else 50, device=device)
    assert setting.data
    before = _memory.start(device)
    contender = FitSVI(setting)
    seconds = [contender.burst() for _ in range(1 if num_weights > 3e7 else 3)]
    num = sum(loc.numel() for loc in contender.guide.locations().values())
    return {"num": num, "seconds": sorted(seconds)[len(seconds) // 2], "bytes": _memory.peak(device) - before}


@functools.cache
def all_sizes(numbers: tuple[float, ...], device: str, threads: int) -> list[dict[str, float]]:
    results = [in_new_process("_growth:one_size", number, device, threads=threads) for number in numbers]
    return [result for result in results if isinstance(result, dict)]


def slope(numbers: tuple[float, ...], threads: int, device: str) -> Cell:
    """Of log time over log weights, by least squares, for the larger networks."""
    results = all_sizes(numbers, device, threads)
    upper = [r for r in results if r["num"] >= 0.9 * min(SMALLEST_OF_SLOPE, sorted(numbers)[-2])]
    x, y = ([math.log(r[key]) for r in upper] for key in ("num", "seconds"))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    value = covariance / sum((a - mean_x) ** 2 for a in x)
    shown = [f"{r['num']:.1e}: {1e9 * r['seconds'] / r['num']:.3g}" for r in results]
    return Cell([value], detail=f"ns per weight: {', '.join(shown)}{_missing(results, numbers)}")


def memory(numbers: tuple[float, ...], threads: int, device: str) -> Cell:
    """Peak memory of model, guide, optimizer and steps over that of the guide's parameters, largest network."""
    results = all_sizes(numbers, device, threads)
    upper = [r for r in results if r["num"] >= 0.9 * min(SMALLEST_OF_MEMORY, max(numbers))]
    ratios = {r["num"]: r["bytes"] / (BYTES_PER_WEIGHT * r["num"]) for r in upper}
    shown = [f"{num:.1e} weights: {ratio:.2f}" for num, ratio in ratios.items()]
    return Cell([ratios[max(ratios)]], detail=f"{', '.join(shown)}{_missing(results, numbers)}")


def _missing(results: list, numbers: tuple[float, ...]) -> str:
    return "" if len(results) == len(numbers) else f"; {len(numbers) - len(results)} did not fit into memory"


def prediction_memory(layers: list[int], num_rows: int, num_samples: int, device: str) -> int:
    """Peak bytes of `predict` above those of model, guide and data. For a process of its own."""
    small, large = (
        Setting(tuple(s), batch_size=n, num_steps=1, device=device) for s, n in ((layers[-2:], 2), (layers, num_rows))
    )
    for setting, count in ((small, 1), (large, num_samples)):
        contender = FitSVI(setting)
        x, _ = setting.data
        before = _memory.start(device)
        pb.predict(contender.model, contender.guide, x, num_samples=count)
    return _memory.peak(device) - before
