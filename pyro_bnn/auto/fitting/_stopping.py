"""Rules that end a fit: at a plateau of the objective, or when predictions of validation rows do not improve."""

import copy
import math
import time
from typing import Any

from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import Inputs
from ...inference.guides import GuidePosterior
from ...inference.history import History
from ...inference.svi import Trend, trend_of
from ...modelling.model import BayesianModel
from ...results.prediction import predict

DECAYS = (1.0, 0.3, 0.1)
"""Heuristic: factors of the initial learning rate. The variance of the fitted parameters is proportional to it."""

WINDOW_STEPS, WINDOW_EPOCHS = 400, 10
"""Heuristic: smallest number of steps, and smallest number of epochs, to which a trend is fitted."""

NUM_ERRORS = 1.0
"""Heuristic: a rise of at most this many standard errors is noise. Without a trend, five in six checks end the fit."""

NEGLIGIBLE = 0.1
"""Heuristic: if the ELBO of the whole data set rises by less than this many nats over a window, it counts as flat."""

NUM_SAMPLES = 10
"""Heuristic: number of weight draws in a check. Errors of checks nearly cancel: the random numbers are the same."""

SEED = 0
"""Seed of the weight draws in checks of the validation rows."""

NUM_CHECKS = 10
"""Heuristic: the fit ends after this many checks in a row without a new best value, as in scikit-learn."""


def is_flat(trend: Trend) -> bool:
    """Return whether the objective rose by no more than its noise, or by a negligible amount."""
    return trend.rise <= max(NUM_ERRORS * trend.noise, NEGLIGIBLE)


class Plateau:
    """A callback that ends a fit at the last plateau of its objective; at each earlier one, :attr:`factor` changes."""

    def __init__(self) -> None:
        self.decays: tuple[float, ...] = DECAYS
        self.trend: Trend | None = None
        self.is_converged = False
        self._stage, self._begin = 0, 0

    @property
    def factor(self) -> float:
        """The number by which the initial learning rate is multiplied now."""
        return self.decays[self._stage]

    def __call__(self, history: History) -> bool:
        """Check the objective if a check is due, and return True to end the fit."""
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
        trend = None if self.trend is None else [self.trend.num_values, self.trend.rise, self.trend.noise]
        return {"stage": self._stage, "begin": self._begin, "converged": self.is_converged, "trend": trend}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stage, self._begin = state_dict["stage"], state_dict["begin"]
        self.is_converged, trend = state_dict["converged"], state_dict["trend"]
        self.trend = None if trend is None else Trend(*trend)


def window_of(num_batches: float) -> int:
    """Return the number of epochs to which a trend is fitted, given the number of batches in an epoch."""
    return max(WINDOW_EPOCHS, math.ceil(WINDOW_STEPS / num_batches))


LATE = (0.7, 0.85)
"""Heuristic: shares of the time of :class:`TimeLimit` after which the learning rate is lowered."""


FEWEST_STEPS = 200
"""Heuristic: smallest number of steps of a fit with a time limit. With fewer steps, predictions are of no use."""


class TimeLimit:
    """A callback that ends a fit when `time.perf_counter` reaches `end`, but not before `FEWEST_STEPS` steps."""

    def __init__(self, end: float) -> None:
        self._begin, self._end = time.perf_counter(), end
        self.is_over = False

    @property
    def factor(self) -> float:
        """The largest number by which the initial learning rate may be multiplied now."""
        share = (time.perf_counter() - self._begin) / max(self._end - self._begin, 1e-9)
        return DECAYS[sum(share > late for late in LATE)]

    def __call__(self, history: History) -> bool:
        self.is_over = time.perf_counter() >= self._end and len(history.elbo) >= FEWEST_STEPS
        return self.is_over


class EarlyStopping:
    """A callback that ends a fit when the mean log-density of validation rows, in nats, no longer improves."""

    def __init__(
        self, model: BayesianModel, guide: nn.Module, validation: tuple[Inputs, Tensor], *, every: int
    ) -> None:
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            raise ValueError(f"`validation` must be a pair (x, y), got {_checks.described(validation)}.")
        self._model, self._guide, (self._x, self._y) = model, guide, validation
        self.every = every
        self.log_densities: list[float] = []
        self._best: dict[str, dict[str, Tensor]] = {}

    @property
    def best_epoch(self) -> int:
        """Number of epochs before the check with the largest log-density; 0 if there was no check."""
        return self.every * (self._best_look + 1)

    @property
    def _best_look(self) -> int:
        return max(range(len(self.log_densities)), key=self.log_densities.__getitem__, default=-1)

    @property
    def is_ended(self) -> bool:
        """Whether the last `NUM_CHECKS` checks had no new best value."""
        return len(self.log_densities) - 1 - self._best_look >= NUM_CHECKS

    def __call__(self, history: History) -> bool:
        """Check the validation rows if a check is due, and return True to end the fit."""
        if len(history.epochs) % self.every:
            return False
        posterior = GuidePosterior(self._guide)
        prediction = predict(self._model, posterior, self._x, y=self._y, num_samples=NUM_SAMPLES, seed=SEED)
        assert prediction.log_density is not None
        value = float(prediction.log_density.double().mean())
        self.log_densities.append(value if math.isfinite(value) else -math.inf)
        if self._best_look == len(self.log_densities) - 1:
            self._best = copy.deepcopy({"model": self._model.state_dict(), "guide": self._guide.state_dict()})
        return self.is_ended

    def restore_best(self) -> None:
        """Reset the model and the guide to their states at the check with the largest log-density, if there was one."""
        if self._best:
            self._model.load_state_dict(self._best["model"])
            self._guide.load_state_dict(self._best["guide"])

    def state_dict(self) -> dict[str, Any]:
        return {"log_densities": list(self.log_densities), "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.log_densities, self._best = list(state_dict["log_densities"]), state_dict["best"]
