"""Early stopping: keeps the epoch that predicts validation rows best."""

import copy
import math
from typing import Any

from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import Inputs
from ...inference.guides import GuidePosterior
from ...inference.history import History
from ...modelling.model import BayesianModel
from ...results.prediction import predict

NUM_SAMPLES = 10
"""Heuristic: number of weight draws in a check of the validation rows. All checks use the same random numbers, so that
their errors cancel."""

SEED = 0
"""Seed of these draws."""

NUM_CHECKS = 10
"""Heuristic, as in scikit-learn: the fit ends after this many checks in a row without a new best."""


class EarlyStopping:
    """A callback that ends a fit when the predictions of validation rows stop improving.

    Every `every` epochs it compares the mean log-density of the validation targets, in nats.
    :meth:`restore_best` resets model and guide to the epoch with the largest value.
    """

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
        """Epoch of the best posterior; 0 before the first check."""
        return self.every * (self._best_look + 1)

    @property
    def _best_look(self) -> int:
        return max(range(len(self.log_densities)), key=self.log_densities.__getitem__, default=-1)

    @property
    def is_ended(self) -> bool:
        """Whether too many checks in a row had no new best value."""
        return len(self.log_densities) - 1 - self._best_look >= NUM_CHECKS

    def __call__(self, history: History) -> bool:
        """Check the validation rows if it is time; True ends the fit."""
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
        """Reset model and guide to their state at the best check, if there was a check."""
        if self._best:
            self._model.load_state_dict(self._best["model"])
            self._guide.load_state_dict(self._best["guide"])

    def state_dict(self) -> dict[str, Any]:
        """The state of the callback; see :class:`~pyro_bnn.inference.svi.StatefulCallback`."""
        return {"log_densities": list(self.log_densities), "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.log_densities, self._best = list(state_dict["log_densities"]), state_dict["best"]
