"""The recording of a classifier's accuracy during training."""

from typing import Any

import torch
from torch import Tensor, nn

from .._core.scope import seeded
from ..inference.guides import GuidePosterior
from ..inference.history import History
from ..modelling.model import BayesianModel
from ..results.prediction import predict_point
from ..scores import metrics
from ..scores.uncertainty import ClassificationPrediction
from .accuracy import AccuracyCurve

__all__ = ["AccuracyTracker"]


class AccuracyTracker:
    """A callback for :func:`~pyro_bnn.fit_svi` that measures the accuracy at mean weights after each epoch.

    It restores torch's random generators, so a fit gives the same result with it and without it.

    Args:
        model: The model that is fitted.
        guide: The guide that is fitted; it must have a median.
        train: Training images and labels.
        test: Test images and labels.
    """

    def __init__(
        self, model: BayesianModel, guide: nn.Module, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
    ) -> None:
        self._model, self._guide, self._sets = model, guide, (train, test)
        self._curve = AccuracyCurve((), ())

    def __call__(self, history: History) -> None:
        """Measure both accuracies; the history is not used."""
        with seeded(0, self._model.device), torch.no_grad():
            train, test = (self._accuracy(*part) for part in self._sets)
        self._curve = AccuracyCurve((*self._curve.train, train), (*self._curve.test, test))

    def state_dict(self) -> dict[str, Any]:
        """The accuracies measured so far, for checkpoints of the fit."""
        return {"train": [*self._curve.train], "test": [*self._curve.test]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self._curve = AccuracyCurve.from_dict(state_dict)

    def _accuracy(self, x: Tensor, y: Tensor) -> float:
        prediction = predict_point(self._model, GuidePosterior(self._guide).median(), x.to(self._model.device))
        return metrics.accuracy(prediction.as_kind(ClassificationPrediction).probs, y)

    @property
    def curve(self) -> AccuracyCurve:
        """The accuracies measured so far."""
        return self._curve
