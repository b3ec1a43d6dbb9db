"""Stochastic variational inference for any model and guide, with any ELBO of Pyro and any optimizer of torch."""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from tqdm import tqdm

from .. import _checks
from .._scope import seeded
from ..estimators import Estimator
from ..guides import GuidePosterior
from ..history import EpochRecord, History
from ..kl import KLWeight, check_weight, constant
from ..model import BayesianModel
from ..posterior import Status
from ._arguments import check_fit
from ._batches import Batch, Batches
from ._optimizers import OptimizerMaker, Schedule, ScheduledMaker
from ._step import NonFiniteError
from ._svi_step import SVIStep, svi_step

NOTABLE_FALL = 0.05
"""Heuristic: if the objective ends lower than it began by more than this fraction, that is not Monte Carlo noise."""


def fit_svi(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable[Sequence[Tensor]] | tuple[Tensor, ...],
    *,
    optimizer: OptimizerMaker | ScheduledMaker,
    num_epochs: int,
    batch_size: int | None = None,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float | KLWeight = 1.0,
    callbacks: Sequence[Callable[[History], bool | None]] = (),
    progress: bool = False,
    cuda_graph: bool = False,
    seed: int | None = None,
) -> GuidePosterior:
    """Fit a guide, and the model's learnable parameters, by maximising the ELBO.

    This is a loop over epochs and batches around the step of :func:`svi_step`. The formula of the ELBO is there, and
    when the gradients are computed directly or by Pyro. Every quantity in the history is that of the whole data set, in
    nats.

    Args:
        model: The model; for `model`, `guide`, `elbo`, `estimator` and `cuda_graph` see :func:`svi_step`.
        guide: The guide, which is fitted in place.
        data: A loader of (x, y) batches, or a tuple of tensors (x, y); batches are moved to the model's device.
        optimizer: Function from a list of parameters to a torch optimizer, such as
            ``functools.partial(torch.optim.Adam, lr=1e-3)``, or to a pair of an optimizer and a learning-rate scheduler
            (:func:`scheduled`), which is stepped once an epoch. To clip gradients, see :func:`clipped`.
        num_epochs: Number of passes over the data.
        batch_size: Number of rows in each batch when `data` is tensors; None uses all rows at once.
        elbo: The bound; None is ``Trace_ELBO()``.
        estimator: Gradient estimator, for less noisy gradients; None draws each weight once per step.
        kl_weight: Weight of the KL term relative to the ELBO, see :mod:`pyro_bnn.kl`.
        callbacks: Functions that are called with the history after each epoch; a true result of one ends the fit.
        progress: Whether to show a progress bar with the ELBO and its two terms.
        cuda_graph: Whether to record steps on a GPU and replay them.
        seed: Seed of the fit, which makes it repeatable and leaves torch's generators as they were; None uses them.

    Returns:
        The fitted guide as a posterior with `history` and `status`; ``history.path`` says how gradients were computed.

    Raises:
        ValueError: If the arguments do not fit each other.
        NonFiniteError: If a loss or gradient is not finite; the parameters are then those of the last finite step.
    """
    _checks.at_least("num_epochs", num_epochs, 1)
    weight_at = kl_weight if callable(kl_weight) else constant(kl_weight)
    _require_maker(optimizer)
    check_fit(callbacks, seed=seed, progress=progress, cuda_graph=cuda_graph)
    schedules: list[Schedule] = []

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        made = optimizer(parameters)
        if isinstance(made, tuple) and len(made) == 2:
            made, schedule = made
            schedules.append(schedule)
        return made

    with ExitStack() as stack:
        device = _device_of(model, guide)
        stack.enter_context(seeded(seed, device))
        options: dict[str, Any] = {"elbo": elbo, "estimator": estimator, "cuda_graph": cuda_graph}
        step = stack.enter_context(svi_step(model, guide, make, **options))
        generator = torch.Generator()
        batches = Batches(data, batch_size, device, generator)
        if batches.num_batches > 1:
            generator.manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)
        _check_data(model, batches)
        step.prepared(*next(iter(batches)))
        return _run(step, batches, num_epochs, weight_at, schedules, callbacks, progress)


