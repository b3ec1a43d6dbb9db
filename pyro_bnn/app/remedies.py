"""Advice on what to type after a failed run. `train`, `report` and the report's page give the same advice."""

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .config import RunConfig

if TYPE_CHECKING:
    from ..inference.mcmc import MCMCPosterior  # loads torch, which `pyro-bnn --help` must not

MANIFEST = "manifest.json"  # the file by which a folder of this program is recognised
MORE = 4  # heuristic: multiple of their epochs, or of their draws, that fits which are too short should get
LEAST = 1.5  # heuristic: chains that are too short should get at least this multiple of their time
TOO_EARLY = "the training stopped too early"
CAUSE = "possible cause: "  # in the first line of a report, before a fault that can have caused the problem before it
MORE_EPOCHS = "Raise --epochs, or --lr."  # for a variational fit that still improved


def quote(path: str | Path) -> str:
    """Return a path as the user must type it in a shell."""
    return shlex.quote(str(path))


def no_run(run: str | Path, why: str) -> FileNotFoundError:
    """Return the error for a path at which there is no run of `pyro-bnn train`."""
    return FileNotFoundError(f"{run} holds no training run{why}; make one with `pyro-bnn train`.")


def more_time(config: RunConfig, start: float, seconds: float) -> str:
    """Return the remedy for a variational fit that reached the time limit.

    The first epoch ended after `start` seconds, and each other one takes `seconds`. All epochs get their full time,
    however long that is, since it is known.
    """
    limit = 10 * math.ceil((start + config.epochs * seconds) / 10)
    # For tables and arrays, the next run might draw chains without --method svi.
    method = "" if config.kind == "images" else "--method svi "
    return f"Train longer: {method}--time-limit {limit} should suffice for all {config.epochs:,} epochs."


def limit_in(remedy: str) -> float:
    """Return the time limit that a remedy tells the user to pass; 0 if there is none."""
    found = re.search(r"--time-limit (\d+)", remedy)
    return float(found[1]) if found else 0.0


def longer_chains(posterior: "MCMCPosterior", num_left_out: int, limit_for: Callable[..., int]) -> str:
    """Return the remedy for chains, or for a comparison of networks, that had too little time; "" if there is none.

    `num_left_out` is the number of networks that were not compared. `limit_for(times)` is the limit to advise if chains
    must be `times` as long, and 0 if there is none. R-hat squared minus 1 is inversely proportional to the length.
    """
    from ..auto.choosing import MOST_STEPS_MADE  # imported late: loads torch
    from ..inference.mcmc import LARGEST_WITHIN

    if num_left_out:
        return f"To compare more networks, with longer chains, pass --time-limit {limit_for()}."
    if posterior.status or posterior.status.is_slight or posterior.statistics.has_many_diverging:
        return "" if posterior.status.is_slight else posterior.status.remedy
    modes = posterior.modes
    times: tuple[float, ...] = ()
    if MOST_STEPS_MADE in posterior.status.message:
        times = (math.inf,)
    elif modes is not None:
        r_hat = float(modes.within.max()) if modes.num_unexplored else modes.between
        times = (max((r_hat**2 - 1) / (LARGEST_WITHIN**2 - 1), LEAST),)
    limit = limit_for(*times)
    return f"For a more exact result, pass --time-limit {limit}." if limit else ""
