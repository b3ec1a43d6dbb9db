"""Distributions in place of priors, and different priors for different parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from ..._core import checks as _checks
from ..._core.globs import matches
from ..._core.reflection import move_distribution, unvalidated
from ._base import Prior, WeightPrior

PriorLike = WeightPrior | Distribution
"""A prior, or a distribution of one real number, which is then the prior of every element."""


@dataclass(frozen=True)
class DistributionPrior(Prior):
    """Independent draws from one distribution of a real number for all elements; :func:`as_prior` makes it."""

    distribution: TorchDistributionMixin

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        return unvalidated(move_distribution(self.distribution, parameter))

    def __repr__(self) -> str:
        return repr(self.distribution)


def as_prior(name: str, value: object) -> WeightPrior:
    """A prior, or the prior that has a distribution of one real number for every element; `name` is for messages."""
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


@dataclass(frozen=True)
class PriorByName(Prior):
    """Chooses the prior of a parameter by its site name: the prior of the first glob that matches.

    Args:
        priors: Prior of each glob, in order of precedence. In a glob, ``*`` is one component of a name, and ``**`` any
            number of components. A distribution of one real number is the prior of every element.

    Raises:
        ValueError: If `priors` is not a dict of priors. A parameter that matches no glob raises later.

    Example:
        >>> from pyro_bnn import NormalPrior, ScaleMixturePrior
        >>> prior = PriorByName({"net.**.bias": NormalPrior(1.0), "**": ScaleMixturePrior()})
    """

    priors: Mapping[str, PriorLike]

    def __post_init__(self) -> None:
        _checks.kind("priors", self.priors, Mapping, 'a dict of priors by glob, such as {"**": NormalPrior()}')
        if not self.priors:
            raise ValueError('`priors` must hold at least one glob, got none; begin with {"**": NormalPrior()}.')
        _checks.globs("priors", list(self.priors))
        for glob, prior in self.priors.items():
            as_prior(f"priors[{glob!r}]", prior)

    def prior_of(self, name: str) -> WeightPrior:
        """The first prior whose glob matches a site name."""
        for glob, prior in self.priors.items():
            if matches(glob, name):
                return as_prior(f"priors[{glob!r}]", prior)
        raise ValueError(f'no glob of {list(self.priors)} matches `{name}`; add a last entry "**" for all the rest.')

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        prior = self.prior_of(name)
        if not isinstance(prior, Prior):
            raise ValueError(f"the prior of `{name}` depends on other variables; call `given` with their values.")
        return prior.elementwise(name, parameter, module)

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        return self.prior_of(name).parents(name, parameter, module)

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        return self.prior_of(name).learned(name, parameter, module)

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self.prior_of(name).given(values, name, parameter, module)
