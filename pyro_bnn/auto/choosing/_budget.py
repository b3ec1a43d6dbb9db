"""The lengths of chains for a given time.

Without a limit in seconds, the lengths depend only on the numbers of rows and weights, so that fits are reproducible.
"""

from dataclasses import dataclass

SECONDS_PER_ROW = 0.06
"""CPU seconds of a fit for each row: half a minute on two cores for a thousand rows; heuristic."""

FEWEST_SECONDS, MOST_SECONDS = 20.0, 300.0
"""Least and most CPU seconds of a fit if the user sets no limit; heuristic."""

SECONDS_PER_PRODUCT, SECONDS_PER_WEIGHT = 1.8e-10, 4e-8
"""CPU seconds of a gradient in C, in single precision, for each pair of a row and a weight, and for each weight.

Networks of 420 to 3400 weights on 150 to 7000 rows took 0.4e-10 to 1.5e-10 for each pair on one machine.
`SECONDS_PER_PRODUCT` is larger, for slower machines."""

SEARCH = 0.35
"""Share of the time for comparing candidates, if there are several; heuristic."""

DESCENT, WARMUP = 0.15, 0.65
"""Share of a chain's gradients for finding its mode, and share of its steps for warm-up; heuristic."""

MOST_DESCENT, MOST_STEPS = 2000, 10_000
"""Most steps of Adam, and of a chain; more steps hardly improved predictions on UCI tables. Heuristic."""

MOST_STEPS_IN_TIME = 50_000
"""Most steps of a chain if the user sets a time limit, and so may want longer chains. Heuristic."""

FEWEST_STEPS = 1000
"""With fewer steps of a chain, a variational fit is better; heuristic."""

NUM_CHAINS, NUM_SEARCH_CHAINS = 8, 4
"""Number of chains of the fit, and of each run of the comparison."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of a run of chains from modes."""

    num_chains: int
    num_descent: int  # steps of Adam that find each chain's mode
    num_warmup: int  # steps of warm-up of each chain
    num_samples: int  # further steps of each chain

    @property
    def num_steps(self) -> int:
        return self.num_warmup + self.num_samples


@dataclass(frozen=True)
class Budget:
    """The time of a fit."""

    seconds: float  # CPU seconds
    slowness: float = 1.0  # CPU time of a gradient on this machine, divided by its nominal time
    most_steps: int = MOST_STEPS  # most steps of warm-up, and most steps after the warm-up

    @classmethod
    def of_rows(cls, num_rows: int, most_steps: int = MOST_STEPS) -> "Budget":
        """The time for a table if the user sets no limit."""
        seconds = min(max(SECONDS_PER_ROW * num_rows, FEWEST_SECONDS), MOST_SECONDS)
        return cls(seconds, most_steps=most_steps)

    def gradient(self, num_rows: int, num_weights: int) -> float:
        """CPU seconds of a gradient."""
        return self.slowness * (SECONDS_PER_PRODUCT * num_rows + SECONDS_PER_WEIGHT) * num_weights

    def lengths(self, share: float, num_rows: int, num_weights: int, num_chains: int) -> Lengths:
        """Lengths of chains that together take this share of the time."""
        gradients = share * self.seconds / self.gradient(num_rows, num_weights) / num_chains
        descent = min(DESCENT * gradients, MOST_DESCENT)
        steps = (gradients - descent) / 2  # a step takes two gradients
        warmup, samples = (min(part * steps, self.most_steps) for part in (WARMUP, 1 - WARMUP))
        return Lengths(num_chains, max(int(descent), 1), max(int(warmup), 1), max(int(samples), 1))
