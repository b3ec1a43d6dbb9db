"""A network, a prior and a likelihood as one Pyro model."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import pyro_method
from torch import Tensor, nn
from torch.distributions import Distribution

from . import _checks, _functional
from ._globs import matches
from ._scope import allow_local_mode, eval_mode, local_param, seeded
from .likelihoods import Likelihood
from .likelihoods._regression import MovedPrior
from .priors import Prior

__all__ = ["BayesianModel"]

SITE_PREFIX = "net"

Interceptor = Callable[[Mapping[str, Tensor], int], AbstractContextManager[None]]
"""From weights, ``{site: value}``, and the number of rows to a context in which the network is called."""


class BayesianModel(PyroModule):
    r"""Any `torch.nn.Module` as a Pyro model whose weights have priors.

    .. math:: w \sim p(w), \qquad y_n \mid w \sim p(y_n \mid f_w(x_n)), \qquad n = 1, \dots, N.

    The model holds a private copy of `net`; the caller's is never changed. Each parameter selected by `where` becomes
    a `PyroSample` of the model under its site name, the module path: ``net.0.weight``. The others stay learnable
    parameters. A parameter used under several names (tied weights) is one site. The weights are drawn outside the
    data plate, and an observed batch of B rows is weighted by ``num_data / B``, so that for every batch size the ELBO
    is, in expectation, that of the whole data set. No indices are drawn.

    The weights may carry leading draw axes, as in `Predictive(parallel=True)` and `vectorize_particles=True`.

    Args:
        net: Maps x of shape (N, ...) to an output of shape (N, ...).
        prior: Prior of each selected parameter.
        likelihood: Distribution of y given the network's output; the model keeps a copy.
        num_data: Size N of the whole data set.
        where: Glob, or list of globs, on site names: ``*`` is one component of a name, ``**`` any number.

    Raises:
        ValueError: If `where` selects nothing or a glob of it matches nothing, if a prior has the wrong shape, or if
            `num_data` is not positive.

    Example:
        >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, NormalPrior
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = BayesianModel(net, prior=NormalPrior(), likelihood=CategoricalLikelihood(), num_data=150)
        >>> model.site_names
        ('net.0.weight', 'net.0.bias', 'net.2.weight', 'net.2.bias')
        >>> model(torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        prior: Prior,
        likelihood: Likelihood,
        num_data: int,
        where: str | Sequence[str] = "**",
    ) -> None:
        super().__init__()
        _checks.kind("net", net, nn.Module, "a torch.nn.Module")
        _checks.kind("prior", prior, Prior, "a Prior, such as NormalPrior(1.0)")
        _checks.kind("likelihood", likelihood, Likelihood, "a Likelihood, such as CategoricalLikelihood()")
        self.num_data = _checks.at_least("num_data", num_data, 1)
        self.prior = prior
        self.net = copy.deepcopy(net)
        likelihood = copy.deepcopy(likelihood)
        for module in (self, likelihood):
            allow_local_mode(module)
        self.likelihood = likelihood
        _functional.refresh_recurrent_weights(self.net)
        self._interceptor: Interceptor | None = None
        self._priors: dict[str, tuple[Tensor, TorchDistributionMixin]] = {}
        self._paths = self._make_random([where] if isinstance(where, str) else list(where))
        self.likelihood.to(self._like())

    def _make_random(self, globs: list[str]) -> dict[str, list[str]]:
        """Turn the selected parameters into sample sites; returns every path of each site's parameter."""
        aliases: dict[int, list[str]] = {}
        for path, parameter in self.net.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(path)
        sites = {f"{SITE_PREFIX}.{paths[0]}": paths for paths in aliases.values()}
        chosen: dict[str, list[str]] = {}
        for glob in globs:
            hit = [n for n, paths in sites.items() if any(matches(glob, f"{SITE_PREFIX}.{p}") for p in paths)]
            if not hit:
                raise ValueError(f"`where` glob {glob!r} matches none of the network's parameters: {list(sites)}.")
            chosen |= {name: sites[name] for name in hit}
        if not chosen:
            raise ValueError('`where` is empty and selects no parameter; the default "**" selects all.')
        chosen = {name: sites[name] for name in sites if name in chosen}  # in the order of the network
        for name, paths in chosen.items():
            for path in paths:
                _functional.parameter_to_buffer(self.net, path)
            self._check_prior(name, self._prior_at(name, paths[0]))
            setattr(self, name, PyroSample(_PriorOfSite(name, paths[0])))
        return chosen

    def _check_prior(self, name: str, prior: TorchDistributionMixin) -> None:
        expected = self.initial_value(name).shape
        if prior.batch_shape != () or prior.event_shape != expected:
            raise ValueError(
                f"the prior of `{name}` must have no batch shape and event shape {tuple(expected)}, got batch shape "
                f"{tuple(prior.batch_shape)} and event shape {tuple(prior.event_shape)}; use `.expand().to_event()`."
            )

    def prior_of(self, name: str) -> TorchDistributionMixin:
        """The prior of one of the network's sites, on the model's present device and in its dtype."""
        return self._prior_at(name, self._paths[name][0])

    def _prior_at(self, name: str, path: str) -> TorchDistributionMixin:
        """Made once for each device and dtype."""
        parameter = self.network.get_buffer(path)
        cached = self._priors.get(name)
        if cached is None or cached[0].dtype != parameter.dtype or cached[0].device != parameter.device:
            owner = self.network.get_submodule(path.rpartition(".")[0])
            cached = self._priors[name] = (parameter.new_empty(0), self.prior(name, parameter, owner))
        return cached[1]

    @property
    def sample_statements(self) -> tuple[object, ...]:
        """What each latent variable is drawn from at present: a distribution, or a function that makes one."""
        return (*self._pyro_samples.values(), *self._likelihood._pyro_samples.values())

    @property
    def has_fixed_priors(self) -> bool:
        """Whether no prior depends on other variables, as one may that was set by hand."""
        return all(isinstance(prior, (Distribution, _PriorOfSite, MovedPrior)) for prior in self.sample_statements)

    def _like(self) -> Tensor:
        """A tensor with the device and dtype of the network."""
        path = next(iter(self._paths.values()))[0]
        return self.network.get_buffer(path)

    @property
    def network(self) -> nn.Module:
        """The model's own copy of the network, in which random parameters are buffers with their initial values.

        Not ``model.net``: read inside a call, that puts parameters into Pyro's global store.
        """
        net = self._modules["net"]
        assert net is not None
        return net

    @property
    def _likelihood(self) -> Likelihood:
        likelihood = self._modules["likelihood"]
        assert isinstance(likelihood, Likelihood)
        return likelihood

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self._like().device

    @property
    def dtype(self) -> torch.dtype:
        """The network's floating-point type."""
        return self._like().dtype

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the network's sample sites, in the order in which they are drawn."""
        return tuple(self._paths)

    @property
    def parameter_paths(self) -> dict[str, tuple[str, ...]]:
        """For each of the network's sites the names that its parameter has there: several if weights are tied."""
        return {name: tuple(paths) for name, paths in self._paths.items()}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of all latent variables: the network's sites, then the likelihood's."""
        return (*self._paths, *(f"likelihood.{name}" for name in self._likelihood._pyro_samples))

    def initial_value(self, name: str) -> Tensor:
        """The value that the parameter of a site had in the caller's network."""
        return self.network.get_buffer(name.removeprefix(f"{SITE_PREFIX}."))

    @pyro_method
    def sample_latents(self, *args: object, **kwargs: object) -> None:
        """Draw every latent variable and nothing else; arguments are ignored.

        A model in its own right, with all sample sites of the full model but `obs`: what a guide needs to know.
        """
        self._draw_weights()
        for name in self._likelihood._pyro_samples:
            getattr(self._likelihood, name)

    def _draw_weights(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self._paths}

    def observation(self, x: Tensor) -> TorchDistributionMixin:
        """Draw the weights, run the network, and return the elementwise distribution of the targets.

        Args:
            x: Inputs, shape (N, ...).

        Returns:
            A distribution of batch shape ``(*draws, N, ...)``.

        Raises:
            ValueError: If x is on another device or has another dtype or shape than the network expects.
        """
        return self._observe(x)[0]

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The Pyro model: draws the weights, and observes y at the site ``obs`` or, without y, draws it.

        Args:
            x: Inputs, shape (B, ...).
            y: Targets, shape (B, ...).

        Returns:
            The network's output, shape ``(*draws, B, ...)``.

        Raises:
            ValueError: If x or y has a wrong shape, device, dtype or value, or y has more rows than `num_data`.
        """
        distribution, output, num_lead = self._observe(x)
        if y is not None:
            y = self._checked_targets(distribution.batch_shape[num_lead:], output, x, y)
        observation = distribution.to_event(len(distribution.batch_shape) - num_lead - 1)
        with pyro.poutine.scale(scale=self.num_data / len(x)), pyro.plate("data", len(x), dim=-1):
            pyro.sample("obs", observation, obs=y)
        return output

    def _checked_targets(self, expected: torch.Size, output: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The targets of a batch as the log-density wants them, once they are known to fit."""
        self._check_shapes(expected, x, y)
        if len(y) > self.num_data:
            raise ValueError(
                f"`num_data` is {self.num_data} but the batch has {len(y)} rows; `num_data` is the size of the "
                "whole data set."
            )
        if not y.is_cuda:  # reading values of a CUDA tensor waits for the device; `fit_svi` does it once
            self._likelihood.check_values(output, y)
        return self._likelihood.as_targets(y, output.dtype)

    def log_likelihood(self, values: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The log-likelihood of the whole data set as a batch estimates it, in nats, without Pyro's machinery.

        Args:
            values: One value for every latent variable, ``{site: shape (*event)}``.
            x: Inputs, shape (B, ...).
            y: Targets, shape (B, ...).

        Returns:
            The sum over the batch times ``num_data / B``, differentiable in the values.

        Raises:
            ValueError: As a call of the model.
        """
        self._check_input(x)
        with self._noise_fixed(values):
            distribution, output, _ = self._respond({name: values[name] for name in self._paths}, x)
            y = self._checked_targets(distribution.batch_shape, output, x, y)
        return distribution.log_prob(y).sum() * (self.num_data / len(x))

    def observe(self, output: Tensor, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """The elementwise distribution of targets, given network outputs and the likelihood's latent variables.

        Args:
            output: Network outputs, shape ``(*draws, N, ...)``.
            values: A value, shape ``(*draws, *event)``, for each latent variable of the likelihood at least.
        """
        with self._noise_fixed(values):
            distribution: TorchDistributionMixin = self.likelihood(output)
        return distribution

    @contextmanager
    def intercepted(self, interceptor: Interceptor) -> Iterator[None]:
        """A context in which every call of the network is made inside a context of the interceptor's."""
        if self._interceptor is not None:
            raise ValueError("an estimator is already applied to this model; leave its context first.")
        self._interceptor = interceptor
        try:
            yield
        finally:
            self._interceptor = None

    @property
    def is_intercepted(self) -> bool:
        """Whether a context of :meth:`intercepted` is open."""
        return self._interceptor is not None

    @contextmanager
    def _noise_fixed(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Within it, the likelihood's latent variables have the given values: they lie in PyroModule's own cache."""
        with self._pyro_context:
            for name in self.latent_names[len(self._paths) :]:
                self._pyro_context.set(name, values[name])
            yield

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Raise a `ValueError` unless y are possible targets of x; runs the network on the first row only."""
        with pyro.poutine.block(), torch.no_grad(), seeded(0, x.device), eval_mode(self):
            distribution, output, num_lead = self._observe(x[:1])
        self._check_shapes(torch.Size([len(x), *distribution.batch_shape[num_lead + 1 :]]), x, y)
        self._likelihood.check_values(output, y)

    def check_latents(self, values: Mapping[str, Tensor]) -> None:
        """Raise a `ValueError` unless there is a value of the right shape for every latent variable.

        A variable without a value would be drawn from its prior, without a word.
        """
        missing = [name for name in self.latent_names if name not in values]
        if missing:
            raise ValueError(f"the posterior lacks the latent variables {missing}; it has {list(values)}.")
        for name in self.site_names:
            if values[name].shape != self.initial_value(name).shape:
                raise ValueError(
                    f"the posterior's `{name}` has shape {_checks.shape(values[name])} but the model's "
                    f"{_checks.shape(self.initial_value(name))}: it belongs to another model."
                )

    @pyro_method
    def _observe(self, x: Tensor) -> tuple[TorchDistributionMixin, Tensor, int]:
        """The distribution of the targets, the network's output, and how many leading axes are weight draws."""
        self._check_input(x)
        for path, parameter in self.network.named_parameters():
            local_param(f"{SITE_PREFIX}.{path}", parameter)
        weights = self._draw_weights()
        return self._respond({name: self._without_data_axis(name, value) for name, value in weights.items()}, x)

    def _respond(self, weights: Mapping[str, Tensor], x: Tensor) -> tuple[TorchDistributionMixin, Tensor, int]:
        """What :meth:`_observe` returns, given the weights."""
        net = self.network
        num_lead = max(value.dim() - self.initial_value(name).dim() for name, value in weights.items())
        tensors = {path: weights[name] for name, paths in self._paths.items() for path in paths}
        around = nullcontext() if self._interceptor is None else self._interceptor(weights, len(x))
        with around:
            output = _functional.call_batched(net, tensors, x) if num_lead else _functional.call(net, tensors, x)
        if output.dim() <= num_lead or output.shape[num_lead] != len(x):
            raise ValueError(
                f"`net` must return one row per input, got output {_checks.shape(output)} for x {_checks.shape(x)}."
            )
        noise_draws = self._likelihood.draw_shape()
        if len(noise_draws) > num_lead:  # the noise is drawn many times, the weights are not
            output, num_lead = output.expand(noise_draws + output.shape), len(noise_draws)
        return self._likelihood(output), output, num_lead

    def _without_data_axis(self, name: str, value: Tensor) -> Tensor:
        """Vectorised particles have shape (S, 1, *parameter), the 1 for the data axis; `Predictive` leaves it out."""
        num_lead = value.dim() - self.initial_value(name).dim()
        return value.squeeze(num_lead - 1) if num_lead > 1 else value

    def _check_input(self, x: Tensor) -> None:
        _checks.kind("x", x, Tensor, "a tensor")
        like = self._like()
        if x.device != like.device:
            raise ValueError(
                f"`x` is on {x.device} but the model is on {like.device}; call `x.to(model.device)` or "
                f"`model.to({str(x.device)!r})`."
            )
        if x.is_floating_point() and x.dtype != like.dtype:
            raise ValueError(
                f"`x` is {x.dtype} but the network is {like.dtype}; call `x.to({like.dtype})` or `model.to({x.dtype})`."
            )
        if x.dim() == 0 or len(x) == 0:
            raise ValueError(f"`x` must have at least one row, got shape {_checks.shape(x)}.")

    def _check_shapes(self, expected: torch.Size, x: Tensor, y: Tensor) -> None:
        if y.device != x.device:
            raise ValueError(f"`y` is on {y.device} but `x` is on {x.device}; call `y.to(x.device)`.")
        _checks.same_rows(x, y)
        if y.shape != expected:
            remedy = ""
            if y.numel() == expected.numel():
                remedy = "; call `y.squeeze(-1)`" if y.dim() > len(expected) else "; call `y.unsqueeze(-1)`"
            name = type(self._likelihood).__name__
            raise ValueError(f"{name} expects `y` of shape {tuple(expected)}, got {_checks.shape(y)}{remedy}.")


@dataclass(frozen=True)
class _PriorOfSite:
    """What the `PyroSample` of a site calls: the model's prior on the model's present device."""

    name: str
    path: str

    def __call__(self, model: PyroModule) -> TorchDistributionMixin:
        assert isinstance(model, BayesianModel)
        return model._prior_at(self.name, self.path)
