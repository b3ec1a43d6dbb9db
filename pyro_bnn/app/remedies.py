"""What to type after a fault. `train`, `report` and the HTML page give the same remedy for the same fault."""

import math

MORE = 4
"""Heuristic: chains that are too short should get this multiple of their time, or of their draws."""

MORE_EPOCHS = "Raise --epochs, or --lr."
"""Remedy for a variational fit whose objective still improved."""

MORE_TIME = "Pass a larger --time-limit."
"""Remedy for a variational fit that the time limit ended."""


def longer_chains(seconds: float | None) -> str:
    """Return the remedy for chains that are too short. `seconds` is the time that the fit took, if it is known."""
    guess = "" if seconds is None else f", such as --time-limit {10 * math.ceil(MORE * seconds / 10)}"
    why = "" if seconds is None else " (four times the time of this fit; how long they need is not known)"
    return f"For longer chains, pass a larger time limit{guess}{why}."
