"""The default number of draws of a prediction."""

from typing import Any

from torch import nn

from ...nets import MCDropout
from ._posterior import Posterior

NUM_DRAWS = 100
"""Heuristic: default number of draws; a mean then has an error of 10 % of the standard deviation."""


def num_members(model: Any, posterior: Posterior) -> int | None:
    """Return the number of points of which a posterior consists; None for others, and for random networks."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return None if any(isinstance(module, MCDropout) for module in modules) else posterior.num_points


def default_num_draws(
    model: Any, posterior: Posterior, *, usual: int = NUM_DRAWS, most_stored: int | None = None
) -> int:
    """Return the default number of draws in a prediction.

    Points are drawn once each, but at least 2 draws are made, since a single draw has no epistemic uncertainty. Stored
    draws are all used, but at most `most_stored` (by default `usual`). Other posteriors take `usual`.
    """
    points = num_members(model, posterior)
    if points is not None:
        return max(points, 2)
    return usual if posterior.num_stored is None else min(posterior.num_stored, most_stored or usual)
