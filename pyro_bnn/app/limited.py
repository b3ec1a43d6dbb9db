"""The progress bar of a variational fit with a time limit."""

from contextlib import AbstractContextManager

from tqdm import tqdm

from .._core.progress import progress_bar
from ..auto.choosing import Deadline
from ..inference.history import History


class LimitedProgress(AbstractContextManager["LimitedProgress"]):
    """A callback of `fit_svi` that shows a progress bar, and says that the fit ends at the deadline at the latest.

    Args:
        epochs: Number of epochs that the fit has without a time limit.
        deadline: When the time limit ends the fit.
        shown: Whether to show the bar. If several processes fit together, only the first one shows it.
    """

    def __init__(self, epochs: int, deadline: Deadline, *, shown: bool) -> None:
        self._deadline, self._epochs, self._shown = deadline, epochs, shown
        self._bar = progress_bar("epoch", epochs, shown=shown)
        self._num_before: int | None = None  # epochs before this call of `fit_svi`, as in a resumed fit

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def __call__(self, history: History) -> None:
        """Show the last epoch, and the time until the last epoch or until the deadline, whichever comes first."""
        if not self._shown:
            return
        bar, num_done = self._bar, len(history.epochs)
        if self._num_before is None:
            self._num_before, self._format = num_done - 1, bar.bar_format
        per_epoch = bar.format_dict["elapsed"] / (num_done - self._num_before)
        left = min(per_epoch * (self._epochs - num_done), max(self._deadline.left(), 0.0))
        bar.bar_format = self._format.replace("{remaining}", tqdm.format_interval(left))
        bar.set_description_str(f" ELBO {history.epochs[-1].elbo:.1f}", refresh=False)
        bar.update(num_done - bar.n)
