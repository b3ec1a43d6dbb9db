"""Settings in words, by which two fits can be compared."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from pyro.infer import ELBO
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._core.files import raw_bytes
from ...modelling.likelihoods import Likelihood
from ...modelling.model import BayesianModel
from ..kl import KLWeight
from ._optimizers import Schedule

MOST_NUMBERS = 16
"""Largest number of elements of a tensor that are written out; of more there is a digest."""


def words(value: object) -> str:
    """A value in words that are the same in another process; a function is its name only."""
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
    """Text that differs between tensors with different types, shapes or numbers."""
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(raw_bytes(tensor.cpu()))
    return f"the digest {result.hexdigest()[:16]}"


def model_in_words(model: nn.Module) -> dict[str, str]:
    """What tensors' shapes do not tell of a model, by name; nothing for a model that is no `BayesianModel`."""
    if not isinstance(model, BayesianModel):
        return {}
    return {
        "network": words(model.network),
        "prior": words(model.prior),
        "likelihood": _likelihood(model.likelihood),
        "latent variables": words(model.sample_statements),
    }


def _likelihood(likelihood: Likelihood) -> str:
    inner = {"training"} | vars(nn.Module()).keys()
    settings = {name: value for name, value in vars(likelihood).items() if name not in inner and name[0] != "_"}
    return f"{type(likelihood).__name__} {words(settings | dict(likelihood.named_buffers()))}"


def bound_in_words(elbo: ELBO) -> str:
    """The bound and those of its settings on which numbers depend."""
    alpha = vars(elbo).get("alpha")
    return f"{type(elbo).__name__} with {elbo.num_particles} draw" + ("" if alpha is None else f", alpha={alpha}")


def weight_in_words(weight: float | KLWeight) -> str:
    """The weight of the KL term; of a function of the user's own nothing is known."""
    if not callable(weight):
        return repr(float(weight))
    return words(weight) if is_dataclass(weight) else "a schedule"


def optimizer_in_words(optimizer: Optimizer) -> dict[str, str]:
    """The optimizer, and the settings of its groups, which must be taken before the first step."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {
        "optimizer": f"{type(optimizer).__name__} of {sizes} parameters",
        "optimizer's settings": words(settings),
    }


def schedules_in_words(schedules: list[Schedule]) -> dict[str, str]:
    """The learning-rate schedules, and their settings, which must be taken before the first step."""
    return {
        "schedule": ", ".join(type(schedule).__name__ for schedule in schedules) or "none",
        "schedule's settings": words([schedule.state_dict() for schedule in schedules]),
    }
