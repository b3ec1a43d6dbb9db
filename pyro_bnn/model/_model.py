"""The Bayesian model: a network with priors and a likelihood."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import pyro_method
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks, _functional
from .._scope import allow_local_mode, eval_mode, local_param, seeded
from ..likelihoods import Likelihood
from ..priors import PRIOR_PREFIX, WeightPrior
from ._inputs import check_input, check_latent, check_shapes, require_latents, require_site, require_values
from ._network import private_copy
from ._priors import NetworkPriors, ParentStatement, SiteStatement
from ._selection import SITE_PREFIX, parameter_tree, select_sites

Interceptor = Callable[[Mapping[str, Tensor], int], AbstractContextManager[None]]
"""Function from weights, ``{site: value}``, and the number of rows to a context for the call of the network."""


class BayesianModel(PyroModule):
    r"""Any `torch.nn.Module` as a Pyro model whose weights have priors.

    .. math:: w \sim p(w), \qquad y_n \mid w \sim p(y_n \mid f_w(x_n)), \qquad n = 1, \dots, N.

    The model holds a private copy of `net`; the caller's is never changed. Each parameter selected by `where` becomes
    a `PyroSample` of the model under its site name, the module path: ``net.0.weight``. The others stay learnable
    parameters. A parameter used under several names (tied weights) is one site. The weights are drawn outside the
    data plate, and an observed batch of B rows is weighted by ``num_data / B``. So for every batch size the expected
    ELBO is that of the whole data set. No indices are drawn. The weights may have leading draw axes, as in
    `Predictive(parallel=True)` and `vectorize_particles=True`.

    A prior may depend on latent variables of its own, such as a scale (:class:`~pyro_bnn.HierarchicalPrior`). They are
    sites of the model, such as ``prior.0.scale``, drawn before the weights. A prior's learnable numbers are parameters.

    The padding row of a random embedding is a constant: the layer uses the row of `net`. The drawn row has no effect on
    the likelihood, so its posterior is its prior.

    Args:
        net: Network that maps x of shape (N, ...) to an output of shape (N, ...).
        prior: Prior of each selected parameter.
        likelihood: Distribution of y given the network's output; the model keeps a copy.
        num_data: Number N of data points in the whole data set.
        where: Glob, or list of globs, on site names: ``*`` is one component of a name, ``**`` any number of them.

    Raises:
        ValueError: If `where` selects no parameter or one of its globs matches none, if a prior has the wrong shape or
            has Pyro statements, if a layer changes a random weight or its gradient, or if `num_data` is below 1.

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
        prior: WeightPrior,
        likelihood: Likelihood,
        num_data: int,
        where: str | Sequence[str] = "**",
    ) -> None:
        super().__init__()
        _checks.kind("prior", prior, WeightPrior, "a Prior, such as NormalPrior(1.0)")
        _checks.kind("likelihood", likelihood, Likelihood, "a Likelihood, such as CategoricalLikelihood()")
        self.num_data = _checks.at_least("num_data", num_data, 1)
        self.prior = prior
        self.net = private_copy(net)
        likelihood = copy.deepcopy(likelihood)
        for module in (self, likelihood):
            allow_local_mode(module)
        self.likelihood = likelihood
        _functional.refresh_recurrent_weights(self.net)
        self._interceptor: Interceptor | None = None
        self._paths = select_sites(self.net, _checks.globs("where", where))
        for name, path in ((name, path) for name, paths in self._paths.items() for path in paths):
            _functional.prepare_embedding(self.net, path, name)
            _functional.parameter_to_buffer(self.net, path)
        self._priors = NetworkPriors(prior, self.net, {name: paths[0] for name, paths in self._paths.items()})
        self._declare()
        self.likelihood.to(self._like())

    def _declare(self) -> None:
        """Declare the sample statements, and the parameters of learned priors."""
        for parent in self._priors.children:
            setattr(self, parent, PyroSample(ParentStatement(parent)))
        for name, (parents, learned) in self._priors.dependencies.items():
            setattr(self, name, PyroSample(SiteStatement(name, parents, is_fixed=not (parents or learned))))
        if self._priors.first_values:
            self.add_module(
                "prior_parameters",
                parameter_tree({_without_prefix(key): v for key, v in self._priors.first_values.items()}),
            )

    def prior_of(self, name: str) -> TorchDistributionMixin:
        """The prior of a site of the network, or of a parent of such a site, on the model's present device.

        Args:
            name: The site.

        Raises:
            ValueError: If the prior depends on other latent variables.
        """
        if name in self._priors.children:
            return self._priors.of_parent(name)
        if parents := self.parents_of(name):
            raise ValueError(f"the prior of `{name}` depends on {list(parents)}; call `prior_given` with their values.")
        return self.prior_given(name, {})

    def parents_of(self, name: str) -> tuple[str, ...]:
        """Names of the latent variables on which the prior of a site of the network depends."""
        require_site(name, self._paths)
        return self._priors.dependencies[name][0]

    def prior_given(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """The prior of a site of the network, given its parents.

        Args:
            name: The site.
            values: A value, shape ``(*draws, *event)``, for every parent; further entries are ignored.

        Returns:
            A distribution of batch shape ``draws``.
        """
        require_values(values, self.parents_of(name))
        parents, learned = self._priors.dependencies[name]
        needed = {parent: values[parent] for parent in parents}
        return self._priors.given(name, needed | {key: self._prior_parameter(key) for key in learned})

    def _prior_parameter(self, name: str) -> Tensor:
        tree = self._modules["prior_parameters"]  # the attribute would put it into Pyro's global store
        assert tree is not None
        path = _without_prefix(name)
        return local_param(f"prior_parameters.{path}", tree.get_parameter(path))

    @property
    def sample_statements(self) -> tuple[object, ...]:
        """Present prior of each latent variable: a distribution, or a function that makes one."""
        return (*self._pyro_samples.values(), *self._likelihood._pyro_samples.values())

    @property
    def has_fixed_priors(self) -> bool:
        """Whether no prior depends on other variables or is learned; a prior that the user replaced may do so."""
        statements = self._pyro_samples.values()
        ours = (s.is_fixed if isinstance(s, SiteStatement) else isinstance(s, Distribution) for s in statements)
        return all(ours) and self._likelihood.has_fixed_priors

    def _like(self) -> Tensor:
        """A tensor that has the device and dtype of the network."""
        path = next(iter(self._paths.values()))[0]
        return self.network.get_buffer(path)

    @property
    def network(self) -> nn.Module:
        """The model's own copy of the network, in which random parameters are buffers with their initial values.

        Read inside a call, ``model.net`` would put parameters into Pyro's global store; this property does not.
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
        """Device of the network's random parameters, on which the model computes."""
        return self._like().device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the network's random parameters."""
        return self._like().dtype

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the network's sample sites, in the order in which they are drawn."""
        return tuple(self._paths)

    @property
    def parameter_paths(self) -> dict[str, tuple[str, ...]]:
        """Names in the network of each site's parameter, ``{site: paths}``; tied weights have several."""
        return {name: tuple(paths) for name, paths in self._paths.items()}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of all latent variables: parents of priors, sites of the network, variables of the likelihood."""
        return (*self._priors.children, *self._paths, *self._likelihood_names())

    def _likelihood_names(self) -> list[str]:
        return [f"likelihood.{name}" for name in self._likelihood._pyro_samples]

    def initial_value(self, name: str) -> Tensor:
        """Value of a site's parameter in the caller's network."""
        require_site(name, self._paths)
        return self.network.get_buffer(name.removeprefix(f"{SITE_PREFIX}."))

    @pyro_method
    def sample_latents(self, *args: object, **kwargs: object) -> None:
        """Draw every latent variable and nothing else; arguments are ignored.

        This is a Pyro model with all sample sites of the full model except `obs`; guides are built from it.
        """
        self._draw_weights()
        for name in self._likelihood._pyro_samples:
            getattr(self._likelihood, name)

    def _draw_weights(self) -> dict[str, Tensor]:
        for parent in self._priors.children:  # first, so that the weights find them in PyroModule's cache
            getattr(self, parent)
        return {name: getattr(self, name) for name in self._paths}

    def observation(self, x: Tensor) -> TorchDistributionMixin:
        """Draw the weights, run the network, and return the elementwise distribution of the targets.

        Args:
            x: Inputs, shape (N, ...).

        Returns:
            A distribution of batch shape ``(*draws, N, ...)``.

        Raises:
            ValueError: If x does not have the device, dtype or shape that the network expects.
        """
        return self._observe(x)[0]

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The Pyro model: draws the weights, runs the network, and observes y at the site ``obs``; without y, draws it.

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
        """The checked targets of a batch, in the form that the log-density takes."""
        check_shapes(expected, x, y, type(self._likelihood).__name__)
        if len(y) > self.num_data:
            raise ValueError(
                f"`num_data` is {self.num_data} but the batch has {len(y)} rows; build the model with the size of the "
                "whole data set."
            )
        if not y.is_cuda:  # for CUDA the check would wait for the device; `fit_svi` does it once
            self._likelihood.check_values(output, y)
        return self._likelihood.as_targets(y, output.dtype)

    def log_likelihood(self, values: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Estimate of the whole data set's log-likelihood from a batch, in nats, without Pyro's machinery.

        Args:
            values: One value for every latent variable, ``{site: shape (*event)}``.
            x: Inputs, shape (B, ...).
            y: Targets, shape (B, ...).

        Returns:
            The sum over the batch times ``num_data / B``, differentiable in the values.

        Raises:
            ValueError: If x or y has a wrong shape, device, dtype or value, or y has more rows than `num_data`.
        """
        check_input(x, self._like())
        require_values(values, self.latent_names)
        with self._noise_fixed(values):
            distribution, output, _ = self._respond({name: values[name] for name in self._paths}, x)
            y = self._checked_targets(distribution.batch_shape, output, x, y)
        return distribution.log_prob(y).sum() * (self.num_data / len(x))

    def observe(self, output: Tensor, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """The elementwise distribution of targets, given network outputs and the likelihood's latent variables.

        Args:
            output: Network outputs, shape ``(*draws, N, ...)``.
            values: A value, shape ``(*draws, *event)``, for every latent variable of the likelihood at least.
        """
        with self._noise_fixed(values):
            distribution: TorchDistributionMixin = self.likelihood(output)
        return distribution

    @contextmanager
    def intercepted(self, interceptor: Interceptor) -> Iterator[None]:
        """A context in which every call of the network runs inside a context made by `interceptor`."""
        if self._interceptor is not None:
            raise ValueError("an estimator is already applied to this model; leave its context first.")
        self._interceptor = interceptor
        try:
            yield
        finally:
            self._interceptor = None

    @property
    def is_intercepted(self) -> bool:
        """Whether a context of :meth:`intercepted` is active."""
        return self._interceptor is not None

    @contextmanager
    def _noise_fixed(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """A context in which the likelihood's latent variables have the given values, by way of PyroModule's cache."""
        with self._pyro_context:
            for name in self._likelihood_names():
                self._pyro_context.set(name, values[name])
            yield

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Raise a `ValueError` unless y are possible targets of x; only the first row goes through the network."""
        with pyro.poutine.block(), torch.no_grad(), seeded(0, x.device), eval_mode(self):
            distribution, output, num_lead = self._observe(_checks.rows("x", x)[:1].clone())
        expected = torch.Size([len(x), *distribution.batch_shape[num_lead + 1 :]])
        check_shapes(expected, x, y, type(self._likelihood).__name__)
        self._likelihood.check_values(output, y)

    def check_latents(self, values: Mapping[str, Tensor]) -> None:
        """Raise a `ValueError` unless there is a value of the right shape for every latent variable.

        Without this check a variable that has no value would silently be drawn from its prior.
        """
        require_latents(values, self.latent_names)
        expected = {name: self.initial_value(name).shape for name in self._paths}
        expected |= {parent: self._priors.of_parent(parent).event_shape for parent in self._priors.children}
        for name, shape in expected.items():
            check_latent(name, values[name], shape)

    def network_weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the layers use, given a value of every site of the network.

        Args:
            values: ``{site: shape (*event)}``.

        Returns:
            ``{path: shape (*event)}``, with tied weights under each of their paths. The padding row of an embedding
            is that of the caller's network.
        """
        require_values(values, self._paths)
        pairs = [(path, values[name]) for name, paths in self._paths.items() for path in paths]
        return {path: _functional.as_used(self.network, path, value) for path, value in pairs}

    @pyro_method
    def _observe(self, x: Tensor) -> tuple[TorchDistributionMixin, Tensor, int]:
        """The distribution of the targets, the network's output, and the number of leading draw axes."""
        check_input(x, self._like())
        for path, parameter in self.network.named_parameters():
            local_param(f"{SITE_PREFIX}.{path}", parameter)
        weights = self._draw_weights()
        return self._respond({name: self._without_data_axis(name, value) for name, value in weights.items()}, x)

    def _respond(self, weights: Mapping[str, Tensor], x: Tensor) -> tuple[TorchDistributionMixin, Tensor, int]:
        """The result of :meth:`_observe` for given weights."""
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
        if len(noise_draws) > num_lead:  # the noise has more draws than the weights
            output, num_lead = output.expand(noise_draws + output.shape), len(noise_draws)
        return self._likelihood(output), output, num_lead

    def _without_data_axis(self, name: str, value: Tensor) -> Tensor:
        """The value without a data axis, the 1 in the shape (S, 1, *parameter) of vectorised particles."""
        num_lead = value.dim() - self.initial_value(name).dim()
        return value.squeeze(num_lead - 1) if num_lead > 1 else value


def _without_prefix(name: str) -> str:
    return name.removeprefix(f"{PRIOR_PREFIX}.")
