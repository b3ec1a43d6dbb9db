"""Callbacks that write the curves of a running fit to TensorBoard, Weights & Biases or MLflow."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import checks as _checks
from .._core.extras import optional
from .._core.processes import Processes
from ..inference.guides import MeanFieldGuide
from ..inference.history import History
from ..results.pruning import decibel, signal_to_noise

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Point = tuple[int, dict[str, float]]  # the number of steps so far, and values of curves, ``{name: value}``
SVI_STEP = "svi_step"  # horizontal axis in Weights & Biases, whose own step counter also counts other logged values
MOST = 1000  # largest number of values that an MLflow server accepts in one request


class HistoryWriter(ABC):
    """Callback of :func:`~pyro_bnn.fit_svi` that sends curves to another program, as :class:`TensorBoard` does."""

    def __init__(self, *, every_step: bool) -> None:
        self._every_step = _checks.flag("every_step", every_step)
        self._num_steps = 0

    @abstractmethod
    def write(self, points: list[Point]) -> None:
        """Send new points of the curves. The last point has the averages of the epoch."""

    def __enter__(self) -> Any:
        self._num_steps = 0
        return self

    def __exit__(self, *_: object) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        """Return the number of written steps."""
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of written steps."""
        self._num_steps = int(state_dict["num_steps"])

    def __call__(self, history: History) -> None:
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


class TensorBoard(HistoryWriter):
    """Callback of :func:`~pyro_bnn.fit_svi` that writes the history to a folder, for ``tensorboard --logdir FOLDER``.

    After each epoch it writes means over the epoch, in nats per row of the data set: ``per_row/elbo``, ``per_row/nll``
    (minus the expected log-likelihood) and ``per_row/kl``. If the number of rows is unknown, it writes totals instead,
    such as ``total/elbo``. It also writes ``schedule/learning_rate``, ``schedule/kl_weight`` and
    ``schedule/seconds_per_epoch``. The horizontal axis is the number of steps. If several processes fit together, only
    the first writes.

    Checkpoints save how many steps were logged. After a resume, TensorBoard discards what the interrupted fit wrote
    after its checkpoint. The file is up to date after each epoch. In a training loop of your own, use this class in a
    ``with`` statement. Use a separate folder for each fit.

    Args:
        log_dir: Folder to write to, or a `SummaryWriter` of torch, which you close yourself.
        guide: Guide whose signal-to-noise ratios are also written, as histograms in decibels.
        every_step: Whether to write ELBO, NLL and KL also for each step, as ``step_per_row/elbo`` and so on.

    Raises:
        ImportError: If TensorBoard is not installed.
        ValueError: If an argument is of the wrong kind.

    Example:
        >>> import functools
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net = torch.nn.Linear(4, 3)
        >>> prior, labels = pb.NormalPrior(), pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=6)
        >>> guide = pb.MeanFieldGuide(model)
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     board = pb.interop.TensorBoard(folder, guide=guide)
        ...     data = (torch.randn(6, 4), torch.arange(6) % 3)
        ...     posterior = pb.fit_svi(
        ...         model, data, guide, optimizer=adam, num_epochs=2, callbacks=[board]
        ...     )
        ...     [path.name[:20] for path in Path(folder).iterdir()]
        ['events.out.tfevents.']
    """

    def __init__(
        self, log_dir: "str | Path | SummaryWriter", *, guide: MeanFieldGuide | None = None, every_step: bool = False
    ) -> None:
        super().__init__(every_step=every_step)
        library = optional("torch.utils.tensorboard", "TensorBoard", "tensorboard", root="tensorboard")
        self._make_writer: Any = library.SummaryWriter
        self._folder = Path(log_dir) if isinstance(log_dir, str | Path) else None
        if self._folder is None:
            _checks.kind("log_dir", log_dir, library.SummaryWriter, "a folder or a SummaryWriter")
        if guide is not None:
            _checks.kind("guide", guide, MeanFieldGuide, "a MeanFieldGuide")
        self._guide = guide
        self._writer: Any = None if self._folder else log_dir
        self._must_forget = False

    def __enter__(self) -> "TensorBoard":
        self._must_forget = False
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        if self._folder is not None and self._writer is not None:
            self._writer.close()
            self._writer = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of written steps. TensorBoard then discards later steps of the interrupted fit."""
        super().load_state_dict(state_dict)
        self._must_forget = True

    def write(self, points: list[Point]) -> None:
        """Write new points of the curves and, at the last of them, histograms of the guide's signal-to-noise ratios."""
        writer = self._opened()
        for step, values in points:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        for name, ratio in signal_to_noise(self._guide).items() if self._guide is not None else ():
            present = ratio[ratio > 0].detach().cpu()
            if len(present):
                writer.add_histogram(f"signal_to_noise/{name}", decibel(present), points[-1][0])
        writer.flush()

    def _opened(self) -> Any:
        if self._writer is None:
            self._writer = self._make_writer(str(self._folder))
        if self._must_forget:
            events = optional("tensorboard.compat.proto.event_pb2", "TensorBoard", "tensorboard")
            restart = events.SessionLog(status=events.SessionLog.START)
            for event in (events.Event(file_version="brain.Event:2"), events.Event(session_log=restart)):
                self._writer.file_writer.add_event(event, step=self._num_steps + 1)
            self._must_forget = False
        return self._writer


