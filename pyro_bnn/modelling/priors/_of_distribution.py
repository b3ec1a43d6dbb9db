"""A distribution in place of a prior: the same for every element of every parameter."""

from dataclasses import dataclass

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from ..._core import checks as _checks
from ..._core.reflection import move_distribution, unvalidated
from ._base import Prior, WeightPrior

PriorLike = WeightPrior | Distribution
"""A prior, or a distribution of one real number, which is then the prior of every element."""


@dataclass(frozen=True)
class DistributionPrior(Prior):
    """Independent draws from one distribution of a real number for all elements; :func:`as_prior` makes it."""

    distribution: TorchDistributionMixin

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        moved: TorchDistributionMixin = unvalidated(move_distribution(self.distribution, parameter))
        return moved

    def __repr__(self) -> str:
        return repr(self.distribution)


def as_prior(name: str, value: object) -> WeightPrior:
    """A prior, or the prior that has a distribution of one real number for every element.

    Args:
        name: Name of the argument, for messages.
        value: A prior, or a distribution of Pyro or torch with empty batch and event shape on the real numbers.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> import torch
        >>> prior = as_prior("prior", dist.StudentT(4.0, 0.0, 0.5))
        >>> prior("net.0.weight", torch.zeros(2, 3), nn.Linear(3, 2)).event_shape
        torch.Size([2, 3])
    """
    if not isinstance(value, Distribution):
        example = "a Prior, such as NormalPrior(1.0), or a distribution of one number, such as dist.Normal(0.0, 1.0)"
        _checks.kind(name, value, WeightPrior, example)
        assert isinstance(value, WeightPrior)
        return value
    kind = type(value).__name__
    if value.batch_shape or value.event_shape:
        raise ValueError(
            f"a distribution as `{name}` must be of one number, and is then the prior of every weight, got {kind} with "
            f"batch shape {tuple(value.batch_shape)} and event shape {tuple(value.event_shape)}; pass numbers without "
            "axes, or subclass Prior for other shapes."
        )
    if value.support is not constraints.real:
        raise ValueError(
            f"`{name}` must be a distribution over all real numbers, got {kind} on {value.support}; use one such as "
            "Normal, StudentT or Laplace, or NormalMixture of `pyro_bnn.distributions` for a mixture."
        )
    return DistributionPrior(_of_pyro(name, value))


def _of_pyro(name: str, value: Distribution) -> TorchDistributionMixin:
    """The same distribution of Pyro's class, which can become a site."""
    if isinstance(value, TorchDistributionMixin):
        return value
    kind, arguments = getattr(dist, type(value).__name__, None), [n for n in value.arg_constraints if n in vars(value)]
    if not isinstance(kind, type) or not issubclass(kind, type(value)) or not arguments:
        raise ValueError(
            f"`{name}` must be one of `pyro.distributions`, got {type(value).__module__}.{type(value).__name__}, which "
            "Pyro does not have; write a subclass of pyro.distributions.TorchDistribution."
        )
    return kind(**{argument: getattr(value, argument) for argument in arguments})  # type: ignore[return-value]
