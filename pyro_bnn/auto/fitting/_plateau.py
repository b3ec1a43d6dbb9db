"""The stopping rule of a fit: its objective rises by less than its noise, after the learning rate was lowered twice."""

import math
from typing import Any

from ...inference.history import History
from ...inference.svi import Trend, trend_of

DECAYS = (1.0, 0.3, 0.1)
"""Factors of the learning rate, in order. Heuristic: the variance at the end of a fit is proportional to the learning
rate, so the last factor reduces this variance to a tenth."""

WINDOW_STEPS, WINDOW_EPOCHS = 400, 10
"""Heuristic: a trend is fitted to the last epochs: at least this number of steps, and this number of epochs."""

NUM_ERRORS = 1.0
"""Heuristic: a rise of at most this many standard errors counts as noise. Without a trend, five of six checks end the
fit; after the others the fit continues for a quarter of a window."""

NEGLIGIBLE = 0.1
"""Heuristic: a smaller rise of the whole data set's ELBO over a window, in nats, is ignored, even without noise."""


def is_flat(trend: Trend) -> bool:
    """Whether the objective rose by no more than its noise, or by a negligible amount."""
    return trend.rise <= max(NUM_ERRORS * trend.noise, NEGLIGIBLE)


class Plateau:
    """A callback that ends a fit when its objective no longer rises.

    The objective is the expected log-likelihood minus the weighted KL. At the first plateaus, :attr:`factor` becomes
    the next of `decays`, and the fit continues. The schedule of the learning rate must use this factor.
    """

    def __init__(self) -> None:
        self.decays: tuple[float, ...] = DECAYS
        self.trend: Trend | None = None
        self.is_converged = False
        self._stage, self._begin = 0, 0

    @property
    def factor(self) -> float:
        """Present factor of the learning rate."""
        return self.decays[self._stage]

    def __call__(self, history: History) -> bool:
        """Check the objective at every quarter of a window; True ends the fit."""
        num_epochs = len(history.epochs) - self._begin
        window = window_of(len(history.elbo) / len(history.epochs))
        if num_epochs < window or (num_epochs - window) % max(window // 4, 1):
            return False
        records = history.epochs[-window:]
        self.trend = trend_of([record.expected_log_likelihood - record.kl_weight * record.kl for record in records])
        if not is_flat(self.trend) or any(record.kl_weight != records[-1].kl_weight for record in records):
            return False
        if self._stage + 1 < len(self.decays):
            self._stage, self._begin = self._stage + 1, len(history.epochs)
            return False
        self.is_converged = True
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state of the callback; see :class:`~pyro_bnn.inference.svi.StatefulCallback`."""
        trend = None if self.trend is None else [self.trend.num_values, self.trend.rise, self.trend.noise]
        return {"stage": self._stage, "begin": self._begin, "converged": self.is_converged, "trend": trend}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._stage, self._begin = state_dict["stage"], state_dict["begin"]
        self.is_converged, trend = state_dict["converged"], state_dict["trend"]
        self.trend = None if trend is None else Trend(*trend)


def window_of(num_batches: float) -> int:
    """Number of epochs to which a trend is fitted, given the number of steps in each."""
    return max(WINDOW_EPOCHS, math.ceil(WINDOW_STEPS / num_batches))
