"""Priors made from distributions, other priors, or an earlier posterior."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isabstract

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from ..._core import checks as _checks
from ..._core.globs import matches
from ..._core.names import nearest
from ..._core.reflection import move_distribution, unvalidated
from ._base import Prior, WeightPrior

PriorLike = WeightPrior | Distribution
"""A prior, or a distribution of one real number, which becomes the prior of every element."""


CALLS = {  # calls that make priors, by name
    "fan-in": "FanInNormalPrior(2.0)",
    "fan-in-normal": "FanInNormalPrior(2.0)",
    "hierarchical": "HierarchicalNormalPrior()",
    "horseshoe": "HorseshoePrior()",
    "laplace": "LaplacePrior(1.0)",
    "mixture": "ScaleMixturePrior()",
    "normal": "NormalPrior(1.0)",
}


@dataclass(frozen=True)
class DistributionPrior(Prior):
    """The same distribution for all elements, independently; :func:`as_prior` makes it."""

    distribution: TorchDistributionMixin

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        return unvalidated(move_distribution(self.distribution, parameter))

    def __repr__(self) -> str:
        return repr(self.distribution)


def as_prior(name: str, value: object) -> WeightPrior:
    """Return a prior as it is, or make one from a distribution of one real number."""
    if not isinstance(value, Distribution):
        example = "a Prior, such as NormalPrior(1.0), or a distribution of one number, such as dist.Normal(0.0, 1.0)"
        if isinstance(value, WeightPrior):
            return value
        got, is_text = _checks.described(value), isinstance(value, str)
        if _checks.is_number(value) or is_text:
            call = CALLS.get(nearest(str(value).lower(), CALLS)) if is_text else f"NormalPrior({value})"
            got = f"{value!r}; write {call}" if call else repr(value)
        elif isinstance(value, type) and issubclass(value, WeightPrior | Distribution) and not isabstract(value):
            got += f"; pass an instance, {value.__name__}(...)"
        elif isinstance(value, Mapping):
            got += "; call PriorByName with it"
        raise ValueError(f"`{name}` must be {example}, got {got}.")
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
    """Return a Pyro distribution as it is; for a torch distribution, return Pyro's distribution of the same name."""
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
    """A prior that gives each parameter the prior of the first glob that matches its site.

    Args:
        priors: Priors by glob. ``*`` stands for one component of a name, and ``**`` for any number. If one of these
            priors is a distribution of one real number, it is the prior of every element.

    Raises:
        ValueError: If `priors` is not a dict of priors. A model raises this error if a parameter matches no glob.

    Example:
        >>> from pyro_bnn import NormalPrior, PriorByName, ScaleMixturePrior
        >>> prior = PriorByName(
        ...     {"net.**.bias": NormalPrior(1.0), "**": ScaleMixturePrior()}
        ... )
        >>> prior.prior_of("net.0.bias")
        NormalPrior(scale=1.0)
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
        """Return the first prior whose glob matches a site name."""
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


@dataclass(frozen=True, repr=False)
class PosteriorPrior(Prior):
    """Independent Gaussians, with a mean and a standard deviation for every element.

    ``posterior.as_prior()`` makes such a prior, with which a model can go on learning from new data. If the old and the
    new posterior were exact, the new one would be the posterior given all data.

    Args:
        locations: Means, ``{site: shape of the parameter}``.
        scales: Standard deviations, above 0, ``{site: shape of the parameter}``.
        otherwise: Prior of all other parameters, such as the output layer of a new task. With None, such parameters
            raise an error.

    Raises:
        ValueError: If sites or shapes differ between `locations`, `scales` and the model, or a scale is not above 0.

    References:
        Nguyen et al. (2018), Variational Continual Learning, https://arxiv.org/abs/1710.10628.

    Example:
        >>> import torch
        >>> from pyro_bnn.modelling.priors import PosteriorPrior
        >>> means, scales = torch.ones(1, 2), torch.full((1, 2), 0.1)
        >>> prior = PosteriorPrior({"net.weight": means}, {"net.weight": scales})
        >>> prior("net.weight", torch.zeros(1, 2), torch.nn.Linear(2, 1)).mean
        tensor([[1., 1.]])
    """

    locations: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    otherwise: Prior | None = None

    def __post_init__(self) -> None:
        _checks.kind("locations", self.locations, Mapping, "a dict of tensors by site")
        _checks.kind("scales", self.scales, Mapping, "a dict of tensors by site")
        if self.otherwise is not None:
            _checks.kind("otherwise", self.otherwise, Prior, "a fixed Prior, such as NormalPrior(1.0), or None")
        if not self.locations or self.locations.keys() != self.scales.keys():
            raise ValueError(
                f"`locations` and `scales` must have the same sites, at least one, got {list(self.locations)} and "
                f"{list(self.scales)}."
            )
        for name, location in self.locations.items():
            scale = _checks.tensor(f"scales[{name!r}]", self.scales[name])
            _checks.finite(f"locations[{name!r}]", location)
            if location.shape != scale.shape:
                raise ValueError(
                    f"`locations` and `scales` of `{name}` must have the same shape, got {_checks.shape(location)} and "
                    f"{_checks.shape(scale)}."
                )
            if not bool(((scale > 0) & torch.isfinite(scale)).all()):
                raise ValueError(
                    f"`scales` of `{name}` must be above 0 and finite, got {float(scale.min()):g} to "
                    f"{float(scale.max()):g}; a point estimate and a removed weight have scale 0. Use another "
                    "posterior, or only the other sites, as `PosteriorPrior(locations, scales, otherwise=...)`."
                )

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        if name not in self.locations:
            if self.otherwise is None:
                known = list(self.locations)
                raise ValueError(f"the posterior has no `{name}`, only {known}; choose its prior with `otherwise`.")
            return self.otherwise.elementwise(name, parameter, module)
        location, scale = self.locations[name], self.scales[name]
        if location.shape != parameter.shape:
            raise ValueError(
                f"`{name}` must have shape {tuple(location.shape)} as in the posterior, got {tuple(parameter.shape)}; "
                "leave it out of the prior, or build a network of the same shape."
            )
        _checks.scale_in(f"scales[{name!r}]", scale, parameter.dtype)
        return dist.Normal(location.detach().to(parameter), scale.detach().to(parameter), validate_args=False)

    def __repr__(self) -> str:
        count = sum(value.numel() for value in self.locations.values())
        rest = "" if self.otherwise is None else f", otherwise={self.otherwise!r}"
        return f"PosteriorPrior({count:,} numbers in {len(self.locations)} sites{rest})"
