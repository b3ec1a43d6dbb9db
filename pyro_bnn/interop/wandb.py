"""Writes the history of a fit to a run of Weights & Biases while the fit runs."""

from typing import Any

from .._core.extras import optional
from .._core.processes import Processes
from ._curves import HistoryWriter, Point

__all__ = ["WandB"]

STEP = "svi_step"
"""The horizontal axis of the curves; the run's own step also counts what you log yourself."""


class WandB(HistoryWriter):
    """Callback of :func:`~pyro_bnn.fit_svi` that writes the history to a run of Weights & Biases.

    The run is yours: start it by ``wandb.init`` before the fit, and end it yourself; ``mode="offline"`` works, too. The
    names of the curves are those of :class:`TensorBoard`; their horizontal axis is ``svi_step``. With several processes
    only the first one writes, and needs a run.

    Checkpoints record the number of steps written. The run keeps all points: if a fit is interrupted and resumed in the
    same run, steps after the checkpoint have two points.

    Args:
        run: The run; None takes the one that ``wandb.init`` started last.
        every_step: Whether to write ELBO, NLL and KL of each step, too, as ``step_per_row/elbo`` and so on.

    Raises:
        ImportError: If wandb is not installed.
        ValueError: If there is no run.

    Example:
        >>> import functools, torch
        >>> import pyro_bnn as pb
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-2)
        >>> def fit_with_wandb(model, guide, data):
        ...     import wandb
        ...
        ...     with wandb.init(project="digits") as run:
        ...         return pb.fit_svi(model, guide, data, optimizer=adam, num_epochs=9, callbacks=[WandB(run)])
    """

    def __init__(self, run: Any = None, *, every_step: bool = False) -> None:
        super().__init__(every_step=every_step)
        library: Any = optional("wandb", "Weights & Biases", "wandb")
        self._run = library.run if run is None else run
        if self._run is None and Processes.present().is_first:
            raise ValueError("there is no run of Weights & Biases; call `wandb.init()` first, or pass its result.")

    def __enter__(self) -> "WandB":
        for group in ("per_row", "total", "step_per_row", "step_total", "schedule") if self._run else ():
            self._run.define_metric(f"{group}/*", step_metric=STEP)
        return super().__enter__()

    def write(self, points: list[Point]) -> None:
        """Write some points to the run."""
        for step, values in points:
            self._run.log({**values, STEP: step})
