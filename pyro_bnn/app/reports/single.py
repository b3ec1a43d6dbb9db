"""A single network of a posterior, beside which reports show what averaging over weight draws gains."""

from collections.abc import Mapping

from torch import Tensor

from ..runs import RunPosterior, is_chains


def single_network(posterior: RunPosterior) -> tuple[str, Mapping[str, Tensor]]:
    """Name and weights: the mean weights, or a draw of chains, since the mean of several modes is no good network."""
    if is_chains(posterior):
        return "one draw", next(posterior.draws(1))
    return "mean weights", posterior.median()
