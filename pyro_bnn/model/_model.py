"""The Bayesian model: a network with priors and a likelihood."""

import copy
from collections.abc import Mapping
from typing import Generic

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import pyro_method
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks, _functional
from .._inputs import Inputs, map_inputs, num_rows
from .._scope import EXCLUSIVE, AbstractPyroModule, allow_local_mode, eval_mode, local_param, seeded
from .._summary import Shown, Summary
from ..likelihoods import Likelihood
from ..priors import PRIOR_PREFIX, WeightPrior
from ..uncertainty import P_co
from ._choice import make_random, parameter_tree
from ._declared import declared_priors, take_declared
from ._inputs import check_input, check_latents, check_shapes, require_site, require_values
from ._network import first_value, private_copy
from ._priors import NetworkPriors, ParentStatement, SiteStatement
from ._response import Interception, Response, respond
from ._selection import SITE_PREFIX, Rules
from ._summary import summary_of


class BayesianModel(Shown, PyroModule, Generic[P_co], metaclass=AbstractPyroModule):  # type: ignore[metaclass]
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

    A network with several inputs gets them in a tuple, as ``net(*x)``, or in a dictionary, as ``net(**x)``; all have N
    rows. They may be nested.

    The padding row of a random embedding is a constant: the layer uses the row of `net`. The drawn row has no effect on
    the likelihood, so its posterior is its prior.

    A network may be made of Pyro's modules. What it declares by `PyroSample` is a site under its module path, with the
    distribution given there as its prior. It is drawn once per call, whatever `where` and `prior` say.

    Args:
        net: Network that maps x of shape (N, ...), or several such inputs, to an output of shape (N, ...).
        prior: Prior of each selected parameter.
        likelihood: Distribution of y given the network's output; the model keeps a copy.
        num_data: Number N of data points in the whole data set.
        where: Which parameters are random: a glob on site names, in which ``*`` is one component and ``**`` any number
            of them; :func:`layers`; a function of name, parameter and layer; or a list of these.
        exclude: Which of these are not random, in the same forms.

    Raises:
        ValueError: If no parameter is random or a glob matches none, if a prior has the wrong shape or has Pyro
            statements, if a layer changes a random weight or its gradient, or if `num_data` is below 1.

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
        likelihood: Likelihood[P_co],
        num_data: int,
        where: Rules = "**",
        exclude: Rules = (),
    ) -> None:
        super().__init__()
        _checks.kind("prior", prior, WeightPrior, "a Prior, such as NormalPrior(1.0)")
        _checks.kind("likelihood", likelihood, Likelihood, "a Likelihood, such as CategoricalLikelihood()")
        self.num_data = _checks.at_least("num_data", num_data, 1)
        self.prior = prior
        own = private_copy(net)
        statements = take_declared(own)
        nn.Module.add_module(self, "net", own)  # the method of `PyroModule` would make its attributes Pyro's again
        likelihood = copy.deepcopy(likelihood)
        for module in (self, likelihood):
            allow_local_mode(module)
        self.likelihood = likelihood
        _functional.refresh_recurrent_weights(own)
        self._interception = Interception()
        self._paths = make_random(own, where, exclude, statements, stacklevel=2)
        first_paths = {name: paths[0] for name, paths in self._paths.items()}
        self._priors = NetworkPriors(prior, own, first_paths, declared_priors(own, statements, self._paths))
        self._declare()
        self.likelihood.to(self.like)

    def _declare(self) -> None:
        """Declare the sample statements, and the parameters of learned priors."""
        for parent in self._priors.children:
            setattr(self, parent, PyroSample(ParentStatement(parent)))
        for name, (parents, _) in self._priors.dependencies.items():
            is_fixed = self._priors.is_fixed(name)
            setattr(self, name, PyroSample(SiteStatement(name, parents, is_fixed=is_fixed)))
        if self._priors.first_values:
            self.add_module("prior_parameters", parameter_tree(self._priors.first_values))

    def _summary(self) -> Summary:
        parts = self.network, self.prior, self._likelihood
        return summary_of(parts, self.num_data, self.like, self._shapes(), list(self._priors.declared))

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
        path = name.removeprefix(f"{PRIOR_PREFIX}.")
        parameter = tree.get_parameter(path)
        return local_param(f"prior_parameters.{path}", parameter) if self._pyro_context.active else parameter

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

    @property
    def like(self) -> Tensor:
        """A tensor that has the device and dtype of the network."""
        return first_value(self.network, *next(iter(self._paths.items())))

    @property
    def network(self) -> nn.Module:
        """The model's own copy of the network, in which random parameters are buffers with their initial values.

        Read inside a call, ``model.net`` would put parameters into Pyro's global store; this property does not.
        """
        net = self._modules["net"]
        assert net is not None
        return net

    @property
    def _likelihood(self) -> Likelihood[P_co]:
        likelihood = self._modules["likelihood"]
        assert isinstance(likelihood, Likelihood)
        return likelihood

    @property
    def device(self) -> torch.device:
        """Device of the network's random parameters, on which the model computes."""
        return self.like.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the network's random parameters."""
        return self.like.dtype

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

    def plain_prior(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin | None:
        """The prior of any latent variable, without Pyro; None if only Pyro can tell, as for a user's own statement.

        Args:
            name: The variable, one of :attr:`latent_names`.
            values: Values of the latent variables before it, ``{site: shape (*event)}``.
        """
        prior: object = self._pyro_samples.get(name)
        if isinstance(prior, SiteStatement):
            prior = self.prior_given(name, values)
        elif isinstance(prior, ParentStatement):
            prior = self.prior_of(name)
        elif prior is None:
            known = self._likelihood_names()
            noise = {site.removeprefix("likelihood."): v for site, v in values.items() if site in known}
            prior = self._likelihood.prior_given(name.removeprefix("likelihood."), noise)
        return prior if isinstance(prior, TorchDistributionMixin) else None

    def _likelihood_names(self) -> list[str]:
        return [f"likelihood.{name}" for name in self._likelihood._pyro_samples]

    def initial_value(self, name: str) -> Tensor:
        """Value of a site's parameter in the caller's network."""
        require_site(name, self._paths)
        return first_value(self.network, name, self._paths[name])

    @pyro_method
    def sample_latents(self, *args: object, **kwargs: object) -> None:
        """A Pyro model with all sample sites of the full one except `obs`, to build guides; arguments are ignored."""
        self._draw_weights()
        for name in self._likelihood._pyro_samples:
            getattr(self._likelihood, name)

    def _draw_weights(self) -> dict[str, Tensor]:
        for parent in self._priors.children:  # first, so that the weights find them in PyroModule's cache
            getattr(self, parent)
        return {name: getattr(self, name) for name in self._paths}

    def observation(self, x: Inputs) -> TorchDistributionMixin:
        """Draw the weights, run the network, and return the elementwise distribution of the targets.

        Args:
            x: Inputs, shape (N, ...).

        Returns:
            A distribution of batch shape ``(*draws, N, ...)``.

        Raises:
            ValueError: If x does not have the device, dtype or shape that the network expects.
        """
        return self._observe(x).distribution

    def forward(self, x: Inputs, y: Tensor | None = None) -> Tensor:
        """The Pyro model: draws the weights, runs the network, and observes y at the site ``obs``; without y, draws it.

        Args:
            x: Inputs, shape (B, ...).
            y: Targets, shape (B, ...).

        Returns:
            The network's output, shape ``(*draws, B, ...)``.

        Raises:
            ValueError: If x or y has a wrong shape, device, dtype or value, or y has more rows than `num_data`.
        """
        response = self._observe(x)
        observed, y = (response.distribution, None) if y is None else response.observed(x, y, self.num_data)
        observation = observed.to_event(len(response.target_shape) - 1)
        with pyro.poutine.scale(scale=self.num_data / num_rows(x)), pyro.plate("data", num_rows(x), dim=-1):
            pyro.sample("obs", observation, obs=y)
        return response.output

    def log_likelihood(self, values: Mapping[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
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
        require_values(values, self.latent_names)
        response = self._respond(self._likelihood_given(values), values, x)
        observed, targets = response.observed(x, y, self.num_data)
        return observed.log_prob(targets).sum() * (self.num_data / num_rows(x))

    def observation_given(self, values: Mapping[str, Tensor], x: Inputs) -> TorchDistributionMixin:
        """The elementwise distribution of the targets, given all latent variables, without Pyro's machinery.

        Args:
            values: A value, shape ``(*draws, *event)``, for every latent variable; further entries are ignored.
            x: Inputs, shape (N, ...).

        Returns:
            A distribution of batch shape ``(*draws, N, ...)``.

        Raises:
            ValueError: If x does not have the device, dtype or shape that the network expects.
        """
        return self._respond(self._likelihood_given(values), values, x).distribution

    def output_given(self, values: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The output of the network, shape ``(*draws, N, ...)``; see :meth:`observation_given`."""
        return self._respond(self._likelihood, values, x, is_lazy=True).output

    def observe(self, output: Tensor, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """The elementwise distribution of targets, given network outputs and the likelihood's latent variables.

        Args:
            output: Network outputs, shape ``(*draws, N, ...)``.
            values: A value, shape ``(*draws, *event)``, for every latent variable of the likelihood at least.
        """
        return self._likelihood_given(values)(output)

    @property
    def interception(self) -> Interception:
        """Where estimators, and memories of earlier calls, enter the calls of the network."""
        return self._interception

    def _likelihood_given(self, values: Mapping[str, Tensor]) -> Likelihood:
        """The likelihood with those of the given values that belong to it."""
        likelihood = self._likelihood
        return likelihood.given({name: values[f"likelihood.{name}"] for name in likelihood._pyro_samples})

    def check_targets(self, x: Inputs, y: Tensor) -> None:
        """Raise a `ValueError` unless y are possible targets of x; only the first row goes through the network."""
        check_input(x, self.like)
        with torch.no_grad(), seeded(0, self.device), eval_mode(self):
            weights = {name: self.initial_value(name) for name in self._paths}
            first = map_inputs(lambda leaf: leaf[:1].clone(), x)  # the network may change it in place
            response = self._respond(self._likelihood.drawn(), weights, first)
        check_shapes(self._likelihood, (num_rows(x), *response.target_shape[1:]), x, y)
        self._likelihood.check_output(response.output)
        self._likelihood.check_targets(response.output, y)

    def check_latents(self, values: Mapping[str, Tensor]) -> None:
        """Raise a `ValueError` unless every latent variable has a value, finite and of the right shape."""
        check_latents(self.latent_names, self._shapes(), values)

    def _shapes(self) -> dict[str, torch.Size]:
        """Shapes of all latent variables except those of the likelihood."""
        shapes = {parent: self._priors.of_parent(parent).event_shape for parent in self._priors.children}
        return shapes | {name: self.initial_value(name).shape for name in self._paths}

    def network_weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the layers use, given a value of every site of the network.

        Args:
            values: ``{site: shape (*event)}``.

        Returns:
            ``{path: shape (*event)}``, tied weights under each path; an embedding's padding row is the network's.
        """
        require_values(values, self._paths)
        pairs = [(path, values[name]) for name, paths in self._paths.items() for path in paths]
        with EXCLUSIVE:  # another thread's draw may be in the network
            return {path: _functional.as_used(self.network, path, value) for path, value in pairs}

    @pyro_method
    def _observe(self, x: Inputs) -> Response:
        """The response to x under weights drawn by Pyro statements."""
        check_input(x, self.like)
        for path, parameter in self.network.named_parameters():
            local_param(f"{SITE_PREFIX}.{path}", parameter)
        weights = {name: self._without_data_axis(name, value) for name, value in self._draw_weights().items()}
        return respond(self.network, self._likelihood, self._paths, weights, x, self._interception)

    def _respond(
        self, likelihood: Likelihood, values: Mapping[str, Tensor], x: Inputs, is_lazy: bool = False
    ) -> Response:
        """The response to x under given weights, free of Pyro; `likelihood` is a twin of the model's."""
        check_input(x, self.like)
        weights = {name: values[name] for name in self._paths}
        return respond(self.network, likelihood, self._paths, weights, x, self._interception, is_lazy=is_lazy)

    def _without_data_axis(self, name: str, value: Tensor) -> Tensor:
        """The value without a data axis, the 1 in the shape (S, 1, *parameter) of vectorised particles."""
        num_lead = value.dim() - self.initial_value(name).dim()
        return value.squeeze(num_lead - 1) if num_lead > 1 else value
