"""Distributions split into the tensors of their arguments, and rebuilt from them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core.reflection import move_distribution


def join_distributions(distributions: Sequence[Distribution], dim: int) -> Distribution:
    """One distribution from several of the same type, concatenated along an axis."""
    first = distributions[0]
    parameters: dict[str, Any] = {
        name: torch.cat([getattr(d, name) for d in distributions], dim) for name in _names(first)
    }
    return type(first)(**parameters, validate_args=False)


def in_double(distribution: Distribution) -> Distribution:
    """The distribution in double precision, in which variances do not overflow."""
    return move_distribution(distribution, distribution.mean.new_zeros((), dtype=torch.double))


def take(value: Any, index: Tensor, dim: int) -> Any:
    """The elements of a tensor or distribution with given indices along an axis; other objects are returned as is."""
    if isinstance(value, Distribution):
        parameters = {name: getattr(value, name).index_select(dim, index) for name in _names(value)}
        return type(value)(**parameters, validate_args=False)
    return value.index_select(dim, index) if isinstance(value, Tensor) else value


def _names(distribution: Distribution) -> list[str]:
    """Names of the arguments that the distribution was built from; a Bernoulli has either probabilities or logits."""
    names = [name for name in distribution.arg_constraints if name in vars(distribution)]
    if not names:
        raise ValueError(
            f"`keep_draws` cannot store distributions of type {type(distribution).__name__}; leave `keep_draws` out."
        )
    return names
