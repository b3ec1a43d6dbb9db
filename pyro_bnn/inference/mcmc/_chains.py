"""Runs of many chains from warm-up to the last draw, with any sampler."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..._core import checks as _checks
from ..._core.scope import Stream
from ._adaptation import AnyAdaptation
from ._kernel import Draws, Kernel

RECORDED = ("z", "log_density", "energy", "accept", "diverging", "num_steps", "energy_error")
"""What is kept of `Draws`, if the sampler has it."""


@dataclass
class Chain:
    """One chain: first it learns its step size and mass, then it records draws, then it idles until all have theirs.

    Args:
        index: Its row in the kernel's tensors.
        num_warmup: Number of draws that only serve adaptation.
        num_samples: Number of draws to record.
        adaptation: What it has learned.
    """

    index: int
    num_warmup: int
    num_samples: int
    adaptation: AnyAdaptation
    num_drawn: int = 0
    records: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in RECORDED})

    @property
    def is_done(self) -> bool:
        """Whether the chain has all of its draws."""
        return self.num_drawn >= self.num_warmup + self.num_samples

    def take(self, draws: Draws, kernel: Kernel) -> None:
        """Learn from a draw in warm-up, and record it afterwards."""
        if self.num_drawn < self.num_warmup:
            find_step = functools.partial(kernel.find_step, self.index)
            self.adaptation.update(self.num_drawn, draws, self.index, find_step)
            self.adapt(kernel)
        else:
            for name, values in self.records.items():
                if (value := getattr(draws, name)) is not None:
                    values.append(value[self.index].clone())
        self.num_drawn += 1

    def adapt(self, kernel: Kernel) -> None:
        """Give the kernel what this chain has learned."""
        self.adaptation.apply(kernel, self.index)

    def recorded(self, name: str) -> Tensor | None:
        """The recorded values of a field of `Draws`, shape (S, ...); None if there are none."""
        return torch.stack(self.records[name]) if self.records[name] else None

    def state(self) -> dict[str, Any]:
        """What the chain has learned and recorded, as plain data."""
        records = {name: self.recorded(name) for name in self.records}
        return {"num_drawn": self.num_drawn, "adaptation": self.adaptation.state(), "records": records}

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from what :meth:`state` returned.

        Raises:
            ValueError: If there are more or fewer records than draws.
        """
        self.num_drawn = _checks.at_least("num_drawn", state["num_drawn"], 0)
        self.adaptation.restore(state["adaptation"])
        num_recorded = max(self.num_drawn - self.num_warmup, 0)
        for name in self.records:
            values = state["records"][name]
            self.records[name] = [] if values is None else list(values.to(device, copy=True))
            if len(self.records[name]) not in ({num_recorded} if name == "z" else {0, num_recorded}):
                raise ValueError(
                    f"a chain of {num_recorded} draws must have as many values of `{name}`, got "
                    f"{len(self.records[name])}; pass another file."
                )


def run_chains(
    kernel: Kernel, chains: Sequence[Chain], stream: Stream, after_each: Callable[[], None], *, progress: bool
) -> None:
    """Warm up and sample, until every chain has its draws.

    Args:
        kernel: The sampler on its potential.
        chains: The chains, in the order of the kernel's rows.
        stream: Random numbers. Between two draws other threads may take their turn.
        after_each: Function that is called whenever chains have made a draw.
        progress: Show a progress bar.
    """
    total, done = sum(chain.num_warmup + chain.num_samples for chain in chains), sum(c.num_drawn for c in chains)
    with tqdm(total=total, initial=done, disable=not progress, unit="draw") as bar:
        while not all(chain.is_done for chain in chains):
            kernel.is_needed[:] = [not chain.is_done for chain in chains]
            with stream:
                draws = kernel.draw()
                for index in draws.finished.nonzero().flatten().tolist():
                    if not chains[index].is_done:
                        chains[index].take(draws, kernel)
                        bar.update()
            after_each()
