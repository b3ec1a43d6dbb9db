"""Advice on what to type after a failed run. `train`, `report` and the report's page give the same advice."""

import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from .config import RunConfig

if TYPE_CHECKING:
    from ..auto.choosing import Deadline
    from ..inference.history import History  # loads torch, which `pyro-bnn --help` must not
    from ..inference.mcmc import MCMCPosterior, Modes

MANIFEST = "manifest.json"  # the file by which a folder of this program is recognised
MORE = 4  # heuristic: multiple of their time, or of their draws, that chains which are too short should get
LEAST, MOST = 1.5, 10.0  # heuristic: limits of this multiple if R-hat tells how long chains must be
TOO_EARLY = "the training stopped too early"
MORE_EPOCHS = "Raise --epochs, or --lr."  # for a variational fit that still improved


def quote(path: str | Path) -> str:
    """Return a path as the user must type it in a shell."""
    return shlex.quote(str(path))


def no_run(run: str | Path, why: str) -> FileNotFoundError:
    """Return the error for a path at which there is no run of `pyro-bnn train`."""
    return FileNotFoundError(f"{run} holds no training run{why}; make one with `pyro-bnn train`.")


def more_time(config: RunConfig, history: "History") -> str:
    """Return the remedy for a variational fit that reached the time limit before its last epoch."""
    # For tables and arrays, the next run might draw chains without --method svi.
    options = f"{'' if config.kind == 'images' else '--method svi '}--time-limit {enough_time(config, history):.0f}"
    return f"Train longer: {options} should suffice for all {config.epochs:,} epochs."


def enough_time(config: RunConfig, history: "History") -> float:
    """Return a time limit that suffices for all epochs, after a shorter limit has ended a variational fit."""
    num_done = len(history.epochs)
    seconds = math.fsum(record.seconds for record in history.epochs) / num_done * (config.epochs - num_done)
    return 10.0 * math.ceil((config.time_limit + seconds) / 10)


def time_for_chains(deadline: "Deadline", num_rows: int) -> str:
    """Return the remedy for a time limit that was too short for chains."""
    return f"For chains, which are often more accurate, pass --time-limit {deadline.longer(num_rows, MORE)}."


def limit_in(remedy: str) -> float:
    """Return the time limit that a remedy tells the user to pass; 0 if there is none."""
    found = re.search(r"--time-limit (\d+)", remedy)
    return float(found[1]) if found else 0.0


def longer_chains(config: RunConfig, posterior: "MCMCPosterior", modes: "Modes | None") -> str:
    """Return the remedy for chains that are too short."""
    if not (times := times_longer(posterior, modes)):
        return "These are the longest chains of `train`, so a longer limit does not help: judge the run by its scores."
    limit = longer_limit(config, posterior.seconds, times)
    return f"For a more exact result, {f'try --time-limit {limit:.0f}' if limit else 'pass a larger --time-limit'}."


def times_longer(posterior: "MCMCPosterior", modes: "Modes | None") -> float:
    """Return the factor by which chains that are too short must become longer; 0 if they cannot become longer.

    R-hat squared minus 1 is inversely proportional to the length. If R-hat is not known, the factor is `MORE`.
    """
    from ..auto.choosing import MOST_STEPS_MADE  # imported late: loads torch
    from ..inference.mcmc import LARGEST_WITHIN

    if MOST_STEPS_MADE in posterior.status.message:
        return 0.0
    if modes is None:
        return MORE
    r_hat = float(modes.within.max()) if modes.num_unexplored else modes.between
    times = (r_hat**2 - 1) / (LARGEST_WITHIN**2 - 1)
    return min(max(times, LEAST), MOST) if math.isfinite(times) else MORE


def longer_limit(config: RunConfig, seconds: float | None, times: float = MORE) -> float:
    """Return a longer limit for a fit; 0 if neither the old limit nor the fit's time is known."""
    return 10.0 * math.ceil(times * (config.time_limit or seconds or 0.0) / 10)
