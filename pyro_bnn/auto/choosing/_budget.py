"""How long a fit takes. Without a time limit, the number of steps depends only on the data and the network."""

import importlib
import math
import time
from dataclasses import dataclass

import torch

from ...inference.mcmc import MCLMC

SECONDS_PER_ROW = 0.06  # heuristic: CPU seconds of a fit for each row; 1000 rows take half a minute on two cores
FEWEST_SECONDS, MOST_SECONDS = 20.0, 300.0  # heuristic: least and most CPU seconds of a fit without a limit of the user
SECONDS_PER_PRODUCT = 1.8e-10  # of a gradient in C, for each row and weight; 0.4e-10 to 1.5e-10 were measured
SECONDS_PER_WEIGHT = 4e-8  # of a gradient in C, for each weight
SEARCH = 0.35  # heuristic: share of the time that is used to compare candidates, if there are several
DESCENT, WARMUP = 0.15, 0.65  # heuristic: shares of a chain's gradients for the mode, and of its steps for the warm-up
MOST_DESCENT, MOST_STEPS = 2000, 10_000  # heuristic: steps of Adam, and of a chain; more hardly improve predictions
FINE_ENERGY_ERROR = 0.005  # heuristic: energy error of the longest chains
FEWEST_STEPS = 1000  # heuristic: if a chain has fewer steps than this, a variational fit is better
PROBE_SECONDS = 0.1  # heuristic: CPU seconds over which the load of the machine is measured
NUM_CHAINS, NUM_SEARCH_CHAINS = 8, 4  # number of chains in the fit, and in each run that compares models
MORE, FULL = 4.0, 0.5  # heuristic: an advised limit is for at most `MORE` fits; a full one takes this share of its time
MOST_SLOW = 2.0  # heuristic: a busy machine gets at most this multiple of the time, since other programs may end


def energy_error(*, is_longest: bool) -> float:
    """Return the energy error of MCLMC, which is smaller for the longest chains.

    A smaller energy error means smaller steps and less bias, but only the longest chains have enough steps to explore
    their modes by small steps.
    """
    return FINE_ENERGY_ERROR if is_longest else MCLMC.energy_error


@dataclass(frozen=True)
class Lengths:
    """The number of chains, and the number of steps that each chain makes."""

    num_chains: int
    num_descent: int  # steps of Adam that find each chain's mode
    num_warmup: int  # steps of warm-up of each chain
    num_samples: int  # further steps of each chain

    @property
    def num_steps(self) -> int:
        return self.num_warmup + self.num_samples

    @property
    def energy_error(self) -> float:
        return energy_error(is_longest=self.num_steps >= 2 * MOST_STEPS)


@dataclass(frozen=True)
class Budget:
    """How long a fit may take, and how many steps its chains may make."""

    seconds: float  # CPU seconds
    most_steps: int  # most steps of warm-up, and most steps after the warm-up

    @classmethod
    def of_rows(cls, num_rows: int) -> "Budget":
        """Return the budget for a table of `num_rows` rows, without a time limit."""
        seconds = min(max(SECONDS_PER_ROW * num_rows, FEWEST_SECONDS), MOST_SECONDS)
        return cls(seconds, MOST_STEPS)

    @staticmethod
    def gradient(num_rows: int, num_weights: int) -> float:  # CPU seconds
        return (SECONDS_PER_PRODUCT * num_rows + SECONDS_PER_WEIGHT) * num_weights

    def lengths(self, share: float, num_rows: int, num_weights: int, num_chains: int) -> Lengths:
        """Return how many steps the chains can make if together they take the fraction `share` of the time."""
        gradients = share * self.seconds / self.gradient(num_rows, num_weights) / num_chains
        descent = min(DESCENT * gradients, MOST_DESCENT)
        steps = (gradients - descent) / 2  # a step takes two gradients
        warmup, samples = (min(part * steps, self.most_steps) for part in (WARMUP, 1 - WARMUP))
        return Lengths(num_chains, max(int(descent), 1), max(int(warmup), 1), max(int(samples), 1))


@dataclass(frozen=True)
class Deadline:
    seconds: float
    begin: float  # by the clock `time.perf_counter`
    start: float = 0.0  # seconds of preparation before the beginning

    @classmethod
    def after(cls, seconds: float | None, begin: float | None = None) -> "Deadline | None":
        """Return the deadline of a call that began at `begin`, by default now; None without a limit."""
        if seconds is None:
            return None
        begin = time.perf_counter() if begin is None else begin
        importlib.import_module("torch._dynamo")  # seconds, which the measured speed of a fit should not contain
        return cls(seconds, begin)

    def at(self, share: float) -> float:
        """Return the time, by the clock `time.perf_counter`, at which the fraction `share` of the limit has passed."""
        return self.begin + share * self.seconds

    def left(self, share: float = 1.0) -> float:
        """Return how many seconds remain until the time that :meth:`at` returns; negative if this time has passed."""
        return self.at(share) - time.perf_counter()

    def rest(self) -> "Deadline":
        """Return a deadline that begins now, so that shares of its limit are shares of the time that is left."""
        return Deadline(self.left(), time.perf_counter(), self.start + self.used)

    def longer(self, num_rows: int, times: float = MORE) -> int:
        """Return the limit that is advised because chains need `times` the time that is left; see `longer_limit`."""
        return longer_limit(self.start + self.used, max(self.left(), 0.0), num_rows, times, min(slowdown(), MOST_SLOW))

    @property
    def used(self) -> float:  # seconds since the beginning
        return time.perf_counter() - self.begin


def num_cores() -> int:
    """Return on how many cores a fit runs all the time."""
    return min(torch.get_num_threads(), NUM_SEARCH_CHAINS)


def longer_limit(start: float, seconds: float, num_rows: int, times: float = MORE, slow: float = 1.0) -> int:
    """Return the time limit to advise if chains need `times` the `seconds` they had, or 0 if it is unlikely to suffice.

    `start` has the seconds before the fit, such as imports. Chains get at least the time of a fit without a limit, on a
    machine that is slower by the factor `slow` since other programs run.
    """
    usual = slow * Budget.of_rows(num_rows).seconds / num_cores()
    if times > MORE and seconds >= FULL * usual:
        return 0
    return 10 * math.ceil((start + max(min(times, MORE) * seconds, usual)) / 10)


def slowdown() -> float:
    """Return the seconds that pass while this thread uses one second of CPU time: more than 1 if other programs run."""
    begin, begin_of_thread = time.perf_counter(), time.thread_time()
    while (used := time.thread_time() - begin_of_thread) < PROBE_SECONDS:
        sum(range(1000))
    return (time.perf_counter() - begin) / used
