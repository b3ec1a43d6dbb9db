"""The accuracy of a classifier by epoch, recorded during training."""

import csv
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from .. import metrics
from .._scope import seeded
from ..guides import GuidePosterior
from ..history import History
from ..model import BayesianModel
from ..prediction import predict_point

__all__ = ["AccuracyCurve", "AccuracyTracker"]


@dataclass(frozen=True)
class AccuracyCurve:
    """Accuracy at mean weights after each epoch.

    Args:
        train: Accuracy on training data, one fraction per epoch.
        test: Accuracy on test data (or on a validation set), one fraction per epoch.
    """

    train: tuple[float, ...]
    test: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise ValueError(f"`train` and `test` must be of one length, got {len(self.train)} and {len(self.test)}.")

    def to_dict(self) -> dict[str, object]:
        """Plain lists, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, list[float]]) -> "AccuracyCurve":
        """A curve from the result of :meth:`to_dict`."""
        return cls(tuple(values["train"]), tuple(values["test"]))

    def to_csv(self) -> str:
        """CSV text: a header, then one line per epoch, counted from 1."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["epoch", "train", "test"])
        writer.writerows((epoch, *pair) for epoch, pair in enumerate(zip(self.train, self.test, strict=True), 1))
        return text.getvalue()

    def table(self, published: "AccuracyCurve | None" = None) -> str:
        """A table with one line per epoch, beside published values if there are any.

        Example:
            >>> print(AccuracyCurve((0.9,), (0.8,)).table(AccuracyCurve((0.91, 0.93), (0.9, 0.92))))
            accuracy at mean weights        train      test    published: train      test
            epoch  1                       90.00%    80.00%              91.00%    90.00%
        """
        heading = f"{'accuracy at mean weights':26s} {'train':>10s}{'test':>10s}"
        lines = [f"{f'epoch {i:2d}':26s} {a:10.2%}{b:10.2%}" for i, a, b in _numbered(self)]
        if published is not None:
            heading += f"{'published: train':>20s}{'test':>10s}"
            theirs = [f"{a:20.2%}{b:10.2%}" for _, a, b in _numbered(published)]
            lines = [line + other for line, other in zip(lines, theirs + [""] * len(lines), strict=False)]
        return "\n".join([heading, *lines])


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
        return metrics.accuracy(prediction.as_classification().probs, y)

    @property
    def curve(self) -> AccuracyCurve:
        """The accuracies measured so far."""
        return self._curve


def _numbered(curve: AccuracyCurve) -> list[tuple[int, float, float]]:
    return [(epoch, *pair) for epoch, pair in enumerate(zip(curve.train, curve.test, strict=True), 1)]
