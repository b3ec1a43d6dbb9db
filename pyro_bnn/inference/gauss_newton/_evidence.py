"""Laplace's estimate of the evidence, and the prior precisions and noise scales that maximise it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ._curvature import Curvature
from ._noise import Noise

MAX_ITERATIONS = 200

SMALLEST, LARGEST = math.log(1e-8), math.log(1e12)
"""Limits of the logarithms of prior precisions: where all weights are at their prior means, the evidence grows with
them without end."""


@dataclass(frozen=True)
class Evidence:
    r"""Laplace's estimate of the log evidence, as a function of prior precisions and noise scales, in nats.

    .. math:: \log p(y) \approx \log p(y \mid w^*)
              - \tfrac12 \Big[\sum_i \delta_i (w^*_i - m_i)^2 + \log\det(G + \mathrm{diag}\,\delta)
              - \sum_i \log \delta_i\Big].

    Args:
        squares: Squared distances of the weights from their prior means, shape (P,), in double precision.
        curvature: Curvature of minus the log-likelihood.
    """

    squares: Tensor
    curvature: Curvature

    def penalty(self, noise: Tensor, prior: Tensor) -> Tensor:
        """What is subtracted from the log-likelihood, differentiable; for arguments see :meth:`Curvature.log_det`."""
        all_priors = prior.expand(len(self.squares))
        return 0.5 * (all_priors @ self.squares + self.curvature.log_det(noise, prior) - all_priors.log().sum())

    def best(self, prior: Tensor, groups: Tensor | None, noise: Noise) -> tuple[Tensor, Tensor]:
        """The prior precisions, shape (P,), and log noise scales, shape (K,), at which the log evidence is largest.

        Args:
            prior: Prior precisions at which the search begins, shape (P,).
            groups: For each weight the number of its group, shape (P,), whose weights share a precision; None leaves
                the prior as it is.
            noise: What the log-likelihood says about the noise scales; they stay if it says nothing.

        References:
            MacKay (1992), Bayesian Interpolation.
        """
        sizes = torch.zeros(0).to(prior) if groups is None else groups.bincount().to(prior)
        start = torch.zeros_like(sizes)
        if groups is not None:
            start = start.index_add(0, groups, prior.log()) / sizes
        num_groups, is_free = len(sizes), noise.is_free

        def parts(point: Tensor) -> tuple[Tensor, Tensor]:
            """The prior precisions, one number if there is one group, and the log noise scales."""
            logs = point[:num_groups].clamp(SMALLEST, LARGEST).exp()
            chosen = prior if groups is None else logs if num_groups == 1 else logs[groups]
            return chosen, point[num_groups:] if is_free else noise.start

        def loss(point: Tensor) -> Tensor:
            chosen, log_scales = parts(point)
            return self.penalty((-2 * log_scales).exp(), chosen) - noise.log_density(log_scales)

        found = _minimised(loss, torch.cat([start, noise.start] if is_free else [start]))
        chosen, log_scales = parts(found)
        return chosen.expand(len(prior)), log_scales


def _minimised(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    point = start.detach().clone().requires_grad_()
    if not len(point):
        return start
    optimizer = torch.optim.LBFGS(
        [point],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        with torch.enable_grad():
            value = loss(point)
        (point.grad,) = torch.autograd.grad(value, point)
        return value.detach()

    optimizer.step(closure)
    return point.detach()
