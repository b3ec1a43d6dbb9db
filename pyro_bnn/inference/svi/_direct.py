"""The direct path, which computes the ELBO of a flat guide and its gradients without Pyro's effect handlers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core.copies import copied
from ..._core.inputs import Batch, Inputs, num_rows, take
from ..._core.reflection import has_hooks, is_learned, overridden_names, tensors_of
from ..._core.scope import seeded
from ...modelling.model import BayesianModel
from ..estimators import Estimator
from ..guides import FlatGuide, FlatState, RandomParameter
from ..joint import Joint
from ._batches import Batches
from ._features import Features
from ._natural import NaturalGradient, mean_field
from ._pyro import PyroFunction
from ._step import Execution, GradientStep


def direct_joint(model: nn.Module, guide: nn.Module, elbo: ELBO, x: Inputs) -> Joint | str:
    """Return the joint density for the direct path, or why a trial on x shows that this path cannot be used."""
    if not isinstance(model, BayesianModel):
        kind = "a function" if isinstance(model, PyroFunction) else f"of type {type(model).__name__}"
        return f"the model is {kind}"
    if overridden := overridden_names(type(model), BayesianModel):
        return f"the model, of type {type(model).__name__}, overrides {', '.join(overridden)}"
    if not isinstance(guide, FlatGuide):
        return f"the guide is of type {type(guide).__name__}"
    if guide.changes is not None:
        return guide.changes
    if type(elbo) not in (Trace_ELBO, TraceMeanField_ELBO):
        return f"the bound is {type(elbo).__name__}"
    if elbo.vectorize_particles or elbo.retain_graph:
        return "the bound vectorises its particles or retains its graph"
    if _PYRO_STACK:  # not checked in later steps, since the handlers may then belong to another thread
        return "effect handlers are active"
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if has_hooks(model):
        return "the model or the guide has hooks"
    if model.interception.is_active:
        return "an estimator is applied already"
    if not model.has_fixed_priors:
        return "a prior depends on other variables or is learned"
    joint = guide.joint(model)
    return _of_priors(joint) or guide.obstacle(joint) or _of_network(model, x) or joint


def _of_priors(joint: Joint) -> str | None:
    if any(site.plates for site in joint.sites):
        return "a latent variable is inside a plate"
    if any(is_learned(site.prior) for site in joint.sites):
        return "a prior is learned"
    if any(site.prior.batch_shape or site.prior.event_shape != site.start.shape for site in joint.sites):
        return "a prior and its parameter have different shapes"
    return None


def _of_network(model: BayesianModel, x: Inputs) -> str | None:
    try:
        with seeded(0, model.device), torch.no_grad(), poutine.block():
            tried = copied(model)  # a run changes the buffers of layers such as batch normalisation
            trace: Any = poutine.trace(tried.observation).get_trace(x)
    except Exception as error:  # if the data are wrong, the first step raises a clear error
        return f"the model could not be tried out ({type(error).__name__}: {error})"
    if {*trace.stochastic_nodes} != {*model.latent_names} or trace.observation_nodes:
        return "the network or the likelihood has sites of its own"
    return None


class DirectStep(GradientStep):
    """A step without Pyro's effect handlers. A `FlatState` turns the weights' gradients into those of the guide."""

    def __init__(
        self,
        joint: Joint,
        guide: FlatGuide,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        *,
        elbo: ELBO,
        estimator: Estimator | None,
        execution: Execution,
    ) -> None:
        self._joint, self._estimator, self._num_draws = joint, estimator, int(elbo.num_particles)
        self._statements = joint.model.sample_statements
        self._in_priors = [tensor for site in joint.sites for tensor in tensors_of(site.prior)]
        self._versions = [tensor._version for tensor in self._in_priors]
        self._execution, self._autocast = execution, execution.autocast
        self._features: Features | None = None
        self._stack = ExitStack()
        closed_form = isinstance(elbo, TraceMeanField_ELBO)
        if isinstance(optimizer, NaturalGradient):
            adds_up = self._num_draws > 1 or execution.processes.are_many
            state: Any = optimizer.lent(mean_field(guide), joint, adds_up=adds_up)
        else:
            state = guide.flat(joint, noise=None if estimator is None else estimator.noise, closed_form=closed_form)
        self._state: FlatState = self._stack.enter_context(state)
        super().__init__(joint.model, guide, parameters, optimizer, execution.processes)
        of_guide = {id(parameter) for parameter in self._state.parameters}
        self._others = [parameter for parameter in parameters if id(parameter) not in of_guide]

    def close(self) -> None:
        self._stack.close()

    def remember(self, batches: Batches, *, is_watched: bool) -> Features:
        """Store the outputs of frozen layers. `is_watched` says whether callbacks may change these layers."""
        self._features = Features(self._joint.model, batches, self._execution, is_watched=is_watched)
        return self._features

    def _gradients(self) -> list[Tensor]:
        others = [parameter.grad for parameter in self._others if parameter.grad is not None]
        return [*self._state.gradients, *others]

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        self._require_same_model()
        self._state.begin(weight)
        terms = self._draw_once(batch, weight / self._num_draws)
        if self._num_draws > 1:
            totals = [gradient.clone() for gradient in self._state.gradients]
            for _ in range(self._num_draws - 1):
                terms = terms + self._draw_once(batch, weight / self._num_draws)
                for total, gradient in zip(totals, self._state.gradients, strict=True):
                    total.add_(gradient)
            for total, gradient in zip(totals, self._state.gradients, strict=True):
                gradient.copy_(total)
            terms = terms / self._num_draws
        self._state.give_gradients()
        return weight * terms[1] - terms[0], terms

    def _require_same_model(self) -> None:
        model, value, like = self._joint.model, self._state.value, self._joint.model.like
        is_same = [tensor._version for tensor in self._in_priors] == self._versions
        if not is_same or model.sample_statements != self._statements:
            raise ValueError("a prior was changed during the fit; make a separate fit for each prior.")
        if like.device != value.device or like.dtype != value.dtype:
            raise ValueError(
                f"the model was moved from {value.device} and {value.dtype} to {like.device} and {like.dtype} in the "
                "context of a step; end its `with` block, move model and guide, and begin a new one."
            )
        if has_hooks(model) or has_hooks(self.guide):
            raise ValueError(
                "hooks of the model or the guide must be set before the first step, got a later one, which would not "
                "be called; open a new context with `svi_step`."
            )

    def _draw_once(self, batch: Batch, weight: float) -> Tensor:
        """Compute the gradients for one draw; return log-likelihood and divergence in nats, shape (2,)."""
        given = self._state.draw()
        version = self._state.value._version
        log_likelihood = self._backward_of_network(given, batch)
        if self._state.value._version != version:
            raise ValueError(
                "the network must not change its weights in place (`max_norm`, `clamp_`), since they are then no "
                "longer a draw from the guide; compute the changed weights as new tensors."
            )
        self._last_log_likelihood = log_likelihood
        return torch.stack([log_likelihood.double(), self._state.pull_back(weight)])

    def _backward_of_network(self, given: Mapping[str, Any], batch: Batch) -> Tensor:
        parts = _cut(batch, self._execution.num_parts)
        terms = []
        for index, (part, share) in enumerate(parts):
            log_likelihood = self._log_likelihood(given, part)
            if self._state.simulates:
                log_likelihood, simulated = log_likelihood
                self._state.observe_simulated(simulated, num_rows(part[0]), share / self._num_draws)
            loss = log_likelihood * (-share / self._num_draws)
            if loss.requires_grad:  # false if the network uses none of its weights
                self._state.observe(loss)
                loss.backward(retain_graph=index < len(parts) - 1)  # all parts share the graph of the drawn weights
            terms.append(share * log_likelihood.detach())
        return terms[0] if len(parts) == 1 else torch.stack(terms).sum()

    def _log_likelihood(self, given: Mapping[str, Any], batch: Batch) -> Tensor:
        """Return the log-likelihood of the targets, and of simulated targets if the state needs them."""
        model = self._joint.model
        evaluate = model.log_likelihoods if self._state.simulates else model.log_likelihood

        def compute() -> Tensor:
            if self._estimator is None and self._autocast is None:
                return evaluate(given, *batch)
            values = {name: p.loc if isinstance(p, RandomParameter) else p for name, p in given.items()}
            random = {id(p.loc): p for p in given.values() if isinstance(p, RandomParameter)}
            with model.interception.by(lambda _, num_rows: self._around(random, num_rows)):
                return evaluate(values, *batch)

        return compute() if self._features is None else self._features.run(compute)

    @contextmanager
    def _around(self, random: Mapping[int, RandomParameter], num_rows: int) -> Iterator[None]:
        with ExitStack() as stack:
            if self._estimator is not None:
                stack.enter_context(self._estimator.layers(random, num_rows))
            if self._autocast is not None:
                stack.enter_context(torch.autocast(self._joint.model.device.type, self._autocast))
            yield

    def _bad_site(self) -> str | None:
        bad = self._state.bad_site()
        return bad or (None if bool(torch.isfinite(self._last_log_likelihood)) else "`obs` (its log-density)")


def _cut(batch: Batch, num_parts: int) -> list[tuple[Batch, float]]:
    """Cut a batch into nearly equal parts; return each part with its fraction of the rows."""
    if num_parts == 1:
        return [(batch, 1)]
    rows = num_rows(batch[0])
    bounds = sorted({rows * index // num_parts for index in range(num_parts + 1)})
    return [
        (tuple(take(argument, slice(begin, end)) for argument in batch), (end - begin) / rows)
        for begin, end in pairwise(bounds)
    ]
