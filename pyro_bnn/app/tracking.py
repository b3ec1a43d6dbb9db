"""Callbacks of a variational fit: a record of the accuracy of a classifier, and a progress bar."""

import math
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from .._core.progress import progress_bar
from .._core.scope import seeded
from ..auto.choosing import Deadline
from ..inference.guides import GuidePosterior
from ..inference.history import History
from ..modelling.model import BayesianModel
from ..results.prediction import predict_point
from ..scores import metrics
from ..scores.uncertainty import ClassificationPrediction
from .config import RunConfig
from .datasets import Dataset
from .numbers import percent


@dataclass(frozen=True)
class AccuracyCurve:
    """Accuracy of the network with mean weights after each epoch, on training rows and on test or validation rows."""

    train: tuple[float, ...]
    test: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise ValueError(f"`train` and `test` must be equally long, got {len(self.train)} and {len(self.test)}.")

    def to_csv(self) -> str:
        """Return CSV text with a header, and a line for each epoch, numbered from 1."""
        frame = pd.DataFrame(asdict(self), index=range(1, len(self.train) + 1))
        return frame.to_csv(index_label="epoch", lineterminator="\n")

    def table(self) -> str:
        """Return a table with a line for each epoch."""
        rows = enumerate(zip(self.train, self.test, strict=True), 1)
        lines = [
            f"{f'epoch {epoch:2d}':26s} {percent(train, 2):>10s}{percent(test, 2):>10s}"
            for epoch, (train, test) in rows
        ]
        return "\n".join([f"{'accuracy at mean weights':26s} {'train':>10s}{'test':>10s}", *lines])


class AccuracyTracker:
    """A callback that measures a classifier's accuracy at mean weights after each epoch, without changing the fit."""

    def __init__(self, model: BayesianModel, guide: nn.Module, data: Dataset) -> None:
        self._model, self._guide, self._data = model, guide, data
        self.curve = AccuracyCurve((), ())

    def __call__(self, history: History) -> None:
        """Measure the accuracy on training rows, and on test or validation rows. The history is ignored."""
        with seeded(0, self._model.device), torch.no_grad():
            train = self._accuracy(self._data.x_train, self._data.y_train)
            test = self._accuracy(self._data.x_test, self._data.y_test)
        self.curve = AccuracyCurve((*self.curve.train, train), (*self.curve.test, test))

    def state_dict(self) -> dict[str, Any]:
        """Return the accuracies measured so far, for checkpoints of the fit."""
        return {"train": [*self.curve.train], "test": [*self.curve.test]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the accuracies that :meth:`state_dict` returned."""
        self.curve = AccuracyCurve(tuple(state_dict["train"]), tuple(state_dict["test"]))

    def _accuracy(self, x: Tensor, y: Tensor) -> float:
        prediction = predict_point(self._model, GuidePosterior(self._guide).median(), x.to(self._model.device))
        return metrics.accuracy(prediction.as_kind(ClassificationPrediction).probs, y)


FEWEST_TIMED = 2  # heuristic: epochs after the first one from which the remaining time is estimated


class FitProgress(AbstractContextManager["FitProgress"]):
    """A callback of `fit_svi` that shows a progress bar, with the time until the fit ends or reaches its time limit."""

    def __init__(self, config: RunConfig, data: Dataset, deadline: Deadline | None, *, shown: bool) -> None:
        self._deadline, self._epochs, self._shown = deadline, config.epochs, shown
        self._num_rows, self._facts = len(data.x_train), data.facts
        self._per = f"nats per {'image' if config.kind == 'images' else 'row'}"
        self._bar = progress_bar("epoch", config.epochs, shown=shown)
        self._first: tuple[int, float] | None = None  # number of epochs, and seconds, after the first one of this fit

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def __call__(self, history: History) -> None:
        """Update the bar. The time left is estimated without the first epoch, which also compiles the model."""
        if not self._shown:
            return
        bar, num_done, elapsed = self._bar, len(history.epochs), self._bar.format_dict["elapsed"]
        if self._first is None:
            self._first, self._format = (num_done, elapsed), bar.bar_format
        timed = num_done - self._first[0]
        left = 0.0 if num_done == self._epochs else math.inf
        if timed >= FEWEST_TIMED:
            left = (elapsed - self._first[1]) / timed * (self._epochs - num_done)
        if self._deadline is not None:
            left = min(left, max(self._deadline.left(), 0.0))
        shown = tqdm.format_interval(left) if math.isfinite(left) else "?"
        bar.bar_format = self._format.replace("{remaining}", shown)
        cost = (self._facts.shift - history.epochs[-1].elbo) / self._num_rows
        bar.set_description_str(f" negative ELBO {cost:.4f} {self._per}", refresh=False)
        bar.update(num_done - bar.n)
