"""Potentials: minus the log joint density as a function of a flat vector, for samplers and Laplace's method."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core.copies import copied
from ..._core.functional import batched
from ..._core.inputs import Inputs, as_inputs, map_inputs, named_leaves, take
from ..._core.reflection import unvalidated
from ..._core.scope import EXCLUSIVE, Stream, eval_mode, outer_stacklevel, own_parameters, seeded
from ...modelling.likelihoods import Likelihood, NumbersLikelihood
from ...modelling.model import BayesianModel
from ._densities import groups_of
from ._gradients import check_gradients
from ._sites import Coordinates, Draw, Site, find_sites

DRAWS_AT_ONCE = 256  # heuristic: number of draws in a batch, small enough that a batch needs little memory


def batched_observation(
    model: BayesianModel, example: Mapping[str, Tensor], x: Inputs
) -> Callable[[Mapping[str, Tensor], Inputs], Distribution]:
    """Return a function that computes the distribution of the targets from K draws and inputs x.

    The draws are ``{site: shape (K, *event)}``, and the distribution has the batch shape (K, N, ...). `example` has two
    draws. The model must already have the dtype and the mode (train or eval) of later calls.
    """
    paths = {path: name for name, paths in model.parameter_paths.items() for path in paths}

    def weights(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {path: values[name] for path, name in paths.items()}

    network = batched(model.network, weights(example), x)
    return lambda values, x: model.observe(network(weights(values), x), values)


def draw_batches(
    model: BayesianModel, samples: Mapping[str, Tensor], x: Inputs, *, stream: Stream | None = None
) -> Iterator[Distribution]:
    """Yield a distribution of the targets at x for each batch of stored draws.

    `samples` are S draws of each of K chains, ``{site: shape (K, S, *event)}``. Each distribution has the batch shape
    ``(number of draws in the batch, N, ...)``, with the draws of the first chain first. A random network draws from the
    generators in `stream`, or from torch's if `stream` is None.
    """
    flat = {name: value.flatten(0, 1).to(model.device, model.dtype) for name, value in samples.items()}
    num_draws = len(next(iter(flat.values())))
    x = as_inputs("x", x, model.like)
    unit = EXCLUSIVE if stream is None else stream
    with torch.no_grad(), unit, eval_mode(model):
        first = {name: value[0] for name, value in flat.items()}
        model.check_latents(first)
        for name, leaf in named_leaves("x", x):
            _checks.finite(name, leaf)
        model.observation_given(first, take(x, slice(1)))  # raises if x does not fit
        pairs = {name: torch.cat([value[:1], value[-1:]]) for name, value in flat.items()}
        observation_of = batched_observation(model, pairs, x)
    for start in range(0, num_draws, DRAWS_AT_ONCE):
        part = {name: value[start : start + DRAWS_AT_ONCE] for name, value in flat.items()}
        with torch.no_grad(), unit, eval_mode(model):
            observation = observation_of(part, x)
        yield observation


class Potential(Coordinates, ABC):
    r"""Negative log joint density in unconstrained space, in nats, at each row of z, shape (K, P).

    .. math:: U(z) = -\log p(y \mid w) - \log p(w) - \log \left| \det \frac{dw}{dz} \right|, \qquad w = w(z).
    """

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """Return the potential at each row of z, shape (K,), by operations that autograd can differentiate."""

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the potential at each row of z, shape (K,), and its gradient, shape (K, P)."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = self.value(z)
            (gradient,) = torch.autograd.grad(value.sum(), z)
        return value.detach(), gradient

    @abstractmethod
    def from_prior(self, num_rows: int) -> Tensor:
        """Return draws from the prior in unconstrained space, shape (K, P)."""


class NetworkPotential(Potential):
    """The potential of a :class:`BayesianModel` on all its data, without effect handlers. Its mode must not change."""

    def __init__(self, model: BayesianModel, x: Inputs, y: Tensor) -> None:
        super().__init__(find_sites(model, (), {}))
        self._x, self._y = x, model.likelihood.as_targets(y, model.dtype)
        self._weights = model.likelihood.fit_weights(y, model.dtype)
        self._model = model
        self._children = {name for name in model.site_names if model.parents_of(name)}
        groups = list(groups_of(self.sites, self.layout, self._children))
        self._groups, grouped = [density for _, density in groups], {name for names, _ in groups for name in names}
        self._single = [site for site in self.sites if site.name not in grouped]
        with seeded(0, self.like.device), torch.no_grad():
            example = self.constrain(self.from_prior(2))
        self._observation = batched_observation(model, example, x)

    def value(self, z: Tensor) -> Tensor:
        values = self.constrain(z)
        return -self.log_likelihood(values) - self.log_prior(z, values)

    def log_likelihood(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log-likelihood of all data in nats, shape (K,), for values of shape (K, *event)."""
        log_prob = self._observation(values, self._x).log_prob(self._y)
        return _rowwise_sum(log_prob if self._weights is None else log_prob * self._weights)

    def log_prior(self, z: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log-density of z under the prior in nats, shape (K,)."""
        total = z.new_zeros(len(z))
        for log_density in self._groups:
            total = total + log_density(z)
        if self._single:
            free = self.layout.views(z)
            for site in self._single:
                density = _rowwise_sum(self._prior_given(site, values).log_prob(values[site.name]))
                total = total + density + _log_jacobian(site, free[site.name], values)
        return total

    def from_prior(self, num_rows: int) -> Tensor:
        draws: Draw = {}  # parents come before their children
        for site in self.sites:
            prior = self._prior_given(site, draws)
            draws[site.name] = (prior if site.name in self._children else prior.expand_by([num_rows])).sample()
        return self.unconstrain(draws)

    def _prior_given(self, site: Site, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """Return the prior of a site, with an axis for the K points if it depends on other sites."""
        if site.name not in self._children:
            return site.prior
        prior: TorchDistributionMixin = unvalidated(self._model.prior_given(site.name, values))
        return prior


def network_potential(model: BayesianModel, x: Inputs, y: Tensor, dtype: torch.dtype | None) -> NetworkPotential:
    """Return the potential on all rows of data, for a copy of the model in eval mode, after checks of all arguments."""
    model.check_targets(x, y)
    for name, leaf in named_leaves("x", x):
        _checks.finite(name, leaf)
    if len(y) != model.num_data:
        raise ValueError(
            f"the model's `num_data` is {model.num_data} but the data has {len(y)} rows; pass the whole data set."
        )
    warn_of_learnable(model)
    model = copied(model).to(dtype or model.dtype).eval()

    def converted(value: Tensor) -> Tensor:
        return value.to(model.dtype) if value.is_floating_point() else value

    x, y = map_inputs(converted, x), converted(y)
    check_gradients(model, x, y)
    potential = NetworkPotential(model, x, y)
    with EXCLUSIVE, torch.no_grad():
        first, again = (potential.value(potential.start[None]) for _ in range(2))
    if bool((first != again).any()) and bool(first.isfinite().all()):
        raise ValueError(
            "the model must give the same density whenever it is called with the same weights, but it is random, as "
            "with dropout that stays on or a `pyro.sample` in the network; remove the random part."
        )
    return potential


def learnable_names(model: BayesianModel) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def warn_of_learnable(model: BayesianModel) -> None:
    if learnable := learnable_names(model):
        warnings.warn(
            f"the model's learnable parameters {learnable} stay at their present values, since this method infers only "
            f"variables with a prior.{_remedy(model.likelihood)}",
            stacklevel=outer_stacklevel(),
        )


def _remedy(likelihood: Likelihood) -> str:
    numbers = likelihood.learned_numbers() if isinstance(likelihood, NumbersLikelihood) else {}
    if not numbers:
        return ""
    shown = {n: f"{float(v):.4g}" if v.dim() == 0 else f"{v.numel()} numbers" for n, v in numbers.items()}
    said = ", ".join(f"{name} = {value}" for name, value in shown.items())
    return (
        f" So {type(likelihood).__name__} keeps {said}. Give it a prior or a fixed value instead, as in "
        "`GaussianLikelihood(dist.LogNormal(0.0, 1.0))` for a noise scale, or learn it first, by `fit_svi`."
    )


class TracePotential(Potential):
    """The potential of any Pyro model. Each evaluation traces the model, which is slow."""

    def __init__(self, model: Callable[..., object], args: tuple[object, ...]) -> None:
        super().__init__(find_sites(model, args, {}))
        self._model, self._args = model, args
        with seeded(0, self.like.device), torch.no_grad():
            self.value(self.from_prior(1))  # the only evaluation in which Pyro checks the model's distributions

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        with pyro.validation_enabled(False):  # no errors in a diverging trajectory
            return super().value_and_grad(z)

    def value(self, z: Tensor) -> Tensor:
        values = self.constrain(z)
        rows = [{name: value[index] for name, value in values.items()} for index in range(len(z))]
        density = torch.stack([self._log_joint(row) for row in rows])
        free = self.layout.views(z)
        for site in self.sites:
            density = density + _log_jacobian(site, free[site.name], values)
        return -density

    def from_prior(self, num_rows: int) -> Tensor:
        names = [site.name for site in self.sites]
        with own_parameters(self._model), torch.no_grad(), poutine.block():
            traces: list[Any] = [poutine.trace(self._model).get_trace(*self._args) for _ in range(num_rows)]
        return self.unconstrain({name: torch.stack([t.nodes[name]["value"] for t in traces]) for name in names})

    def _log_joint(self, values: Draw) -> Tensor:
        with own_parameters(self._model), poutine.block():
            trace: Any = poutine.trace(poutine.condition(self._model, data=values)).get_trace(*self._args)
        total: Tensor = trace.log_prob_sum()
        return total


def _rowwise_sum(value: Tensor) -> Tensor:
    return value.sum(tuple(range(1, value.dim()))) if value.dim() > 1 else value


def _log_jacobian(site: Site, z: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    if site.transform is None:
        return z.new_zeros(len(z))
    return _rowwise_sum(site.transform.log_abs_det_jacobian(z, values[site.name]))
