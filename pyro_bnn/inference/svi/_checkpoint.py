"""Checkpoints of a fit. A checkpoint contains the state of the loop, and a description that identifies the fit."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pyro.infer import ELBO, Trace_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core.files import raw_bytes, read_state, understood
from ..._core.inputs import leaves
from ..._core.records import record
from ...modelling.model import BayesianModel
from ..estimators import Estimator
from ..kl import KLWeight
from ._loop import Loop

KIND = "checkpoint of a fit"

MOST_NUMBERS = 16
"""Tensors with up to this number of elements are described by their elements, and larger tensors by a digest."""


@dataclass(frozen=True)
class FitRecord:
    """Content of a checkpoint: the description of the fit, and the state of its loop."""

    fit: dict[str, str]
    loop: dict[str, Any]


def restore_from(path: str | Path, loop: Loop, fingerprint: Mapping[str, str]) -> None:
    """Load a checkpoint into a loop that has made no step. Raise an error if the checkpoint is from a different fit."""
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
    """Describe a fit, with one text for each topic. A fit resumes only from a checkpoint with the same texts."""
    step, tensors = loop.step, loop.batches.tensors
    elbo = Trace_ELBO() if elbo is None else elbo
    alpha = vars(elbo).get("alpha")
    return {
        "model": _shapes(step.model),
        "guide": _shapes(step.guide),
        **_model(step.model),
        "num_data": str(loop.num_data),
        "schedule": ", ".join(type(schedule).__name__ for schedule in loop.schedules) or "none",
        "schedule's settings": words([schedule.state_dict() for schedule in loop.schedules]),
        **_optimizer(step.optimizer),
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
    """Return texts that describe the network, prior, likelihood and latent variables of a `BayesianModel`."""
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


def _optimizer(optimizer: Optimizer) -> dict[str, str]:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"optimizer": f"{type(optimizer).__name__} of {sizes} parameters", "optimizer's settings": words(settings)}


def _weight(weight: float | KLWeight) -> str:
    """Return a text that describes the weight of the KL term; "a schedule" for a function of the user."""
    if not callable(weight):
        return repr(float(weight))
    return words(weight) if is_dataclass(weight) else "a schedule"


def words(value: object) -> str:
    """Return a text that describes a value, the same in all processes."""
    if isinstance(value, Tensor):
        return str(value.tolist()) if value.numel() <= MOST_NUMBERS else digest(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {words(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(words(part) for part in value) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{field.name}={words(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def digest(*tensors: Tensor) -> str:
    """Return a text that is different for tensors with different types, shapes or elements."""
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(raw_bytes(tensor.cpu()))
    return f"the digest {result.hexdigest()[:16]}"
