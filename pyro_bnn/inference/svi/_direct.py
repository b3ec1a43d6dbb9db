"""The direct path: the ELBO of a flat guide and its gradients, without effect handlers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core.inputs import num_rows, take
from ..._core.reflection import has_hooks
from ..._core.scope import EXCLUSIVE
from ..estimators import Estimator, random_layers
from ..guides import FlatGuide, FlatState, RandomParameter
from ..joint import Joint
from ._arguments import Batch
from ._batches import Batches
from ._execution import Execution
from ._features import Features
from ._natural import NaturalGradient, mean_field
from ._step import GradientStep


class DirectStep(GradientStep):
    r"""A step on a :class:`BayesianModel` and a :class:`FlatGuide`; :func:`direct_joint` says when it can be used.

    Each of the S draws takes four operations: draw the weights; run the network; run the backward pass of minus the
    log-likelihood; turn its gradients into those in the guide's parameters, and add the gradients of the divergence.
    The :class:`~pyro_bnn.guides.FlatState` of a family of guides defines the first and the last of these.

    Args:
        joint: The model's joint density.
        guide: The guide.
        parameters: Parameters to learn.
        optimizer: Optimizer of these parameters.
        elbo: The bound; its `num_particles` is S.
        estimator: Way in which the noise enters the network; None gives the network drawn values.
        execution: How it is computed.
    """

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
        self._execution = execution
        self._joint, self._estimator, self._num_draws = joint, estimator, int(elbo.num_particles)
        self._features: Features | None = None
        self._stack = ExitStack()
        self._state = self._stack.enter_context(_state(joint, guide, optimizer, elbo, estimator, execution))
        super().__init__(joint.model, guide, parameters, optimizer, execution.processes)

    def close(self) -> None:
        """Give the parameters memory of their own again."""
        self._stack.close()

    def remember(self, batches: Batches, *, is_watched: bool) -> Features:
        """Compute what frozen layers give for all rows; all further steps must then be on the last batch of `batches`.

        Args:
            batches: The data.
            is_watched: Whether code of the user runs between epochs, which may change these layers.
        """
        self._features = Features(self._joint.model, batches, self._execution, is_watched=is_watched)
        return self._features

    def _gradients(self) -> list[Tensor]:
        of_guide = {id(parameter) for parameter in self._state.parameters}
        others = [p.grad for p in self._learned if p.grad is not None and id(p) not in of_guide]
        return [*self._state.gradients, *others]

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        with EXCLUSIVE:  # the network and torch's generators may be shared by threads
            return self._exclusive_backward(batch, weight)

    def _exclusive_backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        self._joint.require_same_priors()
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
        self._state.give_gradients()
        terms = terms / self._num_draws
        return weight * terms[1] - terms[0], terms

    def _require_same_model(self) -> None:
        """Raise if the model was moved, or got hooks, since the step was prepared for it."""
        model, value = self._joint.model, self._state.value
        like = model.like  # once, since it is searched for
        if like.device != value.device or like.dtype != value.dtype:
            raise ValueError(
                f"the model was moved from {value.device} and {value.dtype} to {like.device} and {like.dtype} in the "
                "context of a step; leave the context first, move model and guide, and open a new one."
            )
        if has_hooks(model) or has_hooks(self.guide):
            raise ValueError(
                "hooks of the model or the guide must be set before the first step, got one that was set after it and "
                "would not be called; open a new context with `svi_step`."
            )

    def _draw_once(self, batch: Batch, weight: float) -> Tensor:
        """Set the gradients of one draw; returns its log-likelihood and divergence in nats, shape (2,)."""
        given = self._state.draw()
        version = self._state.value._version
        log_likelihood = self._backward_of_network(given, batch)
        if self._state.value._version != version:
            raise ValueError(
                "the network changes its weights in place (`max_norm`, `clamp_`), and they are then no longer a draw "
                "from the guide; compute the changed weights as new tensors."
            )
        self._last_log_likelihood = log_likelihood
        return torch.stack([self._last_log_likelihood.double(), self._state.pull_back(weight)])

    def _backward_of_network(self, given: Any, batch: Batch) -> Tensor:
        """Add the gradients of minus the log-likelihood to those of the draw; returns the log-likelihood."""
        parts = _cut(batch, self._execution.num_parts)
        total = torch.zeros((), device=self._state.value.device)
        for index, (part, share) in enumerate(parts):
            log_likelihood = self._remembering(given, part)
            loss = -log_likelihood * (share / self._num_draws)
            if loss.requires_grad:  # else the network uses no weight
                self._state.observe(loss)
                loss.backward(retain_graph=index < len(parts) - 1)  # of the values, which all parts share
            total = total + share * log_likelihood.detach() if len(parts) > 1 else log_likelihood.detach()
        return total

    def _remembering(self, given: Any, batch: Batch) -> Tensor:
        if self._features is None:
            return self._log_likelihood(given, batch)
        return self._features.run(lambda: self._log_likelihood(given, batch))

    def _log_likelihood(self, given: Any, batch: Batch) -> Tensor:
        random = {id(p.loc): p for p in given.values() if isinstance(p, RandomParameter)}
        values = {name: p.loc if isinstance(p, RandomParameter) else p for name, p in given.items()}
        estimator, autocast = self._estimator, self._execution.autocast
        if estimator is None and autocast is None:
            return self._joint.log_likelihood(values, batch)

        @contextmanager
        def around(_: object, num_rows: int) -> Iterator[None]:
            layers = nullcontext() if estimator is None else random_layers(estimator, random, num_rows)
            lower = nullcontext() if autocast is None else torch.autocast(self._joint.model.device.type, autocast)
            with layers, lower:
                yield

        with self._joint.model.interception.by(around):
            return self._joint.log_likelihood(values, batch)

    def _bad_site(self) -> str | None:
        bad = self._state.bad_site()
        return bad or (None if bool(torch.isfinite(self._last_log_likelihood)) else "`obs` (its log-density)")


def _state(
    joint: Joint,
    guide: FlatGuide,
    optimizer: Optimizer,
    elbo: ELBO,
    estimator: Estimator | None,
    execution: Execution,
) -> AbstractContextManager[FlatState]:
    """A context with the state of the guide for steps of this optimizer."""
    if isinstance(optimizer, NaturalGradient):
        adds_up = int(elbo.num_particles) > 1 or execution.processes.are_many
        return optimizer.lent(mean_field(guide), joint, adds_up=adds_up)
    noise = None if estimator is None else estimator.noise
    return guide.flat(joint, noise=noise, closed_form=isinstance(elbo, TraceMeanField_ELBO))


def _cut(batch: Batch, num_parts: int) -> list[tuple[Batch, float]]:
    """A batch in nearly equal parts, each with its share of the rows."""
    if num_parts == 1:
        return [(batch, 1.0)]
    rows = num_rows(batch[0])
    bounds = sorted({rows * index // num_parts for index in range(num_parts + 1)})
    return [
        (tuple(take(argument, slice(begin, end)) for argument in batch), (end - begin) / rows)
        for begin, end in pairwise(bounds)
    ]
