"""A step with one of Pyro's ELBOs, for any model and guide."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core.inputs import Batch
from ..._core.scope import filtered_warnings, own_parameters, short_errors
from ...modelling.model import BayesianModel
from ..estimators import Applied, Estimator
from ..guides import MeanFieldGuide
from ._step import Execution, GradientStep, StepTerms

SMALLEST_KL_WEIGHT = 1e-30
"""Smallest KL weight of a step. The weighted KL can still be divided by it, and gradients do not feel it."""

SMALLEST_DIVISOR = 1e-3
"""Heuristic: smallest KL weight by which a loss is divided; smaller ones would magnify rounding errors."""


class PyroStep(GradientStep):
    """A step with one of Pyro's ELBOs. The step ignores all options of `execution` except `distributed`."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        *,
        elbo: ELBO,
        estimator: Estimator | None,
        execution: Execution,
    ) -> None:
        super().__init__(model, guide, parameters, optimizer, execution.processes)
        self._contexts = _contexts(estimator, model, guide, elbo)
        self._elbo: Any = copy.copy(elbo)
        # All ELBOs of Pyro get their traces from `_get_trace`. The two terms of the loss are computed from the traces.
        self._traces: list[tuple[Trace, Trace]] = []
        get_trace = self._elbo._get_trace

        def recorded(*args: object, **kwargs: object) -> tuple[Trace, Trace]:
            self._traces.append(get_trace(*args, **kwargs))
            return self._traces[-1]

        vars(self._elbo)["_get_trace"] = recorded

    def close(self) -> None:
        """Do nothing, since this step does not move the parameters in memory."""

    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        try:
            with own_parameters(self.model, self.guide):  # in each step: another open step may use the same names
                return super().__call__(batch, kl_weight)
        finally:
            self._traces.clear()

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        weight = max(weight, SMALLEST_KL_WEIGHT)
        scaled = nullcontext() if weight == 1.0 else _ScaleLatents(weight)
        quiet = filtered_warnings("ignore", "Encountered (NaN|[+-]?inf)")  # a NonFiniteError follows
        with short_errors(), self._contexts[weight >= SMALLEST_DIVISOR], scaled, quiet:
            loss = float(self._elbo.loss_and_grads(self.model, self.guide, *batch))
        terms = torch.stack(self._terms(loss, weight))
        return torch.full_like(terms[0], loss), terms

    def _terms(self, loss: float, weight: float) -> tuple[Tensor, Tensor]:
        """Return the expected log-likelihood and the KL, without waiting for a GPU."""
        pairs, num_particles = self._traces, self._elbo.num_particles
        zero = torch.zeros((), dtype=torch.float64, device=self._is_finite.device)
        log_likelihood = sum((_log_prob(model, model.observation_nodes) for model, _ in pairs), zero) / num_particles
        if isinstance(self._elbo, TraceMeanField_ELBO) and weight >= SMALLEST_DIVISOR:
            return log_likelihood, (loss + log_likelihood) / weight
        parts = (_log_prob(g, g.stochastic_nodes) - _log_prob(m, m.stochastic_nodes) for m, g in pairs)
        return log_likelihood, sum(parts, zero) / weight / num_particles

    def _bad_site(self) -> str | None:
        for model_trace, guide_trace in self._traces:
            for node in [*guide_trace.nodes.values(), *model_trace.nodes.values()]:
                if node["type"] != "sample":
                    continue
                if not bool(torch.isfinite(torch.as_tensor(node["value"])).all()):
                    return f"`{node['name']}` (its value)"
                if not bool(torch.isfinite(torch.as_tensor(node.get("log_prob_sum", 0.0)))):
                    return f"`{node['name']}` (its log-density)"
        return None


class _ScaleLatents(Messenger):
    """Multiplies the log-density of each latent site by a weight, in the model and in the guide."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self._weight = weight

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self._weight


def _contexts(
    estimator: Estimator | None, model: nn.Module, guide: nn.Module, elbo: ELBO
) -> Sequence[AbstractContextManager[None]]:
    """Return two handlers that apply the estimator: for a KL from draws, and for one that `elbo` computes itself."""
    if estimator is None:
        return nullcontext(), nullcontext()
    assert isinstance(model, BayesianModel)
    assert isinstance(guide, MeanFieldGuide)
    is_mean_field = isinstance(elbo, TraceMeanField_ELBO)
    return Applied(estimator, model, guide), Applied(estimator, model, guide, closed_form=is_mean_field)


def _log_prob(trace: Trace, names: list[str]) -> Tensor | float:
    return sum(trace.nodes[name]["log_prob_sum"].detach().double() for name in names)
