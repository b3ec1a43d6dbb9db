"""Ratios of the times of two contenders, goals for these ratios, and the table of ratios and goals.

Times depend on the process: for 478,410 numbers on one thread, torch's softplus takes 0.5 ms in some processes and 6 ms
in others, until the process ends. The times of `log1p`, `atanh`, pooling and large allocations vary, too, but not those
of `exp`, `log` and plain arithmetic. If other programs use the second core, times of two threads vary by milliseconds.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parent.parent


class Contender(Protocol):
    """Something that is timed in short bursts."""

    def burst(self) -> float:
        """Seconds for one unit of work: a step, a prediction, a product of matrices."""


@dataclass(frozen=True)
class Goal:
    """Goal for a median; `text` is shown in the table."""

    text: str
    is_met: Callable[[float], bool]


def at_most(limit: float, unit: str = "") -> Goal:
    return Goal(f"<= {limit:g}{unit}", lambda value: value <= limit)


def at_least(limit: float, unit: str = "") -> Goal:
    return Goal(f">= {limit:g}{unit}", lambda value: value >= limit)


def within(fraction: float) -> Goal:
    return Goal(f"1 +- {fraction:g}", lambda value: abs(value - 1) <= fraction)


@dataclass(frozen=True)
class Cell:
    """Measured values, one for each round, or the reason why there is none."""

    values: Sequence[float] = ()  # ratios, or figures in `unit`
    unit: str = ""
    detail: str = ""  # the times from which the values were computed, for the last column
    reason: str = ""
    seconds: tuple[float, ...] = ()  # medians of the two times that were divided

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def __str__(self) -> str:
        if self.reason or not self.values:
            return self.reason
        text = f"{self.median:.3g}{self.unit}"
        return text if len(self.values) == 1 else f"{text} ({self.quartiles[0]:.3g} to {self.quartiles[1]:.3g})"


@dataclass
class Row:
    """One line of the table, with goals for the medians on the CPU and on a GPU."""

    name: str  # what is divided by what
    measure: Callable[[str], Cell]  # makes the cell, on a device
    goal: Goal | None = None
    gpu_goal: Goal | None = None
    on: tuple[str, ...] = ("cpu", "cuda")
    cells: dict[str, Cell] = field(default_factory=dict)

    def run(self, device: str) -> None:
        """Measure the row. If that fails, the row contains the reason, and other rows can still be measured."""
        try:
            self.cells[device] = self.measure(device)
        except Exception as error:  # a peer may fail in any way
            text = " ".join(str(error).split())
            self.cells[device] = Cell(reason=f"not run: {type(error).__name__}: {text[:200]}")

    def is_met(self, device: str) -> bool | None:
        """Whether the median meets the goal; None without a goal or a figure."""
        goal, cell = self.goal_on(device), self.cells.get(device)
        return goal.is_met(cell.median) if goal and cell and cell.values else None

    def goal_on(self, device: str) -> Goal | None:
        return self.gpu_goal if device == "cuda" else self.goal

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        result: dict[str, object] = {"name": self.name}
        for device, cell in self.cells.items():
            goal = self.goal_on(device)
            result[device] = {
                "median": cell.median if cell.values else None,
                "quartiles": cell.quartiles if cell.values else None,
                "values": list(cell.values),
                "unit": cell.unit,
                "detail": cell.detail,
                "reason": cell.reason,
                "goal": goal.text if goal else None,
                "met": self.is_met(device),
            }
        return result


def alternate(first: Contender, second: Contender, rounds: int) -> Cell:
    """The ratio of times first / second, for each round; in a round each contender has one burst.

    An additional first round warms both up. The contender that starts changes from round to round, so that a slow drift
    of the machine does not favour either.
    """
    times: tuple[list[float], list[float]] = [], []
    for turn in range(rounds + 1):
        order = (0, 1) if turn % 2 else (1, 0)
        for index in order:
            seconds = (first, second)[index].burst()
            if turn > 0:
                times[index].append(seconds)
    a, b = (statistics.median(part) for part in times)
    ratios = [x / y for x, y in zip(*times, strict=True)]
    return Cell(ratios, detail=f"{1e3 * a:.3g} / {1e3 * b:.3g} ms", seconds=(a, b))


def in_new_process(
    function: str, *arguments: object, threads: int | None = None, returns_memory: bool = False
) -> object:
    """Call ``module:name`` of this package in a process of its own; arguments and result go through JSON.

    With `returns_memory` freed memory goes back to the system at once. Otherwise glibc keeps blocks of up to 32 MB for
    later, and the memory of a process depends on the order in which blocks are freed.
    """
    environment = {**os.environ, **({"MALLOC_MMAP_THRESHOLD_": str(2**17)} if returns_memory else {})}
    module, _, name = function.partition(":")
    code = f"import json, sys, torch; from benchmarks.{module} import {name}; "
    code += f"torch.set_num_threads({threads}); " if threads else ""
    code += f"print('RESULT', json.dumps({name}(*json.loads(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{function} ended with {done.returncode}: {last}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def import_seconds() -> float:
    """Seconds of `import pyro_bnn` after its dependencies were imported; for a process of its own."""
    import pyro
    import torch

    assert torch
    assert pyro
    begin = time.perf_counter()
    import pyro_bnn

    assert pyro_bnn
    return time.perf_counter() - begin


def show(rows: Sequence[Row]) -> str:
    """The table, in markdown."""
    lines = [
        "| measured | CPU: median (quartiles) | goal | met | GPU: median (quartiles) | goal | met | behind it |",
        "|---|--:|--:|:-:|--:|--:|:-:|---|",
    ]
    for row in rows:
        parts = [row.name]
        for device in ("cpu", "cuda"):
            goal, cell = row.goal_on(device), row.cells.get(device)
            met = {True: "yes", False: "NO", None: ""}[row.is_met(device)]
            parts += [str(cell) if cell else "", goal.text if goal else "", met]
        parts.append("; ".join(cell.detail for cell in row.cells.values() if cell.detail))
        lines.append(f"| {' | '.join(part.replace('|', '/') for part in parts)} |")
    return "\n".join(lines)
