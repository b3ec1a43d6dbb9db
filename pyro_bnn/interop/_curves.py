"""The curves of a fit, for programs that draw them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from .._core import checks as _checks
from .._core.processes import Processes
from ..inference.history import History

Point = tuple[int, dict[str, float]]
"""The number of steps so far, and the values of some curves after this step, by name."""


class HistoryWriter(ABC):
    """Callback of :func:`~pyro_bnn.fit_svi` that hands new points of the fit's curves to another program.

    After each epoch the callback writes the epoch's means: ``per_row/elbo``, ``per_row/nll`` (minus the expected
    log-likelihood) and ``per_row/kl``, in nats per row of the data set (``total/...`` for a model without a number of
    rows), ``schedule/learning_rate``, ``schedule/kl_weight`` and ``schedule/seconds_per_epoch``. The horizontal axis
    counts steps. With several processes only the first one writes. Checkpoints record the number of steps written.

    Args:
        every_step: Whether to write ELBO, NLL and KL of each step, too, as ``step_per_row/elbo`` and so on.
    """

    def __init__(self, *, every_step: bool) -> None:
        self._every_step = _checks.flag("every_step", every_step)
        self._num_steps = 0

    @abstractmethod
    def write(self, points: list[Point]) -> None:
        """Write some points; the last one has the means of the epoch."""

    def __enter__(self) -> Any:
        self._num_steps = 0
        return self

    def __exit__(self, *_: object) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        """Number of steps written so far."""
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the steps written before."""
        self._num_steps = int(state_dict["num_steps"])

    def __call__(self, history: History) -> None:
        """Write the last epoch; called after each epoch."""
        if Processes.present().is_first:
            self.write([*self._points(history)])
        self._num_steps = len(history.elbo)

    def _points(self, history: History) -> Iterator[Point]:
        unit, axis = (1, "total") if history.num_data is None else (history.num_data, "per_row")

        def terms(prefix: str, elbo: float, log_likelihood: float, kl: float) -> dict[str, float]:
            pairs = (("elbo", elbo), ("nll", -log_likelihood), ("kl", kl))
            return {f"{prefix}/{name}": value / unit for name, value in pairs}

        for i in range(self._num_steps, len(history.elbo)) if self._every_step else ():
            yield i + 1, terms(f"step_{axis}", history.elbo[i], history.expected_log_likelihood[i], history.kl[i])
        last = history.epochs[-1]
        means = terms(axis, last.elbo, last.expected_log_likelihood, last.kl)
        schedule = {"learning_rate": last.learning_rate, "kl_weight": last.kl_weight, "seconds_per_epoch": last.seconds}
        yield len(history.elbo), {**means, **{f"schedule/{name}": value for name, value in schedule.items()}}
