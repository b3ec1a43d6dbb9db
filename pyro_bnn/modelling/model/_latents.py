"""The latent variables of a model: of the network, its priors, and the likelihood."""

from collections.abc import Mapping
from typing import Generic

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import pyro_method
from torch import Tensor, nn
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core import functional as _functional
from ..._core.copies import tree
from ..._core.scope import EXCLUSIVE, AbstractPyroModule, allow_local_mode, local_param
from ...scores.uncertainty import P_co
from ..likelihoods import Likelihood
from ..priors import PRIOR_PREFIX, WeightPrior
from ._declared import declared_priors, take_declared
from ._network import private_copy
from ._priors import NetworkPriors, SiteStatement, first_value
from ._response import require_values
from ._selection import Rules, make_random


class LatentVariables(PyroModule, Generic[P_co], metaclass=AbstractPyroModule):  # type: ignore[metaclass]
    """The latent variables of a :class:`~pyro_bnn.BayesianModel`, with their priors and initial values."""

    def __init__(
        self, net: nn.Module, prior: WeightPrior, likelihood: Likelihood[P_co], where: Rules, exclude: Rules
    ) -> None:
        super().__init__()
        for module in (self, likelihood):
            allow_local_mode(module)
        own = private_copy(net)
        statements = take_declared(own)
        nn.Module.add_module(self, "net", own)  # `PyroModule`'s method would bring back Pyro attributes
        self.likelihood = likelihood
        _functional.refresh_recurrent_weights(own)
        self._paths = make_random(own, where, exclude, statements)
        first_paths = {name: paths[0] for name, paths in self._paths.items()}
        self._priors = NetworkPriors(prior, own, first_paths, declared_priors(own, statements, self._paths))
        for parent in self._priors.children:
            setattr(self, parent, PyroSample(SiteStatement(parent)))
        for name, (parents, _) in self._priors.dependencies.items():
            is_fixed = self._priors.is_fixed(name)
            setattr(self, name, PyroSample(SiteStatement(name, parents, is_fixed=is_fixed)))
        if self._priors.first_values:
            own_names = {name.removeprefix(f"{PRIOR_PREFIX}."): v for name, v in self._priors.first_values.items()}
            self.add_module("prior_parameters", tree(own_names))

    @property
    def like(self) -> Tensor:
        """A tensor with the network's device and dtype."""
        return self.initial_value(next(iter(self._paths)))

    @property
    def network(self) -> nn.Module:
        """The model's own copy of the network, in which random parameters are buffers with initial values.

        During a call of the model, reading ``model.net`` would put parameters into Pyro's global store; reading this
        property does not.
        """
        net = self._modules["net"]
        assert net is not None
        return net

    @property
    def _likelihood(self) -> Likelihood[P_co]:
        likelihood = self._modules["likelihood"]
        assert isinstance(likelihood, Likelihood)
        return likelihood

    def _likelihood_given(self, values: Mapping[str, Tensor]) -> Likelihood:
        likelihood = self._likelihood
        return likelihood.given({name: values[f"likelihood.{name}"] for name in likelihood._pyro_samples})

    @property
    def device(self) -> torch.device:
        """Device on which the model computes."""
        return self.like.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the network's random parameters."""
        return self.like.dtype

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the network's sample sites, in the order of drawing."""
        return tuple(self._paths)

    @property
    def parameter_paths(self) -> dict[str, tuple[str, ...]]:
        """Paths of each site in the network, ``{site: paths}``: several for tied weights."""
        return {name: tuple(paths) for name, paths in self._paths.items()}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of all latent variables: of priors, of the network, and of the likelihood."""
        return (*self._priors.children, *self._paths, *self._likelihood_names())

    def _likelihood_names(self) -> list[str]:
        return [f"likelihood.{name}" for name in self._likelihood._pyro_samples]

    def _require_site(self, name: str) -> None:
        if not isinstance(name, str) or name not in self._paths:
            raise ValueError(f"`name` must be a site of the network, one of {list(self._paths)}, got {name!r}.")

    def initial_value(self, name: str) -> Tensor:
        """Return the value of a site in the network from which the model was made."""
        self._require_site(name)
        return first_value(self.network, name, self._paths[name][0])

    def prior_of(self, name: str) -> TorchDistributionMixin:
        """Return the prior of a site, or of a variable on which priors of sites depend.

        Raises:
            ValueError: If the prior depends on other latent variables.
        """
        if isinstance(name, str) and name in self._priors.children:
            return self._priors.of_parent(name)
        if parents := self.parents_of(name):
            raise ValueError(f"the prior of `{name}` depends on {list(parents)}; call `prior_given` with their values.")
        return self.prior_given(name, {})

    def parents_of(self, name: str) -> tuple[str, ...]:
        """Return the latent variables on which the prior of a network's site depends."""
        self._require_site(name)
        return self._priors.dependencies[name][0]

    def prior_given(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """Return the prior of a network's site, given its parents.

        Args:
            name: The site.
            values: Values of all parents, ``{parent: shape (*draws, *event)}``. Other entries are ignored.

        Returns:
            A distribution of batch shape ``draws``.
        """
        self._require_site(name)
        parents, learned = self._priors.dependencies[name]
        require_values(values, parents)
        needed = {parent: values[parent] for parent in parents}
        return self._priors.given(name, needed | {key: self._prior_parameter(key) for key in learned})

    def _prior_parameter(self, name: str) -> Tensor:
        tree = self._modules["prior_parameters"]  # reading the attribute would put it into Pyro's global store
        assert tree is not None
        path = name.removeprefix(f"{PRIOR_PREFIX}.")
        parameter = tree.get_parameter(path)
        return local_param(f"prior_parameters.{path}", parameter) if self._pyro_context.active else parameter

    def plain_prior(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin | None:
        """Return a latent variable's prior without running `pyro.sample`; None if other variables determine its value.

        `values` holds the latent variables that are drawn before this one, ``{site: shape (*event)}``.
        """
        prior: object = self._pyro_samples.get(name)
        if isinstance(prior, SiteStatement):
            prior = self.prior_given(name, values) if name in self._paths else self._priors.of_parent(name)
        elif prior is None:
            known = self._likelihood_names()
            noise = {site.removeprefix("likelihood."): v for site, v in values.items() if site in known}
            prior = self._likelihood.prior_given(name.removeprefix("likelihood."), noise)
        return prior if isinstance(prior, TorchDistributionMixin) else None

    @property
    def sample_statements(self) -> tuple[object, ...]:
        """The present prior of each latent variable: a distribution, or a function that makes one."""
        return (*self._pyro_samples.values(), *self._likelihood._pyro_samples.values())

    @property
    def has_fixed_priors(self) -> bool:
        """Whether all priors are fixed: none is learned or depends on another variable."""
        statements = self._pyro_samples.values()
        ours = (s.is_fixed if isinstance(s, SiteStatement) else isinstance(s, Distribution) for s in statements)
        return all(ours) and self._likelihood.has_fixed_priors

    @pyro_method
    def sample_latents(self, *args: object, **kwargs: object) -> None:
        """Draw all latent variables by Pyro statements, for guides. Arguments are ignored."""
        self._draw_weights()
        for name in self._likelihood._pyro_samples:
            getattr(self._likelihood, name)

    def _draw_weights(self) -> dict[str, Tensor]:
        for parent in self._priors.children:  # parents first, so that PyroModule has cached them
            getattr(self, parent)
        return {name: getattr(self, name) for name in self._paths}

    def check_latents(self, values: Mapping[str, Tensor]) -> None:
        """Raise if a latent variable is missing, or if weights have wrong shapes or are not finite."""
        _checks.kind("values", values, Mapping, "a dict of values by site")
        missing = [name for name in self.latent_names if name not in values]
        if missing:
            raise ValueError(
                f"the posterior lacks the latent variables {missing} of the model, and has {list(values)}: the "
                "posterior belongs to another model; pass that model."
            )
        for name, shape in self._shapes().items():
            value = _checks.tensor(f"values[{name!r}]", values[name])
            if value.shape != shape:
                raise ValueError(
                    f"the posterior's `{name}` has shape {_checks.shape(value)} but the model's {tuple(shape)}: the "
                    "posterior belongs to another model; pass that model."
                )
            if not bool(torch.isfinite(value).all()):
                raise ValueError(
                    f"the posterior's `{name}` must be finite, got NaN or infinity; fit again with a lower learning "
                    "rate."
                )

    def _shapes(self) -> dict[str, torch.Size]:
        shapes = {parent: self._priors.of_parent(parent).event_shape for parent in self._priors.children}
        return shapes | {name: self.initial_value(name).shape for name in self._paths}

    def network_weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights that the layers use, ``{path: shape (*event)}``, for values of the sites.

        Tied weights have an entry for each path. The padding row of an embedding comes from the network.

        Args:
            values: ``{site: shape (*event)}`` for all sites of the network.
        """
        require_values(values, self._paths)
        pairs = [(path, values[name]) for name, paths in self._paths.items() for path in paths]
        with EXCLUSIVE:  # another thread may have replaced the network's weights by a draw
            net = self.network
            return {path: _functional.as_used(net, path, value) for path, value in pairs}
