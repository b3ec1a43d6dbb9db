"""Runs of many chains from warm-up to the last draw, with any sampler."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from ._adaptation import Adaptation
from ._kernel import Draws, Kernel

RECORDED = ("z", "log_density", "energy", "accept", "diverging", "num_steps")
"""Fields of `Draws` that are kept."""


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
    adaptation: Adaptation
    num_drawn: int = 0
    records: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in RECORDED})

    @property
    def is_done(self) -> bool:
        """Whether the chain has all of its draws."""
        return self.num_drawn == self.num_warmup + self.num_samples

    def take(self, draws: Draws, kernel: Kernel) -> None:
        """Learn from a draw in warm-up, and record it afterwards."""
        if self.num_drawn < self.num_warmup:
            self.adaptation.update(self.num_drawn, draws.z[self.index], float(draws.accept[self.index]))
            self.adapt(kernel)
        else:
            for name, values in self.records.items():
                values.append(getattr(draws, name)[self.index].clone())
        self.num_drawn += 1

    def adapt(self, kernel: Kernel) -> None:
        """Give the kernel this chain's step size and inverse mass."""
        kernel.step_size[self.index] = self.adaptation.step_size
        kernel.inverse_mass[self.index] = self.adaptation.inverse_mass


def run_chains(
    kernel: Kernel,
    starts: Tensor,
    *,
    num_samples: int,
    num_warmup: int,
    target_accept: float,
    progress: bool,
) -> dict[str, Tensor]:
    """Warm up and sample.

    Args:
        kernel: The sampler on its potential.
        starts: First points, shape (K, P).
        num_samples: Number of draws recorded of each chain, S.
        num_warmup: Number of draws of each chain that only serve adaptation.
        target_accept: Acceptance rate that the step size is adapted to.
        progress: Show a progress bar.

    Returns:
        The recorded fields of `Draws`, each of shape (K, S, ...).
    """
    chains = []
    for index, start in enumerate(starts):
        adaptation = Adaptation(num_warmup, target_accept, kernel.find_step, start)
        chains.append(Chain(index, num_warmup, num_samples, adaptation))
        chains[index].adapt(kernel)
    with tqdm(total=len(chains) * (num_warmup + num_samples), disable=not progress, unit="draw") as bar:
        for draws in kernel.draws():
            for index in draws.finished.nonzero().flatten().tolist():
                if not chains[index].is_done:
                    chains[index].take(draws, kernel)
                    bar.update()
            if all(chain.is_done for chain in chains):
                break
    return {name: torch.stack([torch.stack(chain.records[name]) for chain in chains]) for name in RECORDED}
