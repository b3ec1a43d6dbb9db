"""Writes the history of a fit for TensorBoard while the fit runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import checks as _checks
from .._core.extras import optional
from ..inference.guides import MeanFieldGuide
from ..results.pruning import decibel, signal_to_noise
from ._curves import HistoryWriter, Point

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoard"]


class TensorBoard(HistoryWriter):
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
        """Continue after the steps written before; TensorBoard discards later steps in the same folder."""
        super().load_state_dict(state_dict)
        self._must_forget = True

    def write(self, points: list[Point]) -> None:
        """Write some points, and the histograms at the last one."""
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
