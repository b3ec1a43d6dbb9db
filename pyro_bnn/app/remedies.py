"""Advice on what to type after a failed run. `train`, `report` and the page give the same advice."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from .config import RunConfig

if TYPE_CHECKING:
    from ..inference.history import History  # loads torch, which `pyro-bnn --help` must not

MANIFEST = "manifest.json"  # the file by which a folder of this program is recognised
MORE = 4  # heuristic: multiple of their time, or of their draws, that chains which are too short should get
MORE_EPOCHS = "Raise --epochs, or --lr."  # for a variational fit that still improved


def no_run(run: str | Path, why: str) -> FileNotFoundError:
    """Return the error for a path at which there is no run of `pyro-bnn train`."""
    return FileNotFoundError(f"{run} holds no training run{why}; make one with `pyro-bnn train`.")


def more_time(config: RunConfig, history: "History") -> str:
    """Return the remedy for a variational fit that reached the time limit before its last epoch."""
    num_done, epochs = len(history.epochs), config.epochs
    seconds = math.fsum(record.seconds for record in history.epochs) / num_done * (epochs - num_done)
    enough = 10 * math.ceil((config.time_limit + seconds) / 10)
    # For tables and arrays, the next run might draw chains without --method svi.
    options = f"{'' if config.kind == 'images' else '--method svi '}--time-limit {enough}"
    return f"Train longer, such as with {options}: all {epochs:,} epochs take about that at this speed."


def longer_chains(seconds: float | None) -> str:
    """Return the remedy for chains that are too short. `seconds` is the time that the fit took, if it is known."""
    guess = "" if seconds is None else f", such as --time-limit {10 * math.ceil(MORE * seconds / 10)}"
    why = "" if seconds is None else " (four times the time of this fit; how long they need is not known)"
    return f"For a more exact result, pass a larger time limit{guess}{why}."
