"""The progress bar of a variational fit, which may have a time limit."""

import math
from contextlib import AbstractContextManager

from tqdm import tqdm

from .._core.progress import progress_bar
from ..auto.choosing import Deadline
from ..inference.history import History
from .config import RunConfig
from .datasets import Dataset

FEWEST_TIMED = 2  # heuristic: epochs after the first one from which the remaining time is estimated


class FitProgress(AbstractContextManager["FitProgress"]):
    """A callback of `fit_svi` that shows a progress bar, with the time until the fit or its time limit ends.

    The negative ELBO is that of the latest epoch in nats per row, for the targets in their own units, as in `train`.
    """

    def __init__(self, config: RunConfig, data: Dataset, deadline: Deadline | None, *, shown: bool) -> None:
        self._deadline, self._epochs, self._shown = deadline, config.epochs, shown
        self._num_rows, self._facts = len(data.x_train), data.facts
        self._per = f"nats per {'image' if config.kind == 'images' else 'row'}"
        self._bar = progress_bar("epoch", config.epochs, shown=shown)
        self._first: tuple[int, float] | None = None  # number of epochs, and seconds, after the first one of this fit

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def __call__(self, history: History) -> None:
        """Update the bar. The first epoch also compiles the model, so the estimate begins after it."""
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
