"""One optimisation step: the gradients of the two terms of the ELBO, a check, an update."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, cast

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import _checks
from ..estimators import Estimator
from ..guides import MeanFieldGuide
from ..model import BayesianModel
from ._batches import Batch

SMALLEST_KL_WEIGHT = 1e-30
"""What a KL weight of 0 is computed with, so that the KL can still be read off; no gradient feels it."""

SMALLEST_DIVISOR = 1e-3
"""Heuristic: with a smaller weight a closed-form KL is not divided out of the loss, which would magnify rounding."""


class NonFiniteError(RuntimeError):
    """A loss or gradient was not finite; the parameters are still those of the last finite step."""


class Step(ABC):
    """One optimisation step, with the loss split into its two terms.

    Args:
        model: The model.
        guide: The guide.
        parameters: What is learned, all on one device.
        optimizer: Over these.
        clip_norm: Largest norm of the whole gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        clip_norm: float | None,
    ) -> None:
        self.model, self.guide, self.optimizer = model, guide, optimizer
        self._parameters, self._clip_norm = parameters, clip_norm
        can_skip = getattr(optimizer, "_step_supports_amp_scaling", False) and optimizer.defaults.get("fused")
        self.waits = not (can_skip and parameters[0].is_cuda)
        self._is_finite = torch.ones((), dtype=torch.bool, device=parameters[0].device)

    @abstractmethod
    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        """Set the gradients; returns the loss, and expected log-likelihood and KL in nats, shape (2,)."""

    @abstractmethod
    def _bad_site(self) -> str | None:
        """The first site, in the last call of :meth:`_backward`, whose value or log-density is not finite."""

    def ready(self) -> AbstractContextManager[None]:
        """A context in which steps can be made."""
        return nullcontext()

    def _gradients(self) -> list[Tensor]:
        """All gradients, as few tensors as may be."""
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def __call__(self, batch: Batch, weight: float, where: str) -> Tensor:
        """Update the parameters; returns expected log-likelihood and KL in nats, and whether to go on, shape (3,).

        A GPU would have to be waited for to know whether all is finite. Where the optimizer can be told on the device
        to do nothing, it is not waited for: after a step that is not finite no further one has an effect.
        """
        self.optimizer.zero_grad()
        loss, terms = self._backward(batch, weight)
        checked = [loss, *(gradient.norm() for gradient in self._gradients())]
        is_finite = torch.isfinite(torch.stack([value.to(loss) for value in checked])).all()
        if self.waits and not bool(is_finite):
            self._fail(loss, where)
        self._is_finite &= is_finite
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        with nullcontext() if self.waits else _skipping(self.optimizer, ~self._is_finite):
            self.optimizer.step()
        return torch.cat([terms, self._is_finite.to(terms).view(1)])

    def _fail(self, loss: Tensor, where: str) -> NoReturn:
        if torch.isfinite(loss):
            what, site = "gradient", self._bad_gradient() or "unknown"
        else:
            what, site = "loss", self._bad_site() or "unknown (every site is finite by itself)"
        self.optimizer.zero_grad()
        raise NonFiniteError(
            f"the {what} is not finite at {where}; the first bad site is {site}. The parameters are those of the last "
            "finite step. Try a lower learning rate, `clip_norm`, a smaller initial scale, or inputs of unit scale."
        )

    def _bad_gradient(self) -> str | None:
        for owner in (self.guide, self.model):
            for name, parameter in owner.named_parameters():
                if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                    return f"`{name}`"
        return None


@contextmanager
def _skipping(optimizer: Any, flag: Tensor) -> Iterator[None]:
    """Within it, a fused optimizer leaves the parameters alone if the flag is set: what torch's `GradScaler` does."""
    optimizer.grad_scale, optimizer.found_inf = None, flag.float()
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf


class PyroStep(Step):
    """A step by one of Pyro's ELBOs, for any model and guide."""

    def __init__(self, *args: Any, elbo: Any, contexts: "Contexts") -> None:
        super().__init__(*args)
        # Every ELBO of Pyro's gets its traces here; they hold the two terms, which its loss has already added up.
        self._elbo, self._contexts = elbo, contexts
        self._traces: list[tuple[Trace, Trace]] = []
        get_trace = elbo._get_trace

        def recorded(*args: object, **kwargs: object) -> tuple[Trace, Trace]:
            self._traces.append(get_trace(*args, **kwargs))
            return self._traces[-1]

        elbo._get_trace = recorded

    def __call__(self, batch: Batch, weight: float, where: str) -> Tensor:
        """Update the parameters; see :meth:`Step.__call__`."""
        try:
            return super().__call__(batch, weight, where)
        finally:
            self._traces.clear()

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        weight = max(weight, SMALLEST_KL_WEIGHT)
        with self._contexts[weight >= SMALLEST_DIVISOR], nullcontext() if weight == 1.0 else _ScaleLatents(weight):
            loss = float(self._elbo.loss_and_grads(self.model, self.guide, *batch))
        terms = torch.tensor(self._terms(loss, weight), dtype=torch.float64)
        return torch.tensor(loss, dtype=torch.float64), terms

    def _terms(self, loss: float, weight: float) -> tuple[float, float]:
        pairs, num_particles = self._traces, self._elbo.num_particles
        log_likelihood = sum(_log_prob(model, model.observation_nodes) for model, _ in pairs) / num_particles
        if isinstance(self._elbo, TraceMeanField_ELBO) and weight >= SMALLEST_DIVISOR:
            return log_likelihood, (loss + log_likelihood) / weight
        kl = sum(_log_prob(g, g.stochastic_nodes) - _log_prob(m, m.stochastic_nodes) for m, g in pairs)
        return log_likelihood, kl / weight / num_particles

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
    """Multiplies the weight of latent sites, and so of the KL term, in model and guide alike."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self._weight = weight

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self._weight


Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]


def contexts_of(estimator: Estimator | None, model: nn.Module, guide: nn.Module, elbo: type[ELBO]) -> Contexts:
    """The estimator's contexts: where the KL is also read off weights, which must then be draws, and where not."""
    if estimator is None:
        return nullcontext(), nullcontext()
    _checks.kind("estimator", estimator, Estimator, "an Estimator, such as LocalReparameterization()")
    model = cast(BayesianModel, model)  # checked next
    guide = cast(MeanFieldGuide, guide)
    exact = estimator.applied(model, guide, elbo=elbo)
    return estimator.applied(model, guide, elbo=Trace_ELBO), exact


def _log_prob(trace: Trace, names: list[str]) -> float:
    return sum(trace.nodes[name]["log_prob_sum"].item() for name in names)
