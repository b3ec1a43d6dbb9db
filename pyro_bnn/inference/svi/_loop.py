"""The loop over epochs and batches. A fit has the same results if it is interrupted and resumed."""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from pyro.infer import ELBO, Trace_ELBO
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._core import checks as _checks
from ..._core.devices import reads_wait
from ..._core.files import read_state, understood
from ..._core.inputs import Batch, leaves, named_leaves
from ..._core.records import digest, record, words
from ..._core.scope import Stream, outer_stacklevel
from ...modelling.model import BayesianModel
from ..estimators import Estimator
from ..history import EpochRecord, History
from ..kl import KLWeight, check_weight
from ._batches import Batches
from ._optimizers import Schedule
from ._step import NonFiniteError
from ._svi_step import SVIStep

KIND = "checkpoint of a fit"

Callback = Callable[[History], bool | None]
"""Function that is called with the history after each epoch. A true result ends the fit."""


@runtime_checkable
class StatefulCallback(Protocol):
    """A callback whose state is saved in checkpoints.

    The state must consist of numbers, texts, tensors, lists and dictionaries.

    Example:
        >>> class Best:
        ...     def __init__(self):
        ...         self.elbo = -float("inf")
        ...
        ...     def __call__(self, history):
        ...         self.elbo = max(self.elbo, history.epochs[-1].elbo)
        ...
        ...     def state_dict(self):
        ...         return {"elbo": self.elbo}
        ...
        ...     def load_state_dict(self, state):
        ...         self.elbo = state["elbo"]
        >>> from pyro_bnn.inference.svi import StatefulCallback
        >>> isinstance(Best(), StatefulCallback)
        True
    """

    def __call__(self, history: History) -> bool | None:
        """Receive the history after each epoch. A true result ends the fit."""

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of :meth:`state_dict`."""


class EpochEnd(ABC):
    """A callback that may end an epoch, and the fit, before all batches are used."""

    @abstractmethod
    def ends_epoch(self, num_steps: int) -> bool:
        """Receive the number of steps so far, after each step. A true result ends the epoch."""

    @abstractmethod
    def __call__(self, history: History) -> bool | None:
        """Receive the history after each epoch. A true result ends the fit."""


class Loop:
    """A fit in progress. Steps draw random numbers from `stream`, and callbacks from torch's global generators."""

    def __init__(
        self,
        step: SVIStep,
        batches: Batches,
        stream: Stream,
        *,
        num_epochs: int,
        kl_weight: KLWeight,
        schedules: Sequence[Schedule],
        callbacks: Sequence[Callback],
    ) -> None:
        self.step, self.batches, self.stream = step, batches, stream
        self.num_epochs, self.schedules, self.callbacks = num_epochs, schedules, callbacks
        self._kl_weight, self._processes = kl_weight, step.execution.processes
        self.num_data = step.model.num_data if isinstance(step.model, BayesianModel) else None
        self.history = History(self.num_data, step.path)
        self.is_stopped = False
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._values, self._weights, self._seconds = list[Tensor](), list[float](), 0.0
        self._at_begin = self.stream.state(), self.batches.order_state()

    @property
    def epoch(self) -> int:
        return len(self.history.epochs)

    @property
    def num_steps(self) -> int:
        return len(self._weights)

    @property
    def is_done(self) -> bool:
        return self.is_stopped or self.epoch >= self.num_epochs

    def run(self, after_step: Callable[[], None], after_epoch: Callable[[EpochRecord], None]) -> None:
        """Make the remaining steps.

        Call `after_epoch` after the last step of each epoch, and `after_step` after each of its earlier steps.
        """
        while not self.is_done:
            begin = time.perf_counter() - self._seconds
            iterator = self._started()
            is_cut = False
            while not is_cut and self._make_step(iterator):
                self._seconds = time.perf_counter() - begin
                is_cut = self._must_end()
                if not is_cut and self.num_steps < self.batches.num_batches:
                    after_step()
            after_epoch(self._end_epoch(begin, is_whole=not is_cut))

    def _must_end(self) -> bool:
        num_steps = len(self.history.elbo) + self.num_steps
        flags = [callback.ends_epoch(num_steps) for callback in self.callbacks if isinstance(callback, EpochEnd)]
        return bool(flags) and any(self._processes.any(flags))

    def _started(self) -> Iterator[Batch]:
        if not self.num_steps:
            with self.stream:
                return self.batches.epoch(self.epoch)
        now = self.stream.state()
        stream, order = self._at_begin
        self.stream.restore(stream)
        self.batches.restore_order(order)
        with self.stream:
            iterator = self.batches.epoch(self.epoch, skip=self.num_steps)
        self.stream.restore(now)
        return iterator

    def _make_step(self, iterator: Iterator[Batch]) -> bool:
        """Make the next step; return false if no batch is left."""
        index = self.num_steps
        with self.stream:
            batch = next(iterator, None)
            self.batches.require_same_end(batch)
            if batch is None:
                return False
            weight = check_weight(self._kl_weight(self.epoch, index, self.batches.num_batches))
            try:
                with self._first_checks(batch) if self.epoch == 0 else nullcontext():
                    values = self.step(*batch, kl_weight=weight).values
            except NonFiniteError as error:
                raise error.at(_position(self.epoch, index)) from None
        self._values.append(values)
        self._weights.append(weight)
        return True

    def _first_checks(self, batch: Batch) -> AbstractContextManager[None]:
        """Check a batch of the first epoch. Checks in every epoch would be too costly.

        Inputs from a loader are always checked. On a GPU, the targets are checked as well. On a CPU, the targets are
        not checked, but the returned context checks the network's output in the first step.
        """
        model = self.step.model
        if not isinstance(model, BayesianModel):
            return nullcontext()
        if self.batches.tensors is None:
            for name, leaf in named_leaves("x", batch[0]):
                _checks.finite(name, leaf)
        if reads_wait(batch[1].device):
            model.check_targets(*batch)
        elif not self.num_steps:
            return model.interception.checking(model.likelihood.check_output)
        return nullcontext()

    def _end_epoch(self, begin: float, *, is_whole: bool) -> EpochRecord:
        """Add the epoch to the history. This is the only place where the loop waits for a GPU."""
        rows = torch.stack(self._values).tolist()
        seconds, sizes = time.perf_counter() - begin, []
        for index, (row, weight) in enumerate(zip(rows, self._weights, strict=True)):
            expected_log_likelihood, kl, is_finite, num_rows = row
            if not is_finite:
                raise NonFiniteError(
                    "loss or its gradient",
                    _position(self.epoch, index),
                    " (to learn the first bad site, use an optimizer with `fused=False`, or the CPU)",
                    weight,
                )
            self.history.add_step(expected_log_likelihood, kl, weight)
            sizes.append(int(num_rows))
        if is_whole and self.epoch == 0 and self.num_data is not None:
            _warn_of_size(self.num_data, sizes)
        epoch = self.history.end_epoch(sizes, float(self.step.optimizer.param_groups[0]["lr"]), seconds)
        for schedule in self.schedules:
            if isinstance(schedule, ReduceLROnPlateau):
                schedule.step(epoch.kl_weight * epoch.kl - epoch.expected_log_likelihood)
            else:
                schedule.step()
        is_stopped = sum(bool(callback(self.history)) for callback in self.callbacks) > 0  # `any` would not call all
        (self.is_stopped,) = self._processes.any([is_stopped])
        self._begin_epoch()
        return epoch

    def state(self) -> dict[str, Any]:
        """Return the state of this fit between two steps. All processes must call this method."""
        stream, order = self._at_begin
        return {
            "model": self.step.model.state_dict(),
            "guide": self.step.guide.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "callbacks": [c.state_dict() if isinstance(c, StatefulCallback) else None for c in self.callbacks],
            "random numbers": self._processes.gathered(self.stream.state()),
            "begin of epoch": self._processes.gathered({"random numbers": stream, "order": order}),
            "history": self.history.to_dict(),
            "epoch": {
                "values": torch.stack(self._values) if self._values else None,
                "kl_weights": list(self._weights),
                "seconds": self._seconds,
            },
            "stopped": self.is_stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.step.model.load_state_dict(state["model"])
        self.step.guide.load_state_dict(state["guide"])
        self.step.optimizer.load_state_dict(state["optimizer"])
        for schedule, its_state in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(its_state)
        for callback, its_state in zip(self.callbacks, state["callbacks"], strict=True):
            if isinstance(callback, StatefulCallback):
                callback.load_state_dict(its_state)
        self.history = History.from_dict(state["history"])
        epoch = state["epoch"]
        self._weights, self._seconds = epoch["kl_weights"], epoch["seconds"]
        device = self.step.optimizer.param_groups[0]["params"][0].device
        self._values = [] if epoch["values"] is None else list(epoch["values"].to(device).unbind())
        self.is_stopped = state["stopped"]
        rank = self._processes.rank
        begin = state["begin of epoch"][rank]
        self.stream.restore(state["random numbers"][rank])
        self._at_begin = begin["random numbers"], begin["order"]
        self.batches.restore_order(self._at_begin[1])


def _position(epoch: int, index: int) -> str:
    return f"epoch {epoch}, batch {index}"


def _warn_of_size(num_data: int, sizes: list[int]) -> None:
    rows = sum(sizes)
    if rows > num_data or num_data - rows >= max(sizes):
        warnings.warn(
            f"`num_data` is {num_data} but an epoch has {rows} rows; set `num_data`, which scales the ELBO, to the "
            "size of the training set.",
            stacklevel=outer_stacklevel(),
        )


# --- checkpoints: the state of the loop, and a description that identifies the fit ---


@dataclass(frozen=True)
class FitRecord:
    fit: dict[str, str]
    loop: dict[str, Any]


def restore_from(path: str | Path, loop: Loop, fingerprint: Mapping[str, str]) -> None:
    """Load a checkpoint into a new loop; raise if it is from a different fit."""
    with understood(path, KIND):
        state = record(FitRecord, read_state(path, KIND), "file")
    for kind, expected in fingerprint.items():
        found = state.fit.get(kind)
        if found != expected:
            raise ValueError(
                f"{path} is from another fit: its {kind} is {found}, but this fit has {expected}; "
                "resume with the arguments of the fit that wrote the file."
            )
    with understood(path, KIND):
        loop.restore(state.loop)


def fingerprint_of(
    loop: Loop, elbo: ELBO | None, estimator: Estimator | None, kl_weight: float | KLWeight
) -> dict[str, str]:
    """Describe a fit as ``{topic: text}``. A resumed fit must have the description of the interrupted one."""
    step, tensors, groups = loop.step, loop.batches.tensors, loop.step.optimizer.param_groups
    elbo = Trace_ELBO() if elbo is None else elbo
    alpha = vars(elbo).get("alpha")
    return {
        "model": _shapes(step.model),
        "guide": _shapes(step.guide),
        **_model(step.model),
        "num_data": str(loop.num_data),
        "schedule": ", ".join(type(schedule).__name__ for schedule in loop.schedules) or "none",
        "schedule's settings": words([schedule.state_dict() for schedule in loop.schedules]),
        "optimizer": f"{type(step.optimizer).__name__} of {[len(group['params']) for group in groups]} parameters",
        "optimizer's settings": words([{k: v for k, v in group.items() if k != "params"} for group in groups]),
        "bound": f"{type(elbo).__name__} with {elbo.num_particles} draw" + ("" if alpha is None else f", {alpha=}"),
        "estimator": "none" if estimator is None else type(estimator).__name__,
        "KL weight": _weight(kl_weight),
        "number of batches": str(loop.batches.num_batches),
        "data": "a loader" if tensors is None else f"tensors with {digest(*(t for x in tensors for t in leaves(x)))}",
        "callbacks": ", ".join(type(callback).__name__ for callback in loop.callbacks) or "none",
        "computation of gradients": step.path,
        "number of parts": str(step.execution.num_parts),
        "autocast": str(step.execution.autocast),
        "number of processes": str(step.execution.processes.count),
    }


def _shapes(module: nn.Module) -> str:
    kinds = {name: f"{value.dtype} {tuple(value.shape)}" for name, value in module.state_dict().items()}
    return f"{type(module).__name__} {kinds}"


def _model(model: nn.Module) -> dict[str, str]:
    if not isinstance(model, BayesianModel):
        return {}
    likelihood, inner = model.likelihood, {"training"} | vars(nn.Module()).keys()
    settings = {name: value for name, value in vars(likelihood).items() if name not in inner and name[0] != "_"}
    return {
        "network": words(model.network),
        "prior": words(model.prior),
        "likelihood": f"{type(likelihood).__name__} {words(settings | dict(likelihood.named_buffers()))}",
        "latent variables": words(model.sample_statements),
    }


def _weight(weight: float | KLWeight) -> str:
    if not callable(weight):
        return repr(float(weight))
    return words(weight) if is_dataclass(weight) else "a schedule"
