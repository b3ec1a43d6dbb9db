"""Stochastic variational inference for any model, guide, ELBO of Pyro and optimizer of torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pyro.infer import ELBO
from torch import nn
from torch.optim import Optimizer

from ..._core import checks as _checks
from ..._core.checkpointing import Checkpoint, check_fit, checked_callbacks, keeping
from ..._core.inputs import require_data
from ..._core.processes import Processes
from ..._core.progress import progress_bar
from ..._core.scope import Stream, seeded, warn_of_fit
from ..._core.signatures import explained
from ..._core.summary import counted
from ...modelling.model import BayesianModel, require_bayesian
from ..estimators import Estimator
from ..guides import GuidePosterior, MeanFieldGuide, NetworkInit, problems_of
from ..history import EpochRecord, History
from ..kl import KLWeight, as_function
from ..posterior import Status, with_learned
from ._batches import Batches, Data, require_all_rows
from ._direct import DirectStep
from ._loop import KIND, Callback, Loop, fingerprint_of, restore_from
from ._optimizers import INSTEAD_OF_RATE, OptimizerMaker, Schedule, ScheduledMaker, require_maker, require_schedule
from ._pyro import as_module, check_model
from ._step import Execution
from ._svi_step import svi_step

ADAM = functools.partial(torch.optim.Adam, lr=0.01)  # heuristic
INITIAL_SCALE = 0.02  # heuristic: much smaller than the weights, so that noise does not hide the signal
STEPS, FEWEST_EPOCHS = 5_000, 50  # heuristic: by default, a fit has so many, whichever is longer
FEWEST_STEPS = 100  # heuristic: after fewer steps, a guide is still near its start, and a fit is hardly judged
NOTABLE_FALL = 0.05  # heuristic: a fall of the objective by more than this fraction is not Monte Carlo noise
LAST, FEWEST_LAST = 0.25, 20  # heuristic: the last part of a fit has this share of the steps, but at least this number
NUM_ERRORS, NOTABLE_RISE = 4.0, 0.01  # heuristic: a rise exceeds so many standard errors and this fraction
NUM_BLOCKS = 10  # a trend is fitted to the means of these blocks, whose errors hardly correlate in a converged fit
LONGER = "Raise `num_epochs`, or the learning rate."  # if the objective of `fit_svi` still rises
FEW = "Raise `num_epochs`."  # if there were too few steps to tell
LOWER = "Lower the learning rate, or clip gradients (`clipped`)."  # if it fell


class PosteriorWarning(UserWarning):
    """The fitted posterior collapsed to a point, or stayed at the prior."""


@dataclass(frozen=True)
class Trend:
    """The rise of a straight line fitted to an objective; positive if the objective improved."""

    num_values: int  # steps or epochs
    rise: float  # in nats
    noise: float  # standard error of the rise, in nats


@explained(
    "fit_svi(model, (x, y), MeanFieldGuide(model), optimizer=functools.partial(torch.optim.Adam, lr=0.01), "
    "num_epochs=500)",
    dict.fromkeys(["lr", "learning_rate"], INSTEAD_OF_RATE),
)
def fit_svi(
    model: Callable[..., object],
    data: Data,
    guide: Callable[..., object] | None = None,
    *,
    optimizer: OptimizerMaker | ScheduledMaker = ADAM,
    num_epochs: int | None = None,
    batch_size: int | None = None,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float | KLWeight = 1.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    execution: Execution | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> GuidePosterior:
    """Fit a guide, and the model's learnable parameters, by maximising the ELBO.

    The fit makes one step for each batch; the page of :func:`svi_step` has the formula of the ELBO. The history has the
    ELBO of the whole data set, in nats. If `data` holds all rows, frozen layers before the first random parameter run
    only once for each row, unless their outputs take more than 1 GB.

    Args:
        model: The model. For `model`, `guide`, `elbo`, `estimator` and `execution` see :func:`svi_step`.
        data: A tuple (x, y) with all rows, or a loader of such pairs: any iterable that starts anew at each epoch. x is
            a tensor, an array, a list of numbers or a data frame, or a tuple or dictionary of several inputs. Tensors
            are moved to the model's device.
        guide: The guide, which is fitted in place; for a :class:`BayesianModel`, by default a :class:`MeanFieldGuide`
            centred on the network's present weights. If it is a function, ``posterior.guide`` is a module with the
            fitted parameters.
        optimizer: Function that takes a list of parameters and returns a torch optimizer; by default Adam with a
            learning rate of 0.01. It may also return an optimizer and a learning-rate scheduler (:func:`scheduled`). To
            clip gradients, see :func:`clipped`.
        num_epochs: Number of passes over the data; by default about 5,000 steps or 50 epochs, whichever is longer. If
            a fit should end when it has converged, call :func:`~pyro_bnn.fit` with ``method="svi"``.
        batch_size: Number of rows in each batch if `data` is a tuple; with ``None``, each batch has all rows. Several
            processes share the rows of a batch.
        elbo: One of Pyro's ELBOs; with ``None``, ``Trace_ELBO()``.
        estimator: Gradient estimator, for less noisy gradients. With ``None``, each weight is drawn once per step.
        kl_weight: Weight of the KL term; 1 gives the ELBO. :mod:`pyro_bnn.kl` has weights that change during a fit.
        callbacks: Functions that are called with the history after each epoch; a true result ends the fit. Checkpoints
            save the state of a :class:`StatefulCallback`. A callback that is a context manager, such as
            :class:`TensorBoard`, is entered before the fit and exited after it.
        progress: Whether to show the progress, with the ELBO in nats. By default, a bar appears after two seconds on a
            terminal or in a notebook; elsewhere, such as in the log of a job, standard error gets a line every ten
            seconds. ``False`` shows nothing.
        execution: How steps are computed, for example in bfloat16 or by several processes.
        checkpoint: File for the state of the fit, or a :class:`Checkpoint` with the interval of writing (see
            :doc:`/how_to/resume`). On Ctrl-C or SIGTERM, the fit then writes a checkpoint after the current step, and
            ends.
        resume: Checkpoint from which to continue; `checkpoint` may be the same path. The other arguments must be the
            same as in the interrupted fit; only `num_epochs` may be larger. The result equals that of an uninterrupted
            fit, bit for bit.
        seed: Seed of the fit; with ``None``, a seed is drawn.

    Returns:
        The fitted guide as a posterior with `history` and `status`; ``history.path`` says how gradients were computed.
        After fewer than 100 steps, the status is unknown unless the objective clearly rises or falls.

    Raises:
        ValueError: If the arguments do not match each other.
        NonFiniteError: If a loss or gradient is not finite. The parameters keep the values of the last finite step.
        FileExistsError: If the file `checkpoint` exists and is not the file `resume`.
        OSError: If `checkpoint` cannot be written.
        Interrupted: If a signal ended the fit. The message says how to continue.

    Warns:
        PosteriorWarning: If the posterior collapsed to a point, or stayed at the prior. If the objective fell or still
            rises at the end, only `posterior.status` says so, since loops of short fits would repeat a warning. In
            these cases, :func:`~pyro_bnn.fit` with ``method="svi"`` warns as well.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net = torch.nn.Linear(1, 1)
        >>> prior = pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> adam = lambda parameters: torch.optim.Adam(parameters, lr=0.05)
        >>> posterior = pb.fit_svi(
        ...     model, (x, 2 * x), guide, optimizer=adam, num_epochs=500, seed=0
        ... )
        >>> posterior.median()["net.weight"].round(decimals=1)
        tensor([[2.]])
    """
    check_fit(progress=progress, checkpoint=checkpoint, resume=resume, seed=seed)
    callbacks, execution = checked_callbacks(callbacks), Execution.given(execution)
    weight_at = as_function(kl_weight)
    require_maker(optimizer)
    require_data(data)
    if guide is None:
        guide = default_guide(model, seed)
    check_model(model, guide)
    model, guide = as_module("model", model), as_module("guide", guide)
    schedules: list[Schedule] = []

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        made = optimizer(parameters)
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Optimizer):
            made, schedule = made
            schedules.append(require_schedule(schedule))
        return made

    processes = execution.processes
    seed = processes.from_first(int(torch.randint(2**62, ())) if seed is None else _checks.seed(seed))
    stream = Stream(processes.seed(seed), _device_of(model, guide))
    options: dict[str, Any] = {"elbo": elbo, "estimator": estimator, "execution": execution}
    with ExitStack() as stack:
        keeper = stack.enter_context(keeping(checkpoint, KIND, resume, processes=processes))
        step = stack.enter_context(svi_step(model, guide, make, **options))
        for callback in callbacks:
            if isinstance(callback, AbstractContextManager):
                stack.enter_context(callback)
        with stream:
            batches = _batches(model, guide, data, batch_size, torch.Generator().manual_seed(seed), processes)
            if num_epochs is None:
                num_epochs = max(math.ceil(STEPS / batches.num_batches), FEWEST_EPOCHS)
            num_epochs = _checks.at_least("num_epochs", num_epochs, 1)
            batches.require_passes(num_epochs)
            if isinstance(model, BayesianModel):
                model.check_target_shape(*(batches.tensors or batches.first()))
            inner = step.prepared(*batches.first())
        loop = Loop(
            step, batches, stream, num_epochs=num_epochs, kl_weight=weight_at, schedules=schedules, callbacks=callbacks
        )
        fingerprint = {}
        if checkpoint is not None or resume is not None or processes.are_many:
            fingerprint = fingerprint_of(loop, elbo, estimator, kl_weight)
            given = {"checkpoint": checkpoint, "resume": resume}
            files = {name: "none" if file is None else "a file" for name, file in given.items()}
            processes.require_same({**fingerprint, "num_epochs": str(num_epochs), **files})
        if resume is not None:
            restore_from(resume, loop, fingerprint)
        features = inner.remember(batches, is_watched=bool(callbacks)) if isinstance(inner, DirectStep) else None

        def state() -> dict[str, Any]:
            return {"fit": fingerprint, "loop": loop.state()}

        is_shown = progress if processes.is_first else False
        may_end = bool(callbacks)
        with progress_bar("epoch", num_epochs, shown=is_shown, initial=loop.epoch, may_end_early=may_end) as bar:

            def after_step() -> None:
                bar.update(0)
                keeper.step(state)

            def after_epoch(record: EpochRecord) -> None:
                bar.set_description_str(f" ELBO {record.elbo:.1f}", refresh=False)
                bar.update()
                if features is not None:
                    features.check()
                keeper.end_epoch(state, is_last=loop.is_done)

            loop.run(after_step, after_epoch)
    words = "" if features is None else features.in_words
    status = _status(loop.history, num_epochs, loop.is_stopped, words)
    if len(loop.history.elbo) >= FEWEST_STEPS and isinstance(model, BayesianModel):
        problems = problems_of(guide, model)
        if problems:
            warn_of_fit("; ".join(map(" ".join, problems)), PosteriorWarning)
            verdicts, remedies = zip(*problems, strict=True)
            verdict = " ".join(verdict[0].upper() + verdict[1:] for verdict in verdicts)
            remedy = " ".join(filter(None, [status.remedy, *remedies]))
            status = Status(False, f"{status.message} {verdict}", remedy=remedy, verdict=verdict)
    return with_learned(GuidePosterior(guide, status, loop.history), model)


def default_guide(model: object, seed: int | None) -> MeanFieldGuide:
    """Return a mean-field guide with small scales, centred on the present weights of a Bayesian model."""
    require_bayesian(model, ", for which `fit_svi` can make a guide", instead="pass a guide")
    assert isinstance(model, BayesianModel)
    with seeded(seed, model.device):
        return MeanFieldGuide(model, init=NetworkInit(INITIAL_SCALE))


def _status(history: History, num_epochs: int, stopped: bool, features: str) -> Status:
    first, last = history.epochs[0], history.epochs[-1]
    done = f"{'stopped by a callback' if stopped else 'completed'} after {len(history.epochs)} of {num_epochs} epochs"
    if len(history.epochs) > 1 and first.kl_weight == last.kl_weight:
        objectives = [r.expected_log_likelihood - r.kl_weight * r.kl for r in (first, last)]
        if objectives[0] - objectives[1] > NOTABLE_FALL * abs(objectives[0]):
            return Status(
                False,
                f"{done}, but the objective fell from {objectives[0]:.4g} to {objectives[1]:.4g} nats{features}.",
                remedy=LOWER,
            )
    rise = "" if stopped else _rise(history)
    if not (rise or stopped) and len(history.elbo) < FEWEST_STEPS:
        size = f"{counted(len(history.epochs), 'epoch')}, {counted(len(history.elbo), 'step')}"
        few = f"not judged: too few steps to see a plateau ({size}); ELBO {last.elbo:.6g} nats{features}."
        return Status(None, few, features, remedy=FEW)
    return Status(
        not rise, f"{done}{rise}; ELBO {last.elbo:.6g} nats{features}.", features, remedy=LONGER if rise else ""
    )


def _rise(history: History) -> str:
    """Return a clause that says by how much the objective still rises."""
    num_steps = max(math.ceil(LAST * len(history.elbo)), FEWEST_LAST)
    end = slice(-num_steps, None)
    epochs = history.epochs[-math.ceil(num_steps * len(history.epochs) / len(history.elbo)) :]
    # Less noisy steps, as after a lower learning rate, alone make the objective rise.
    is_steady = len({*history.kl_weight[end]}) == 1 and len({record.learning_rate for record in epochs}) == 1
    if len(history.elbo) < 2 * num_steps or not is_steady:
        return ""
    trend = trend_of([-loss for loss in history.loss[end]])
    if trend.rise <= max(NUM_ERRORS * trend.noise, NOTABLE_RISE * abs(history.loss[-1])):
        return ""
    return f", but the objective still rises, by {trend.rise:.3g} nats over the last {num_steps} steps"


def _batches(
    model: nn.Module,
    guide: nn.Module,
    data: Data,
    batch_size: int | None,
    generator: torch.Generator,
    processes: Processes,
) -> Batches:
    if not isinstance(model, BayesianModel):
        return Batches(data, batch_size, _device_of(model, guide), generator, processes=processes)
    options: dict[str, Any] = {"paired": True, "num_data": model.num_data, "processes": processes}
    batches = Batches(data, batch_size, model.device, generator, model.like, **options)
    if batches.tensors is not None:
        require_all_rows(model, batches.tensors[0])
    return batches


def _device_of(model: nn.Module, guide: nn.Module) -> torch.device | None:
    if isinstance(model, BayesianModel):
        return model.device
    return next((parameter.device for module in (guide, model) for parameter in module.parameters()), None)


def trend_of(objective: Sequence[float]) -> Trend:
    r"""Fit a straight line by least squares to an objective that has at least ten values.

    The line is fitted to the means :math:`m_b` of B successive blocks, at the times :math:`t_b = b - (B - 1) / 2`:

    .. math:: \hat\beta = \frac{\sum_b t_b m_b}{\sum_b t_b^2}, \qquad
              \mathrm{se}(\hat\beta) = \sqrt{\frac{\sum_b (m_b - \bar m - \hat\beta t_b)^2}{(B - 2) \sum_b t_b^2}}.
    """
    parts = torch.tensor(objective, dtype=torch.float64).tensor_split(NUM_BLOCKS)
    means = torch.stack([part.mean() for part in parts])
    times = torch.arange(NUM_BLOCKS, dtype=torch.float64) - (NUM_BLOCKS - 1) / 2
    slope = (times @ means) / times.square().sum()
    residuals = means - means.mean() - slope * times
    variance = residuals.square().sum() / (NUM_BLOCKS - 2) / times.square().sum()
    return Trend(len(objective), NUM_BLOCKS * float(slope), NUM_BLOCKS * float(variance.sqrt()))
