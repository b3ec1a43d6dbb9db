"""The file from which a fit goes on: what it must agree with, and how it is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro.infer import ELBO, Trace_ELBO
from torch import nn

from ..._core.files import read_state, understood
from ..._core.inputs import leaves
from ..._core.records import record
from ..estimators import Estimator
from ..kl import KLWeight
from ._batches import Batch
from ._loop import Loop
from ._words import (
    bound_in_words,
    digest,
    model_in_words,
    optimizer_in_words,
    schedules_in_words,
    weight_in_words,
)

KIND = "checkpoint of a fit"


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds.

    Args:
        fit: What the fit is made of, see :func:`fingerprint_of`.
        loop: The state of its loop.
    """

    fit: dict[str, str]
    loop: dict[str, Any]


def fingerprint_of(
    loop: Loop, elbo: ELBO | None, estimator: Estimator | None, kl_weight: float | KLWeight
) -> dict[str, str]:
    """What a fit is made of, in words by kind; two fits that differ in one of these cannot go on from each other.

    Args:
        loop: The fit, before its first step.
        elbo: Its bound; None is `Trace_ELBO`.
        estimator: Its estimator.
        kl_weight: Weight of the KL term.
    """
    step, tensors = loop.step, loop.batches.tensors
    return {
        "model": _shapes(step.model),
        "guide": _shapes(step.guide),
        **model_in_words(step.model),
        "num_data": str(loop.num_data),
        **schedules_in_words(list(loop.schedules)),
        **optimizer_in_words(step.optimizer),
        "bound": bound_in_words(Trace_ELBO() if elbo is None else elbo),
        "estimator": "none" if estimator is None else type(estimator).__name__,
        "KL weight": weight_in_words(kl_weight),
        "number of batches": str(loop.batches.num_batches),
        "data": "a loader" if tensors is None else _data(tensors),
        "callbacks": ", ".join(type(callback).__name__ for callback in loop.callbacks) or "none",
        "computation of gradients": step.path,
        "number of parts": str(step.execution.num_parts),
        "autocast": str(step.execution.autocast),
        "number of processes": str(step.execution.processes.count),
    }


def _shapes(module: nn.Module) -> str:
    kinds = {name: f"{value.dtype} {tuple(value.shape)}" for name, value in module.state_dict().items()}
    return f"{type(module).__name__} {kinds}"


def _data(data: Batch) -> str:
    return f"tensors with {digest(*(leaf for part in data for leaf in leaves(part)))}"


def restore_from(path: str | Path, loop: Loop, fingerprint: Mapping[str, str]) -> None:
    """Let a loop go on from a file.

    Args:
        path: The file.
        loop: A loop that has made no step.
        fingerprint: What its fit is made of.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or of another fit.
    """
    with understood(path, KIND):
        state = record(Saved, read_state(path, KIND), "file")
    for kind, expected in fingerprint.items():
        found = state.fit.get(kind)
        if found != expected:
            raise ValueError(
                f"{path} is of another fit: its {kind} is {found}, but that of this fit is {expected}; "
                "resume with the arguments with which the file was made."
            )
    with understood(path, KIND):
        loop.restore(state.loop)
