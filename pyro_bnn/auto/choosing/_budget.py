"""How long chains may be in a given time.

Lengths follow from the numbers of rows and weights alone unless a limit in seconds is given, so that fits repeat.
"""

from dataclasses import dataclass

SECONDS_PER_ROW = 0.06
"""CPU seconds of a fit for each row: half a minute on two cores for a thousand. Heuristic, as are the next three."""

FEWEST_SECONDS, MOST_SECONDS = 20.0, 300.0
"""CPU seconds of a fit without a limit of its own, whatever the number of rows."""

SECONDS_PER_PRODUCT, SECONDS_PER_WEIGHT = 3e-10, 4e-8
"""CPU seconds of a gradient in C, in single precision, for each pair of a row and a weight, and for each weight; from
networks of 450 to 700 weights on 691 rows."""

SEARCH = 0.35
"""Share of the time in which candidates are compared, if there are several; heuristic."""

DESCENT, WARMUP = 0.15, 0.65
"""Share of a chain's gradients that find its mode, and share of the other ones that warm up; heuristic."""

MOST_DESCENT, MOST_STEPS = 2000, 10_000
"""Steps of Adam and of a chain beyond which predictions hardly got better on UCI tables; heuristic."""

FEWEST_STEPS = 1000
"""Steps of a chain with fewer of which a variational fit is the better choice; heuristic."""

NUM_CHAINS, NUM_SEARCH_CHAINS = 8, 4
"""Chains of the fit, and of a comparison."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of a run of chains from modes.

    Args:
        num_chains: Number of chains.
        num_descent: Steps of Adam that find each chain's mode.
        num_warmup: Steps of warm-up of each chain.
        num_samples: Further steps of each chain.
    """

    num_chains: int
    num_descent: int
    num_warmup: int
    num_samples: int

    @property
    def num_steps(self) -> int:
        """Steps of each chain."""
        return self.num_warmup + self.num_samples


@dataclass(frozen=True)
class Budget:
    """The time of a fit.

    Args:
        seconds: CPU seconds.
        slowness: CPU seconds that a gradient takes here, in units of its nominal time.
        most_steps: Limit of the steps of warm-up and, likewise, of those after it.
    """

    seconds: float
    slowness: float = 1.0
    most_steps: int = MOST_STEPS

    @classmethod
    def of_rows(cls, num_rows: int, most_steps: int | None = None) -> "Budget":
        """The time that a table of so many rows gets if nobody limits it."""
        seconds = min(max(SECONDS_PER_ROW * num_rows, FEWEST_SECONDS), MOST_SECONDS)
        return cls(seconds, most_steps=MOST_STEPS if most_steps is None else most_steps)

    def gradient(self, num_rows: int, num_weights: int) -> float:
        """CPU seconds of a gradient."""
        return self.slowness * (SECONDS_PER_PRODUCT * num_rows + SECONDS_PER_WEIGHT) * num_weights

    def lengths(self, share: float, num_rows: int, num_weights: int, num_chains: int) -> Lengths:
        """Lengths of chains that take a share of the time together."""
        gradients = share * self.seconds / self.gradient(num_rows, num_weights) / num_chains
        descent = min(DESCENT * gradients, MOST_DESCENT)
        steps = (gradients - descent) / 2  # a step takes two gradients
        warmup, samples = (min(part * steps, self.most_steps) for part in (WARMUP, 1 - WARMUP))
        return Lengths(num_chains, max(int(descent), 1), max(int(warmup), 1), max(int(samples), 1))
