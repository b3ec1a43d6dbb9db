"""The Bayesian model: a network with priors and a likelihood."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn.module import pyro_method
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.functional import NO_COLUMNS
from ..._core.inputs import Inputs, map_inputs, num_rows, shapes, take
from ..._core.remedies import Advised
from ..._core.scope import eval_mode, local_param, seeded
from ..._core.signatures import explained
from ..._core.summary import Shown, Summary
from ...scores.uncertainty import P_co
from ..likelihoods import Likelihood, Weighted, nearest_call
from ..priors import PriorLike, as_prior
from ._latents import LatentVariables
from ._response import Interception, Response, check_input, check_shapes, require_values, respond
from ._selection import SITE_PREFIX, Rules
from ._summary import summary_of

EXAMPLE = "BayesianModel(net, prior=FanInNormalPrior(2.0), likelihood=GaussianLikelihood(0.5), num_data=len(x))"


class BayesianModel(Advised, Shown, LatentVariables[P_co]):
    r"""A Pyro model that gives priors to the weights of any `torch.nn.Module`.

    .. math:: w \sim p(w), \qquad y_n \mid w \sim p(y_n \mid f_w(x_n)), \qquad n = 1, \dots, N.

    The model copies `net`. Each parameter that `where` selects becomes a `PyroSample` of the model, named after its
    path in the network, such as ``net.0.weight``. All others stay learnable. Tied weights are one site.

    A call ``model(x)`` runs the network with weights drawn from the prior, even after a fit, as in Pyro. For
    predictions call :func:`~pyro_bnn.predict`.

    Args:
        net: Network that maps x of shape (N, ...), or several such inputs, to an output of shape (N, ...).
        prior: Prior of each selected parameter. A distribution of one real number, such as ``dist.Normal(0.0, 1.0)``,
            is the prior of each element.
        likelihood: Distribution of y given the network's output. The model copies this object.
        num_data: Number N of rows in the whole data set.
        where: Which parameters are random: a glob on site names (``*`` is one component, ``**`` any number),
            :func:`layers`, a function of name, parameter and layer, or a list of these.
        exclude: Which of these parameters are not random, in the same forms as `where`.

    Raises:
        ValueError: If no parameter is random, if a glob matches none, if a prior has the wrong shape or runs Pyro
            statements, if a layer changes a random weight or its gradient, or if `num_data` is below 1.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, NormalPrior
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> prior = NormalPrior()
        >>> likelihood = CategoricalLikelihood()
        >>> model = BayesianModel(net, prior=prior, likelihood=likelihood, num_data=150)
        >>> model.site_names
        ('net.0.weight', 'net.0.bias', 'net.2.weight', 'net.2.bias')
        >>> model(torch.zeros(5, 4)).shape
        torch.Size([5, 3])

    Notes:
        *Batches.* The weights are drawn outside the data plate. The log-likelihood of B rows is multiplied by
        ``num_data / B``, so the expected ELBO is that of the whole data set. The weights may have leading draw axes, as
        in `Predictive(parallel=True)` and `vectorize_particles=True`.

        *Latent variables of priors.* The variables of a :class:`~pyro_bnn.modelling.priors.HierarchicalPrior` are sites
        like ``prior.0.scale``, drawn before the weights. Its learnable numbers are parameters of the model.

        *Several inputs.* A tuple is passed as ``net(*x)``, and a dictionary as ``net(**x)``. Inputs may be nested. All
        inputs have N rows, except inputs in a :class:`~pyro_bnn.Shared`.

        *Embeddings.* A random embedding keeps the padding row that it has in `net`. The values drawn for this row have
        no effect, so their posterior is the prior.

        *Pyro modules.* Each `PyroSample` attribute of a Pyro module in the network is a site, named after its path. Its
        declared distribution is the prior, regardless of `where` and `prior`. The site is drawn once per call.
    """

    @explained(
        f"{EXAMPLE} for numbers with noise of sd 0.5. The likelihood of classes is CategoricalLikelihood(), that of "
        "counts PoissonLikelihood(). A prior for classifiers is NormalPrior(1.0)"
    )
    def __init__(
        self,
        net: nn.Module,
        *,
        prior: PriorLike,
        likelihood: Likelihood[P_co],
        num_data: int,
        where: Rules = "**",
        exclude: Rules = (),
    ) -> None:
        if isinstance(net, BayesianModel):
            raise ValueError("`net` must have no priors, got a BayesianModel; pass the module from which it was made.")
        prior = as_prior("prior", prior)
        _require_likelihood(likelihood)
        num_data = _checks.at_least("num_data", num_data, 1)
        super().__init__(net, prior, copy.deepcopy(likelihood), where, exclude)
        self.num_data, self.prior = num_data, prior
        self.interception = Interception()
        """Lets an estimator or a memory of results change how calls of the network are computed."""
        self.likelihood.to(self.like)

    def _summary(self) -> Summary:
        parts = self.network, self.prior, self._likelihood
        return summary_of(parts, self.num_data, self.like, self._shapes(), list(self._priors.declared))

    def observation(self, x: Inputs) -> TorchDistributionMixin:
        """Return the distribution of the targets under newly drawn weights."""
        return self._observe(x).distribution

    def forward(self, x: Inputs, y: Tensor | None = None) -> Tensor:
        """Draw the weights, run the network, and observe y at the Pyro site ``obs``.

        Args:
            x: Inputs, shape (B, ...).
            y: Targets, shape (B, ...). With ``None``, ``obs`` is drawn.

        Returns:
            The network's output, shape ``(*draws, B, ...)``.

        Raises:
            ValueError: If x or y has a wrong shape, device, dtype or value, or y has more rows than `num_data`.
        """
        response = self._observe(x)
        observed, y = (response.distribution, None) if y is None else response.observed(x, y, self.num_data)
        observation = observed.to_event(len(observed.batch_shape) - response.num_lead - 1)
        with pyro.poutine.scale(scale=self.num_data / num_rows(x)), pyro.plate("data", num_rows(x), dim=-1):
            pyro.sample("obs", observation, obs=y)
        return response.output

    def log_likelihood(self, values: Mapping[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        """Estimate the log-likelihood of the whole data set from a batch, in nats.

        Args:
            values: Values of all latent variables, ``{site: shape (*event)}``.
            x: Inputs, shape (B, ...).
            y: Targets, shape (B, ...).

        Returns:
            The log-likelihood of the batch times ``num_data / B``, differentiable in the values.
        """
        observed, targets = self._observed(values, x, y)
        return observed.log_prob(targets).sum() * (self.num_data / len(y))

    def log_likelihoods(self, values: Mapping[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        r"""Return the log-likelihoods of the targets and of simulated targets, from one run of the network.

        Averaged over simulations, the squared gradient of the second log-likelihood is :math:`(N / B)\,F`. Here N is
        `num_data`, B is the number of rows, and F is the diagonal of the whole data set's Gauss-Newton matrix. Row
        weights in y apply to both.

        Returns:
            The two log-likelihoods in nats, shape (2,).
        """
        observed, targets = self._observed(values, x, y)
        base, simulated = observed, observed.sample()
        if isinstance(observed, Weighted):  # a row of weight w counts w times, and its gradient is squared
            base = Weighted(observed.base, observed.weights.sqrt())
        terms = [observed.log_prob(targets).sum(), base.log_prob(simulated).sum()]
        return torch.stack(terms) * (self.num_data / len(y))

    def _observed(self, values: Mapping[str, Tensor], x: Inputs, y: Tensor) -> tuple[TorchDistributionMixin, Tensor]:
        try:
            likelihood, weights = self._likelihood_given(values), {name: values[name] for name in self._paths}
        except (KeyError, TypeError, IndexError):
            require_values(values, self.latent_names)
            raise
        return self._respond(likelihood, weights, x).observed(x, y, self.num_data)

    def observation_given(self, values: Mapping[str, Tensor], x: Inputs) -> TorchDistributionMixin:
        """Return the elementwise distribution of the targets given all latent variables.

        Args:
            values: Values of all latent variables, ``{site: shape (*draws, *event)}``. Other entries are ignored.
            x: Inputs, shape (N, ...).

        Returns:
            A distribution of batch shape ``(*draws, N, ...)``.

        Raises:
            ValueError: If x does not have the device, dtype or shape that the network expects.
        """
        return self._respond(self._likelihood_given(values), values, x).distribution

    def output_given(self, values: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """Return the output, shape ``(*draws, N, ...)``; see :meth:`observation_given`."""
        return self._respond(self._likelihood, values, x).output

    def observe(self, output: Tensor, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """Return the elementwise distribution of the targets for given outputs.

        Args:
            output: Network outputs, shape ``(*draws, N, ...)``.
            values: The likelihood's latent variables, ``{site: shape (*draws, *event)}``.
        """
        return self._likelihood_given(values)(output)

    def check_targets(self, x: Inputs, y: Tensor) -> None:
        """Run the network on the first row, and raise a `ValueError` unless y can be the targets of x."""
        check_input(x, self.like)
        response, observed = self._first_response(x)
        check_shapes(self._likelihood, observed, x, y)
        self._likelihood.check_output(response.output)
        self._likelihood.check_targets(response.output, y)

    def check_target_shape(self, x: Inputs, y: Tensor) -> None:
        """Raise a `ValueError` if x has a wrong device or dtype, or y a wrong device or shape.

        The network runs on the first row. If the run fails, y is not checked, since some networks need several rows.
        """
        check_input(x, self.like)
        try:
            response, observed = self._first_response(x)
        except Exception as error:
            if NO_COLUMNS in str(error):
                raise
            return
        try:
            check_shapes(self._likelihood, observed, x, y)
        except ValueError:
            self._likelihood.check_output(response.output)  # a wrong output may be the reason
            raise

    def _first_response(self, x: Inputs) -> tuple[Response, tuple[int, ...]]:
        with torch.no_grad(), seeded(0, self.device), eval_mode(self):
            weights = {name: self.initial_value(name) for name in self._paths}
            num_first = 2 if isinstance(x, Tensor) and x.dim() == 1 else 1  # one row could be taken for columns
            first = map_inputs(torch.clone, take(x, slice(num_first)))  # the network may change it in place
            try:
                response = self._respond(self._likelihood.drawn(), weights, first)
            except ValueError as error:
                if NO_COLUMNS in str(error):
                    raise ValueError(f"`x` is of shape {shapes(x)}; {NO_COLUMNS}.") from error
                of_first, of_all = (f"`x` of shape {shapes(rows)}" for rows in (first, x))
                error.args = (str(error).replace(of_first, of_all),)
                raise
            return response, (num_rows(x), *response.target_shape[1:])

    @pyro_method
    def _observe(self, x: Inputs) -> Response:
        """Draw weights by Pyro statements, and run the network."""
        check_input(x, self.like)
        for path, parameter in self.network.named_parameters():
            local_param(f"{SITE_PREFIX}.{path}", parameter)
        weights = {name: self._without_data_axis(name, value) for name, value in self._draw_weights().items()}
        response = respond(self.network, self._likelihood, self._paths, weights, x, self.interception)
        _ = response.distribution  # made here, since it may have Pyro statements, which belong to this call
        return response

    def _respond(self, likelihood: Likelihood, values: Mapping[str, Tensor], x: Inputs) -> Response:
        """Run the network with given weights. `likelihood` must not use Pyro."""
        check_input(x, self.like)
        return respond(self.network, likelihood, self._paths, values, x, self.interception)

    def _without_data_axis(self, name: str, value: Tensor) -> Tensor:
        """Remove the data axis that vectorised particles add: ``(S, 1, *parameter)`` becomes ``(S, *parameter)``."""
        num_lead = value.dim() - self.initial_value(name).dim()
        return value.squeeze(num_lead - 1) if num_lead > 1 else value


def _require_likelihood(value: object) -> None:
    if not isinstance(value, Likelihood):
        got = repr(value) if isinstance(value, str) else _checks.described(value)
        call = (
            nearest_call(value) or "GaussianLikelihood(0.5) for noise of sd 0.5 or CategoricalLikelihood() for classes"
        )
        raise ValueError(f"`likelihood` must be a Likelihood, got {got}; write {call}.")


def random_paths(model: BayesianModel) -> set[str]:
    """Return the paths of all random parameters, several for tied weights."""
    return {path for paths in model.parameter_paths.values() for path in paths}


def network_values(model: BayesianModel) -> dict[str, Tensor]:
    """Return the learned parameters and buffers of the network, ``{"net.PATH": value}``."""
    random = random_paths(model)
    tensors = {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}
    return {f"{SITE_PREFIX}.{path}": value.detach() for path, value in tensors.items() if path not in random}


def require_bayesian(model: object, purpose: str = "", *, instead: str = "") -> None:
    """Raise unless `model` is a BayesianModel. `instead` says what to call for a Pyro model of the user."""
    if not isinstance(model, BayesianModel):
        remedy = f"; make one, such as {EXAMPLE}" if isinstance(model, nn.Module | type) else ""
        if instead and callable(model) and not remedy:
            remedy = f"; for a Pyro model of your own, {instead}"
        raise ValueError(f"`model` must be a BayesianModel{purpose}, got {_checks.described(model)}{remedy}.")


def own_paths(model: BayesianModel) -> dict[str, str]:
    """Return ``{name in a draw: path}`` for the network's parameters and buffers."""
    tensors = itertools.chain(model.network.named_parameters(), model.network.named_buffers())
    return {f"{SITE_PREFIX}.{path}": path for path, _ in tensors}


def carried_paths(model: BayesianModel, values: Iterable[str], what: str = "`values` has") -> dict[str, str]:
    """Return ``{name: path}`` for all names except latent variables; raise if the network has no such tensor."""
    others = [name for name in values if name not in model.latent_names]
    own = own_paths(model) if others else {}
    unknown = [name for name in others if name not in own]
    if unknown:
        raise ValueError(
            f"{what} {unknown[:3]}, which are neither latent variables nor parameters or buffers of the network; the "
            f"latent variables are {list(model.latent_names)[:10]}."
        )
    return {name: own[name] for name in others}
