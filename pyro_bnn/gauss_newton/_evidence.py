"""Laplace's estimate of the evidence, and the prior precisions that maximise it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ._curvature import Curvature, Groups

MAX_ITERATIONS = 200
TOLERANCE = 1e-7
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
        parts: Where the weights of each parameter are, in order.
    """

    log_likelihood: float
    squares: Tensor
    curvature: Curvature
    parts: Sequence[slice]

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

    def best(self, prior: Tensor, groups: Groups) -> Tensor:
        r"""The prior precisions at which the log evidence is largest, one number for each group of weights.

        At the maximum, with the effective number of weights :math:`\gamma_g` that the data determine,

        .. math:: \delta_g = \frac{\gamma_g}{\sum_{i \in g} (w^*_i - m_i)^2}, \qquad
                  \gamma_g = P_g - \delta_g \sum_{i \in g} \big[(G + \mathrm{diag}\,\delta)^{-1}\big]_{ii},

        which is iterated.

        Args:
            prior: Where the search begins, shape (P,).
            groups: Numbers of the parameters of each group.

        References:
            MacKay (1992), Bayesian Interpolation, equation 4.
        """
        sizes = [sum(self._size(i) for i in group) for group in groups]
        distances = [sum(float(self.squares[self.parts[i]].sum()) for i in group) for group in groups]
        logarithms = [sum(float(prior[self.parts[i]].log().sum()) for i in group) for group in groups]
        values = [math.exp(total / size) for total, size in zip(logarithms, sizes, strict=True)]
        found = prior.clone()
        for _ in range(MAX_ITERATIONS):
            for group, value in zip(groups, values, strict=True):
                for i in group:
                    found[self.parts[i]] = value
            before, traces = values, self.curvature.traces(found, self.parts, groups)
            effective = [size - old * trace for size, old, trace in zip(sizes, before, traces, strict=True)]
            values = [
                min(max(number / distance if distance else LARGEST, SMALLEST), LARGEST)
                for number, distance in zip(effective, distances, strict=True)
            ]
            if max(abs(math.log(new / old)) for new, old in zip(values, before, strict=True)) < TOLERANCE:
                break
        return found

    def _size(self, parameter: int) -> int:
        return len(self.squares[self.parts[parameter]])
