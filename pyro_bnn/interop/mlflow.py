"""Writes the history of a fit to a run of MLflow while the fit runs."""

import time
from typing import Any

from .._core.extras import optional
from .._core.processes import Processes
from ._curves import HistoryWriter, Point

__all__ = ["MLflow"]

MOST = 1000
"""Largest number of values that an MLflow server accepts in one request."""


class MLflow(HistoryWriter):
    """Callback of :func:`~pyro_bnn.fit_svi` that writes the history to a run of MLflow.

    The run is yours: start it before the fit, log your own parameters to it, and end it yourself. The names of the
    curves are those of :class:`TensorBoard`. With several processes only the first one writes, and needs a run.

    Checkpoints record the number of steps written. MLflow keeps all points: if a fit is interrupted and resumed in the
    same run, steps after the checkpoint have two points.

    Args:
        run_id: The run; None takes the active one.
        every_step: Whether to write ELBO, NLL and KL of each step, too, as ``step_per_row/elbo`` and so on.

    Raises:
        ImportError: If MLflow is not installed.
        ValueError: If no run is active and none is given.

    Example:
        >>> import functools, torch
        >>> import pyro_bnn as pb
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-2)
        >>> def fit_with_mlflow(model, guide, data):
        ...     import mlflow
        ...
        ...     with mlflow.start_run():
        ...         return pb.fit_svi(model, guide, data, optimizer=adam, num_epochs=9, callbacks=[MLflow()])
    """

    def __init__(self, run_id: str | None = None, *, every_step: bool = False) -> None:
        super().__init__(every_step=every_step)
        library: Any = optional("mlflow", "MLflow", "mlflow")
        if run_id is None and Processes.present().is_first:
            run = library.active_run()
            if run is None:
                raise ValueError("no run of MLflow is active; call `mlflow.start_run()` first, or pass a `run_id`.")
            run_id = run.info.run_id
        self._run_id, self._library = run_id, library

    def write(self, points: list[Point]) -> None:
        """Write some points to the run."""
        now = int(time.time() * 1000)  # in milliseconds
        metric, client = self._library.entities.Metric, self._library.MlflowClient()
        metrics = [metric(name, value, now, step) for step, values in points for name, value in values.items()]
        for start in range(0, len(metrics), MOST):
            client.log_batch(self._run_id, metrics[start : start + MOST])
