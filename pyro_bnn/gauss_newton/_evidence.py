"""Laplace's estimate of the evidence, and the prior precisions that maximise it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._curvature import Curvature

MAX_ITERATIONS = 1000
TOLERANCE = 1e-9
"""Relative change of the precisions at which the search ends."""

SMALLEST, LARGEST = 1e-8, 1e12
"""Limits of the precisions: where all weights are at their prior means, the evidence grows with them without end."""


@dataclass(frozen=True)
class Expansion:
    """A log joint density around a point, to second order.

    Args:
        log_likelihood: Log-likelihood at the point, in nats.
        squares: Squared distances of the weights from their prior means, shape (P,), in double precision.
        curvature: Curvature of minus the log-likelihood.
    """

    log_likelihood: float
    squares: Tensor
    curvature: Curvature

    def log_evidence(self, prior: Tensor) -> float:
        r"""Laplace's estimate of the log evidence, in nats.

        .. math:: \log p(y) \approx \log p(y \mid w^*)
                  - \tfrac12 \Big[\sum_i \delta_i (w^*_i - m_i)^2 + \log\det(G + \mathrm{diag}\,\delta)
                  - \sum_i \log \delta_i\Big].

        Args:
            prior: Prior precisions, shape (P,).
        """
        fit = float((prior * self.squares).sum())
        return self.log_likelihood - 0.5 * (fit + self.curvature.log_det(prior) - float(prior.log().sum()))

    def best(self, prior: Tensor, groups: Sequence[Sequence[slice]]) -> Tensor:
        r"""The prior precisions at which the log evidence is largest, one number for each group of weights.

        At the maximum, with the effective number of weights :math:`\gamma_g` that the data determine,

        .. math:: \delta_g = \frac{\gamma_g}{\sum_{i \in g} (w^*_i - m_i)^2}, \qquad
                  \gamma_g = P_g - \delta_g \sum_{i \in g} \big[(G + \mathrm{diag}\,\delta)^{-1}\big]_{ii},

        which is iterated.

        Args:
            prior: Where the search begins, shape (P,).
            groups: The weights of each group.

        References:
            MacKay (1992), Bayesian Interpolation, equation 4.
        """
        found = prior.clone()
        for group in groups:  # one number for each group from the beginning
            self._set(found, group, math.exp(float(torch.cat([prior[part].log() for part in group]).mean())))
        for _ in range(MAX_ITERATIONS):
            variances, change = self.curvature.variances(found), 0.0
            for group in groups:
                before = float(found[group[0]][0])
                size = sum(part.stop - part.start for part in group)
                effective = size - before * sum(float(variances[part].sum()) for part in group)
                distance = sum(float(self.squares[part].sum()) for part in group)
                now = min(max(effective / distance if distance else LARGEST, SMALLEST), LARGEST)
                self._set(found, group, now)
                change = max(change, abs(math.log(now / before)))
            if change < TOLERANCE:
                break
        return found

    @staticmethod
    def _set(prior: Tensor, group: Sequence[slice], value: float) -> None:
        for part in group:
            prior[part] = value
