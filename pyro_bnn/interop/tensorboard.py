"""Writes the history of a fit for TensorBoard while the fit runs."""

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

__all__ = ["TensorBoard"]


class TensorBoard:
    """Callback of :func:`~pyro_bnn.fit_svi` that writes the history to a folder, for ``tensorboard --logdir FOLDER``.

    After each epoch it writes the epoch's means: ``per_row/elbo``, ``per_row/nll`` (minus the expected log-likelihood)
    and ``per_row/kl``, in nats per row of the data set (``total/...`` for a model without a number of rows),
    ``schedule/learning_rate``, ``schedule/kl_weight`` and ``schedule/seconds_per_epoch``. The horizontal axis counts
    steps. With several processes only the first one writes.

    Checkpoints record the number of steps written. After a resume TensorBoard discards what the interrupted fit wrote
    after its checkpoint. The file is complete after each epoch, and closed at the end of the fit; in your own loop use
    this class in a ``with`` statement. Use a separate folder for each fit.

    Args:
        log_dir: Folder to write to, or a `SummaryWriter` of torch, which you close yourself.
        guide: Guide whose signal-to-noise ratios are also written, in decibels, as a histogram per site.
        every_step: Whether to write ELBO, NLL and KL of each step, too, as ``step_per_row/elbo`` and so on.

    Raises:
        ImportError: If TensorBoard is not installed.
        ValueError: If an argument is of the wrong kind.

    Example:
        >>> import functools, tempfile
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net = torch.nn.Linear(4, 3)
        >>> model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)
        >>> guide = pb.MeanFieldGuide(model)
        >>> adam = functools.partial(torch.optim.Adam, lr=1e-2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     board = TensorBoard(folder, guide=guide)
        ...     data = (torch.randn(6, 4), torch.arange(6) % 3)
        ...     posterior = pb.fit_svi(model, guide, data, optimizer=adam, num_epochs=2, callbacks=[board])
        ...     [path.name[:20] for path in Path(folder).iterdir()]
        ['events.out.tfevents.']
    """

    def __init__(
        self, log_dir: "str | Path | SummaryWriter", *, guide: MeanFieldGuide | None = None, every_step: bool = False
    ) -> None:
        library = optional("torch.utils.tensorboard", "TensorBoard", "tensorboard", root="tensorboard")
        self._make_writer: Any = library.SummaryWriter
        self._folder = Path(log_dir) if isinstance(log_dir, str | Path) else None
        if self._folder is None:
            _checks.kind("log_dir", log_dir, library.SummaryWriter, "a folder or a SummaryWriter")
        if guide is not None:
            _checks.kind("guide", guide, MeanFieldGuide, "a MeanFieldGuide")
        self._guide, self._every_step = guide, _checks.flag("every_step", every_step)
        self._writer: Any = None if self._folder else log_dir
        self._num_steps = 0
        self._must_forget = False

    def __enter__(self) -> "TensorBoard":
        self._num_steps, self._must_forget = 0, False
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None and self._writer is not None:
            self._writer.close()
            self._writer = None

    def state_dict(self) -> dict[str, Any]:
        """Number of steps written so far."""
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the steps written before; TensorBoard discards later steps in the same folder."""
        self._num_steps, self._must_forget = int(state_dict["num_steps"]), True

    def __call__(self, history: History) -> None:
        """Write the last epoch; called after each epoch."""
        if Processes.present().is_first:
            self._write(self._opened(), history)
        self._num_steps = len(history.elbo)

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

    def _write(self, writer: Any, history: History) -> None:
        unit, axis = (1, "total") if history.num_data is None else (history.num_data, "per_row")
        step, last = len(history.elbo), history.epochs[-1]

        def add_terms(prefix: str, elbo: float, log_likelihood: float, kl: float, step: int) -> None:
            for name, value in (("elbo", elbo), ("nll", -log_likelihood), ("kl", kl)):
                writer.add_scalar(f"{prefix}/{name}", value / unit, step)

        add_terms(axis, last.elbo, last.expected_log_likelihood, last.kl, step)
        writer.add_scalar("schedule/learning_rate", last.learning_rate, step)
        writer.add_scalar("schedule/kl_weight", last.kl_weight, step)
        writer.add_scalar("schedule/seconds_per_epoch", last.seconds, step)
        if self._every_step:
            for i in range(self._num_steps, step):
                add_terms(f"step_{axis}", history.elbo[i], history.expected_log_likelihood[i], history.kl[i], i + 1)
        if self._guide is not None:
            for name, ratio in signal_to_noise(self._guide).items():
                present = ratio[ratio > 0].detach().cpu()
                if len(present):
                    writer.add_histogram(f"signal_to_noise/{name}", decibel(present), step)
        writer.flush()
