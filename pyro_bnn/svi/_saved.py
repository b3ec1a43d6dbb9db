"""The file from which a fit goes on: what it must agree with, and how it is read."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from pyro.infer import ELBO
from torch import nn

from .._files import read_state
from .._inputs import leaves
from ..estimators import Estimator
from ..kl import KLWeight
from ..model import BayesianModel
from ._batches import Batch
from ._loop import Loop

KIND = "checkpoint of a fit"


def fingerprint_of(
    loop: Loop, elbo: ELBO | None, estimator: Estimator | None, kl_weight: float | KLWeight
) -> dict[str, str]:
    """What a fit is made of, in words by kind; two fits that differ in one of these cannot go on from each other."""
    step, tensors = loop.step, loop.batches.tensors
    bound = "Trace_ELBO with 1 draw" if elbo is None else f"{type(elbo).__name__} with {elbo.num_particles} draw"
    return {
        "model": _shapes(step.model),
        "prior": _prior(step.model),
        "guide": _shapes(step.guide),
        "num_data": str(loop.num_data),
        "optimizer": _optimizer(step.optimizer),
        "schedule": ", ".join(type(schedule).__name__ for schedule in loop.schedules) or "none",
        "bound": bound,
        "estimator": "none" if estimator is None else type(estimator).__name__,
        "KL weight": "a schedule" if callable(kl_weight) else repr(float(kl_weight)),
        "number of batches": str(loop.batches.num_batches),
        "data": "a loader" if tensors is None else _digest(tensors),
        "callbacks": ", ".join(type(callback).__name__ for callback in loop.callbacks) or "none",
        "computation of gradients": step.path,
        "number of parts": str(step.execution.num_parts),
        "autocast": str(step.execution.autocast),
        "number of processes": str(step.execution.processes.count),
    }


def _shapes(module: nn.Module) -> str:
    kinds = {name: f"{value.dtype} {tuple(value.shape)}" for name, value in module.state_dict().items()}
    return f"{type(module).__name__} {kinds}"


def _prior(model: nn.Module) -> str:
    """The prior with its numbers, if its text is the same in every process; else its type."""
    if not isinstance(model, BayesianModel):
        return "that of a model of another kind"
    text = repr(model.prior)
    return type(model.prior).__name__ if " at 0x" in text else text  # an address, as of a function


def _optimizer(optimizer: torch.optim.Optimizer) -> str:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} of {sizes} parameters"


def _digest(data: Batch) -> str:
    digest = hashlib.sha256()
    for tensor in (leaf for part in data for leaf in leaves(part)):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"tensors with the digest {digest.hexdigest()[:16]}"


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
    state = read_state(path, KIND)
    for kind, expected in fingerprint.items():
        if state["fit"][kind] != expected:
            raise ValueError(
                f"{path} is of another fit: its {kind} is {state['fit'][kind]}, but that of this fit is {expected}; "
                "resume with the arguments with which the file was made."
            )
    loop.restore(state["loop"])
