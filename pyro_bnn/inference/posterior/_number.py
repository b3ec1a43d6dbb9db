"""The default number of draws of a prediction."""

from typing import Any

from torch import nn

from ...nets import MCDropout
from ._posterior import Posterior

NUM_DRAWS = 100
"""Heuristic: default number of draws; a mean then has an error of 10 % of the standard deviation."""


def num_members(model: Any, posterior: Posterior) -> int | None:
    """Return the number of point estimates of a posterior that consists only of point estimates.

    One draw of each point estimate then represents the whole posterior. For other posteriors, and for a network that is
    itself random (:class:`~pyro_bnn.nets.MCDropout`), return None.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return None if any(isinstance(module, MCDropout) for module in modules) else posterior.num_points


def default_num_draws(
    model: Any, posterior: Posterior, *, usual: int = NUM_DRAWS, most_stored: int | None = None
) -> int:
    """Return the default number of draws in a prediction.

    For an ensemble of point estimates, each member is drawn once. There are at least 2 draws, since a single draw has
    no epistemic uncertainty. For a posterior that stores draws, the result is the number of these draws, but at most
    `most_stored` (by default `usual`). For other posteriors, the result is `usual`.
    """
    points = num_members(model, posterior)
    if points is not None:
        return max(points, 2)
    return usual if posterior.num_stored is None else min(posterior.num_stored, most_stored or usual)
