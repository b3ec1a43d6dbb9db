"""Converts draws of a posterior to ArviZ's `InferenceData`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import pyro_bnn

from .._core import checks as _checks
from .._core.extras import optional
from .._core.inputs import Inputs, as_inputs, as_targets
from .._core.scope import Stream
from ..modelling.model import BayesianModel
from .joint import draw_batches


def check_data(model: object, x: object, y: object) -> None:
    """Raise if ArviZ is not installed, if `y` is given without `x`, or if only one of `model` and `x` is given."""
    _require_arviz()
    if (model is None) != (x is None) or (y is not None and x is None):
        raise ValueError("`model` and `x` go together, and `y` needs both; pass the missing ones.")
    if model is not None:
        _checks.kind("model", model, BayesianModel, "the BayesianModel of the posterior")


def inference_data(
    samples: Mapping[str, Tensor],
    statistics: Mapping[str, Tensor],
    attributes: Mapping[str, object],
    *,
    model: BayesianModel | None,
    x: Inputs | None,
    y: Tensor | None,
    stream: Stream,
) -> Any:
    """Return draws, ``{site: shape (K, S, *event)}``, and statistics, shape (K, S), as an `InferenceData`."""
    arviz = _require_arviz()
    parts = {"posterior": samples, "sample_stats": statistics}
    groups: dict[str, Any] = {
        part: {name: _array(value) for name, value in values.items()} for part, values in parts.items() if values
    }
    if model is not None and x is not None:
        groups |= _predictive_groups(samples, model, x, y, stream)
    data = arviz.from_dict(**groups)
    said = {name: value for name, value in attributes.items() if value is not None}
    data.posterior.attrs.update(said, inference_library="pyro_bnn", inference_library_version=pyro_bnn.__version__)
    return data


def _require_arviz() -> Any:
    return optional("arviz", "ArviZ", "mcmc")


def _predictive_groups(
    samples: Mapping[str, Tensor], model: BayesianModel, x: Inputs, y: Tensor | None, stream: Stream
) -> dict[str, Any]:
    x = as_inputs("x", x, model.like)
    if y is not None:
        y = as_targets("y", y, model.like)
        model.check_targets(x, y)
        y = model.likelihood.as_targets(y, model.dtype)
    draws, log_likelihood = [], []
    for observation in draw_batches(model, samples, x, stream=stream):
        with stream:
            draws.append(observation.sample())
        if y is not None:
            log_prob = observation.log_prob(y)
            log_likelihood.append(log_prob.reshape(*log_prob.shape[:2], -1).sum(-1))  # (B, N)
    lead = next(iter(samples.values())).shape[:2]
    groups = {"posterior_predictive": {"obs": _array(torch.cat(draws).unflatten(0, lead))}}
    if y is not None:
        groups["log_likelihood"] = {"obs": _array(torch.cat(log_likelihood).unflatten(0, lead))}
        groups["observed_data"] = {"obs": _array(y)}
    return groups


def _array(value: Tensor) -> Any:
    value = value.detach().cpu()
    return (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).numpy()
