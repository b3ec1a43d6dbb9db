"""The direct path: the ELBO of a flat guide and its gradients, without effect handlers."""

from contextlib import ExitStack
from typing import Any, NoReturn

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.optim import Optimizer

from ..estimators import Estimator, random_layers
from ..guides import FlatGuide, RandomParameter
from ..joint import Joint
from ._batches import Batch
from ._step import GradientStep


class DirectStep(GradientStep):
    r"""A step on a :class:`BayesianModel` and a :class:`FlatGuide`; see :func:`obstacle` for when.

    For each of S draws: draw; run the network; its backward pass, of minus the log-likelihood; pull the gradients back
    to the guide's parameters and add those of the divergence. What drawing and pulling back mean for a family of guides
    is in the file of its :class:`~pyro_bnn.guides.FlatState`.

    Args:
        joint: The model's joint density.
        guide: The guide.
        parameters: What is learned.
        optimizer: Over these.
        elbo: The bound.
        estimator: How the network gets the noise; None for drawn values.
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
    ) -> None:
        super().__init__(joint.model, guide, parameters, optimizer)
        self._joint, self._estimator, self._num_draws = joint, estimator, int(elbo.num_particles)
        noise = None if estimator is None else estimator.noise
        self._stack = ExitStack()
        is_mean_field = isinstance(elbo, TraceMeanField_ELBO)
        self._state = self._stack.enter_context(guide.flat(joint, noise=noise, closed_form=is_mean_field))

    def close(self) -> None:
        """Give the parameters back."""
        self._stack.close()

    def _gradients(self) -> list[Tensor]:
        guides = {id(parameter) for parameter in self._state.parameters}
        others = [p.grad for p in self._learned if p.grad is not None and id(p) not in guides]
        return [*self._state.gradients, *others]

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        self._joint.require_same_priors()
        self._state.begin()
        terms = self._draw_once(batch, weight / self._num_draws)
        if self._num_draws > 1:
            gradients = self._state.gradients
            totals = [gradient.clone() for gradient in gradients]
            for _ in range(self._num_draws - 1):
                terms = terms + self._draw_once(batch, weight / self._num_draws)
                for total, gradient in zip(totals, gradients, strict=True):
                    total.add_(gradient)
            for total, gradient in zip(totals, gradients, strict=True):
                gradient.copy_(total)
        self._state.give_gradients()
        terms = terms / self._num_draws
        return weight * terms[1] - terms[0], terms

    def _draw_once(self, batch: Batch, weight: float) -> Tensor:
        """Gradients of one draw, and its log-likelihood and divergence, shape (2,)."""
        given = self._state.draw()
        version = self._state.value._version
        log_likelihood = self._log_likelihood(given, batch)
        loss = -log_likelihood / self._num_draws
        if loss.requires_grad:  # else no weight is used
            loss.backward()
        if self._state.value._version != version:
            raise ValueError(
                "the network changes its weights in place (`max_norm`, `clamp_`), so that they are no draw from the "
                "guide any more; let it compute changed weights instead."
            )
        self._last_log_likelihood = log_likelihood.detach()
        return torch.stack([self._last_log_likelihood.double(), self._state.pull_back(weight)])

    def _log_likelihood(self, given: Any, batch: Batch) -> Tensor:
        if self._estimator is None:
            with _NoSites():
                return self._joint.log_likelihood(given, batch)
        random = {id(p.loc): p for p in given.values() if isinstance(p, RandomParameter)}
        values = {name: p.loc if isinstance(p, RandomParameter) else p for name, p in given.items()}
        estimator = self._estimator
        with self._joint.model.intercepted(lambda _, num_rows: random_layers(estimator, random, num_rows)), _NoSites():
            return self._joint.log_likelihood(values, batch)

    def _bad_site(self) -> str | None:
        bad = self._state.bad_site()
        return bad or (None if bool(torch.isfinite(self._last_log_likelihood)) else "`obs` (its log-density)")


class _NoSites(Messenger):
    """Refuses sites of the network's own, which would be left out of the ELBO."""

    def _pyro_sample(self, msg: Any) -> NoReturn:
        raise ValueError(
            f"the site `{msg['name']}` appeared within the network, but not when it was tried out before the fit. "
            "Make it appear always, or fit with `pyro.infer.SVI`."
        )
