"""Distributions as bundles of the tensors that they were made from."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution


def join_distributions(distributions: Sequence[Distribution], dim: int, join: Any = torch.stack) -> Distribution:
    """One distribution of several of a kind, their tensors stacked or joined along an axis."""
    first = distributions[0]
    parameters = {name: join([getattr(d, name) for d in distributions], dim) for name in _names(first)}
    return type(first)(**parameters, validate_args=False)


def take(value: Any, index: Tensor, dim: int) -> Any:
    """Some elements, by their numbers along an axis, of a tensor or distribution; anything else stays as it is."""
    if isinstance(value, Distribution):
        parameters = {name: getattr(value, name).index_select(dim, index) for name in _names(value)}
        return type(value)(**parameters, validate_args=False)
    return value.index_select(dim, index) if isinstance(value, Tensor) else value


def _names(distribution: Distribution) -> list[str]:
    """Names of the arguments that a distribution was made from; a Bernoulli has either probabilities or logits."""
    names = [name for name in distribution.arg_constraints if name in vars(distribution)]
    if not names:
        raise ValueError(f"`keep_draws` cannot store distributions of type {type(distribution).__name__}.")
    return names
