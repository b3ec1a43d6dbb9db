"""The priors of a network's sites, and the variables on which they depend."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from ..._core.reflection import are_equal, require_unbatched
from ..._core.scope import EXCLUSIVE, seeded
from ..priors import PRIOR_PREFIX, WeightPrior
from ._declared import DeclaredPrior

T = TypeVar("T")


class _NoStatements(Messenger):
    """Raises an error at a Pyro statement in a prior, since the statement would run only once."""

    def _pyro_sample(self, msg: Any) -> NoReturn:
        raise ValueError(
            f"the prior must be a distribution and draw nothing, but it has the statement `pyro.{msg['type']}("
            f"{msg['name']!r}, ...)`, which would run only once, when the model is built; for a prior that depends on "
            "latent variables or on learned numbers, use HierarchicalNormalPrior, HorseshoePrior or "
            "LearnedNormalPrior, or subclass HierarchicalPrior."
        )

    _pyro_param = _pyro_sample


def _asked(method: Callable[..., T], *args: object) -> T:
    """Call a method of a prior; raise if it runs a Pyro statement."""
    with EXCLUSIVE, poutine.block(), _NoStatements():
        return method(*args)


def first_value(net: nn.Module, site: str, path: str) -> Tensor:
    """Return the initial value of a random parameter, from its buffer in `net`."""
    try:
        return net.get_buffer(path)
    except AttributeError as error:
        raise ValueError(
            f"`{site}` must be in the network as it was when the model was built, but its layer was replaced or "
            f"removed ({error}); change the network first, and build a new model from it."
        ) from None


class NetworkPriors:
    """The priors of random parameters, which are buffers of `net`: the network's `declared` priors, or else `prior`."""

    def __init__(
        self, prior: WeightPrior, net: nn.Module, paths: Mapping[str, str], declared: Mapping[str, DeclaredPrior]
    ) -> None:
        self._prior, self._net, self._paths, self.declared = prior, net, dict(paths), dict(declared)
        self._cache: dict[str, tuple[Tensor, TorchDistributionMixin]] = {}
        self.first_values: dict[str, Tensor] = {}  # initial value of every learnable number of a prior
        self.children: dict[str, str] = {}  # for every parent, a site whose prior depends on it
        # For every site, the names of its parents and of the learnable numbers of its prior.
        self.dependencies: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        for name in paths:
            self._add(name)

    def _arguments(self, name: str) -> tuple[str, Tensor, nn.Module]:
        path = self._paths[name]
        return name, first_value(self._net, name, path), self._net.get_submodule(path.rpartition(".")[0])

    def is_fixed(self, name: str) -> bool:
        """Return whether a site's prior is not learned and depends on no other variable."""
        return not any(self.dependencies[name]) and not (name in self.declared and self.declared[name].is_learned)

    def _add(self, name: str) -> None:
        if name in self.declared:
            self.dependencies[name] = (tuple(self.declared[name].sites), ())
            values = {site: self._arguments(site)[1] for site in self.declared[name].sites}
            self._check_shape(name, _asked(self.given, name, values))
            return
        arguments = self._arguments(name)
        parents = dict(_asked(self._prior.parents, *arguments))
        learned = dict(_asked(self._prior.learned, *arguments))
        for key in (*parents, *learned):
            if not key.startswith(f"{PRIOR_PREFIX}."):
                raise ValueError(
                    f"each parent or learnable number of the prior of `{name}` must have a name that begins with "
                    f"`{PRIOR_PREFIX}.`, got `{key}`; make one with `pyro_bnn.priors.prior_name`."
                )
        for key, distribution in parents.items():
            require_unbatched(key, distribution)
            if key not in self.children:
                self.children[key] = name
            elif not are_equal(distribution, self.of_parent(key)):
                self._refuse_sharing(key, name, self.children[key])
        for key, value in learned.items():
            if key in self.first_values and not torch.equal(value, self.first_values[key]):
                self._refuse_sharing(key, name, key)
            self.first_values[key] = value
        self.dependencies[name] = (tuple(parents), tuple(learned))
        with seeded(0, arguments[1].device), torch.no_grad():
            draws = {key: distribution.sample() for key, distribution in parents.items()}
        self._check_shape(name, _asked(self.given, name, {**draws, **learned}))

    def _refuse_sharing(self, key: str, *names: str) -> NoReturn:
        raise ValueError(
            f"the priors of {' and '.join(f'`{name}`' for name in names)} both depend on `{key}`, but define "
            'it differently; give each parameter its own, as with `per="parameter"`.'
        )

    def _check_shape(self, name: str, prior: TorchDistributionMixin) -> None:
        expected = self._arguments(name)[1].shape
        if prior.batch_shape != () or prior.event_shape != expected:
            raise ValueError(
                f"the prior of `{name}` must have no batch shape and event shape {tuple(expected)}, got batch shape "
                f"{tuple(prior.batch_shape)} and event shape {tuple(prior.event_shape)}; use `.expand().to_event()`."
            )

    def given(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """Return a site's prior, given its parents and learnable numbers."""
        prior = self.declared.get(name, self._prior)
        if not self.is_fixed(name):
            return prior.given(values, *self._arguments(name))
        return self._cached(name, name, lambda: prior.given({}, *self._arguments(name)))

    def of_parent(self, parent: str) -> TorchDistributionMixin:
        child = self.children[parent]
        return self._cached(parent, child, lambda: self._prior.parents(*self._arguments(child))[parent])

    def _cached(self, key: str, site: str, make: Callable[[], TorchDistributionMixin]) -> TorchDistributionMixin:
        """Return the cached result of `make`, which is called again only after a change of device or dtype."""
        parameter = first_value(self._net, site, self._paths[site])
        found = self._cache.get(key)
        if found is None or found[0].dtype != parameter.dtype or found[0].device != parameter.device:
            with EXCLUSIVE:  # a prior may use the network's weights, which another thread may have replaced by a draw
                found = self._cache[key] = (parameter.new_empty(0), make())
        return found[1]


@dataclass(frozen=True)
class SiteStatement:
    """A function for `PyroSample`: it returns a site's prior, given values of its parents drawn in the same call."""

    name: str
    parents: tuple[str, ...] = ()
    is_fixed: bool = False

    def __call__(self, model: Any) -> TorchDistributionMixin:
        values = {key: getattr(model, key) for key in self.parents}
        return model.prior_given(self.name, values) if values else model.prior_of(self.name)
