"""Predictions of numbers that are observed only in part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from ._frames import array
from ._regression import RegressionPrediction


@dataclass(frozen=True, repr=False)
class CensoredPrediction(RegressionPrediction):
    """A prediction of the values behind censored targets, as seen without limits and with complete follow-up.

    Mean, variances, quantiles, densities and draws are those of these values; only `log_density` is that of the
    censored targets. The probability of survival beyond a time t is ``1 - prediction.cdf(t)``.

    The error of a censored target is unknown, so `score` has only the ``nll``; `crps` and conformal intervals are
    refused.
    """

    def axes_in_words(self) -> str:
        """Number of outputs, and that they are uncensored."""
        return f"uncensored, {super().axes_in_words()}"

    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """The ``nll`` of the targets that were given to `predict`, in nats per row; see :meth:`Prediction.score`."""
        y = self._targets_for_score(y)
        if self.targets is None or y.shape != self.targets.shape or not torch.equal(y.to(self.targets), self.targets):
            raise ValueError(
                "censored targets are scored by the likelihood only, got others than those given to `predict`; call "
                "`predict(..., y=y)`."
            )
        return {"nll": self.nll}

    def crps(self, y: Tensor) -> NoReturn:
        """Refuse: it would score a censored target as if it were complete."""
        raise ValueError(
            "the CRPS needs complete targets, got a prediction for censored ones, whose errors are unknown; use the "
            "log score, `predict(..., y=y).score()`, or for complete values "
            "`metrics.crps_from_draws(prediction.sample(1000), values)`."
        )

    def targets_like(self, y: Tensor) -> NoReturn:
        """Refuse: the error of a censored target is unknown."""
        raise ValueError(
            "calibration needs complete targets, got a prediction for censored ones, whose errors are unknown; use the "
            "quantiles of the prediction."
        )

    def target_columns(self, outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
        """Columns ``target``, or ``time`` and ``event`` of survival times."""
        if self.targets is None or self.targets.shape == self.mean.shape:
            return super().target_columns(outputs)
        return {"time": array(self.targets[..., 0]), "event": array(self.targets[..., 1])}