def _run(
    step: SVIStep,
    batches: Batches,
    num_epochs: int,
    weight_at: KLWeight,
    schedules: Sequence[Schedule],
    callbacks: Sequence[Callable[[History], bool | None]],
    progress: bool,
) -> GuidePosterior:
    num_data = step.model.num_data if isinstance(step.model, BayesianModel) else None
    history = History(num_data, step.path)
    stopped = False
    with tqdm(range(num_epochs), disable=not progress, unit="epoch") as bar:
        for epoch in bar:
            start, sizes, weights = time.perf_counter(), [], []
            results: list[Tensor] = []
            for index, batch in enumerate(batches):
                if epoch == 0:
                    _check_first_time(step.model, batch, batches)
                weight = check_weight(weight_at(epoch, index, batches.num_batches))
                try:
                    results.append(step(*batch, kl_weight=weight).values)
                except NonFiniteError as error:
                    raise error.at(_position(epoch, index)) from None
                weights.append(weight)
                sizes.append(len(batch[0]))
            _record(history, results, weights, epoch)
            record = history.end_epoch(sizes, step.optimizer.param_groups[0]["lr"], time.perf_counter() - start)
            if epoch == 0 and num_data is not None:
                _warn_of_size(num_data, sizes)
            _show(bar, record, num_data)
            for schedule in schedules:
                if isinstance(schedule, ReduceLROnPlateau):
                    schedule.step(record.kl_weight * record.kl - record.expected_log_likelihood)
                else:
                    schedule.step()
            if sum(bool(callback(history)) for callback in callbacks):  # a sum, so that every callback is called
                stopped = True
                break
    return GuidePosterior(step.guide, _status(history, num_epochs, stopped), history)


def _position(epoch: int, index: int) -> str:
    return f"epoch {epoch}, batch {index}"


def _warn_of_size(num_data: int, sizes: list[int]) -> None:
    rows = sum(sizes)
    if rows > num_data or num_data - rows >= max(sizes):
        warnings.warn(
            f"`num_data` is {num_data} but an epoch has {rows} rows, and the ELBO counts {num_data}; set `num_data` to "
            "the size of the training set.",
            stacklevel=4,
        )


def _record(history: History, results: list[Tensor], weights: list[float], epoch: int) -> None:
    """Add an epoch's steps to the history. The program waits for a GPU here, once an epoch, and not at each step."""
    for index, (row, weight) in enumerate(zip(torch.stack(results).tolist(), weights, strict=True)):
        expected_log_likelihood, kl, is_finite = row
        if not is_finite:
            raise NonFiniteError(
                "loss or its gradient",
                _position(epoch, index),
                " (an optimizer with `fused=False`, or the CPU, names the first bad site)",
            )
        history.add_step(expected_log_likelihood, kl, weight)


def _show(bar: tqdm, record: EpochRecord, num_data: int | None) -> None:
    unit = num_data or 1
    terms = {"ELBO": record.elbo, "NLL": -record.expected_log_likelihood, "KL": record.kl}
    shown = {f"{name}/N" if num_data else name: f"{value / unit:.4g}" for name, value in terms.items()}
    bar.set_postfix(shown, refresh=False)


def _status(history: History, num_epochs: int, stopped: bool) -> Status:
    first, last = history.epochs[0], history.epochs[-1]
    done = f"{'stopped by a callback' if stopped else 'completed'} after {len(history.epochs)} of {num_epochs} epochs"
    if len(history.epochs) > 1 and first.kl_weight == last.kl_weight:
        objectives = [r.expected_log_likelihood - r.kl_weight * r.kl for r in (first, last)]
        if objectives[0] - objectives[1] > NOTABLE_FALL * abs(objectives[0]):
            return Status(
                False,
                f"{done}, but the objective fell from {objectives[0]:.4g} to {objectives[1]:.4g} nats: lower the "
                "learning rate, or clip gradients (`clipped`).",
            )
    return Status(True, f"{done}; ELBO {last.elbo:.6g} nats.")


def _require_maker(optimizer: object) -> None:
    is_class = isinstance(optimizer, type) and not issubclass(optimizer, Optimizer)
    if isinstance(optimizer, PyroOptim) or not callable(optimizer) or is_class:
        raise ValueError(
            "`optimizer` must make a torch optimizer from parameters, such as functools.partial(torch.optim.Adam, "
            f"lr=1e-3), got {_checks.described(optimizer)}."
        )


def _check_data(model: nn.Module, batches: Batches) -> None:
    if isinstance(model, BayesianModel) and batches.tensors is not None:
        x = batches.tensors[0]
        if len(batches.tensors) != 2:
            raise ValueError(f"`data` must be a tuple (x, y), got {len(batches.tensors)} tensors.")
        if len(x) != model.num_data:
            raise ValueError(
                f"the model's `num_data` is {model.num_data} but the data has {len(x)} rows, and the KL would get the "
                f"wrong weight; build the model with `num_data={len(x)}`."
            )
        _checks.finite("x", x)


def _check_first_time(model: nn.Module, batch: Batch, batches: Batches) -> None:
    """Checks that cost too much for every step: inputs must be finite and, on a GPU, targets must have right values."""
    if not isinstance(model, BayesianModel):
        return
    if len(batch) != 2:
        raise ValueError(f"a batch must be a pair (x, y), got {len(batch)} parts.")
    if batches.tensors is None:
        _checks.finite("x", batch[0])
    if batch[1].is_cuda:
        model.check_targets(*batch)


def _device_of(model: nn.Module, guide: nn.Module) -> torch.device | None:
    if isinstance(model, BayesianModel):
        return model.device
    return next((parameter.device for module in (guide, model) for parameter in module.parameters()), None)