class WandB(HistoryWriter):
    """Callback of :func:`~pyro_bnn.fit_svi` that writes the history to a run of Weights & Biases.

    Start the run by ``wandb.init`` before the fit, and end it yourself. ``mode="offline"`` works, too. The curves are
    those of :class:`TensorBoard`, with the horizontal axis ``svi_step``. If several processes fit together, only the
    first writes and needs a run.

    Checkpoints save how many steps were logged. If a fit resumes in the same run, steps that it had logged after the
    checkpoint have two points.

    Args:
        run: The run; with ``None``, the last run that ``wandb.init`` started.
        every_step: Whether to write ELBO, NLL and KL also for each step, as ``step_per_row/elbo`` and so on.

    Raises:
        ImportError: If wandb is not installed.
        ValueError: If there is no run.

    Example:
        >>> import pyro_bnn as pb
        >>> def fit_with_wandb(model, guide, data, **options):
        ...     import wandb
        ...
        ...     with wandb.init(project="digits") as run:
        ...         board = pb.interop.WandB(run)
        ...         return pb.fit_svi(model, data, guide, callbacks=[board], **options)
    """

    def __init__(self, run: Any = None, *, every_step: bool = False) -> None:
        super().__init__(every_step=every_step)
        library: Any = optional("wandb", "Weights & Biases", "wandb")
        self._run = library.run if run is None else run
        if self._run is None and Processes.present().is_first:
            raise ValueError("there is no run of Weights & Biases; call `wandb.init()` first, or pass its result.")

    def __enter__(self) -> "WandB":
        for group in ("per_row", "total", "step_per_row", "step_total", "schedule") if self._run else ():
            self._run.define_metric(f"{group}/*", step_metric=SVI_STEP)
        return super().__enter__()

    def write(self, points: list[Point]) -> None:
        """Write new points of the curves."""
        for step, values in points:
            self._run.log({**values, SVI_STEP: step})


class MLflow(HistoryWriter):
    """Callback of :func:`~pyro_bnn.fit_svi` that writes the history to a run of MLflow.

    Start the run before the fit, and end it yourself. The curves are those of :class:`TensorBoard`. If several
    processes fit together, only the first writes and needs a run.

    Checkpoints save how many steps were logged. If a fit resumes in the same run, steps that it had logged after the
    checkpoint have two points.

    Args:
        run_id: Identifier of the run; with ``None``, the active run.
        every_step: Whether to write ELBO, NLL and KL also for each step, as ``step_per_row/elbo`` and so on.

    Raises:
        ImportError: If MLflow is not installed.
        ValueError: If `run_id` is None and no run is active.

    Example:
        >>> import pyro_bnn as pb
        >>> def fit_with_mlflow(model, guide, data, **options):
        ...     import mlflow
        ...
        ...     with mlflow.start_run():
        ...         board = pb.interop.MLflow()
        ...         return pb.fit_svi(model, data, guide, callbacks=[board], **options)
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
        """Write new points of the curves."""
        now = int(time.time() * 1000)  # in milliseconds
        metric, client = self._library.entities.Metric, self._library.MlflowClient()
        metrics = [metric(name, value, now, step) for step, values in points for name, value in values.items()]
        for start in range(0, len(metrics), MOST):
            client.log_batch(self._run_id, metrics[start : start + MOST])
