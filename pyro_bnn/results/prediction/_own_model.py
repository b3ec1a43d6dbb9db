"""Prediction by a user's Pyro model: its return value, over draws of its latent variables."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from pyro import poutine
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import as_inputs, unwrapped
from ..._core.scope import EXCLUSIVE, Stream, eval_mode, own_parameters, short_errors
from ...inference.posterior import Draw, Posterior
from ...scores.uncertainty import RunningMoments, ValuePrediction


def predict_values(
    model: Callable[..., Any], posterior: Posterior, x: Any, *, num_samples: int, keep_draws: bool, seed: int | None
) -> ValuePrediction:
    """The mean and the variance of what a Pyro model returns, over draws from a posterior.

    The model is called without its observations: as ``model(x)``, or as ``model(*x)`` if x is a tuple.
    """
    found = unwrapped(as_inputs("x", x))
    arguments = found if isinstance(found, tuple) else (found,)
    with EXCLUSIVE:
        stream = Stream(seed)
    source = posterior.draws(num_samples, *arguments)
    values: list[Tensor] = []
    moments = RunningMoments()
    for _ in range(num_samples):
        with stream, torch.no_grad():
            value = _returned(model, next(source), arguments)
        if keep_draws:
            values.append(value)
        moments.add(value.double()[None])
    mean, variance = moments.mean.to(value.dtype), moments.variance
    if bool(mean.isnan().any()):
        raise ValueError(
            "`model` must return numbers, got NaN for some draws; look for a division by zero, or a logarithm of a "
            "negative number."
        )
    variance = None if variance is None else variance.to(value.dtype)
    return ValuePrediction(num_samples, None, mean, variance, torch.stack(values) if values else None)


def _returned(model: Callable[..., Any], draw: Draw, arguments: tuple[Any, ...]) -> Tensor:
    """The model's return value, given values of its latent variables."""
    net = model if isinstance(model, nn.Module) else nn.Module()
    conditioned = poutine.trace(poutine.condition(model, data=draw))
    with short_errors(), own_parameters(model), poutine.block(), eval_mode(net):
        try:
            trace: Any = conditioned.get_trace(*arguments)
        except TypeError as error:
            raise ValueError(
                "`model` must be a BayesianModel, or a Pyro model that can be called without its observations, as "
                f"`model(x, y=None)`; the call failed: {error}."
            ) from error
    value = trace.nodes["_RETURN"]["value"]
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0 or len(value) == 0:
        raise ValueError(
            "`model` must return the values to predict, a tensor of floats with one row per input, got "
            f"{_checks.described(value)}."
        )
    if not any(name in trace.nodes for name in draw):
        raise ValueError(
            f"`model` must be a BayesianModel, got {_checks.described(model)}, which draws none of {list(draw)[:5]}; "
            "or pass the Pyro model of the posterior."
        )
    _require_latents(trace, draw, len(value))
    return value.detach()


def _require_latents(trace: Any, draw: Draw, num_rows: int) -> None:
    """Raise unless the names and shapes in a draw are those of the model's latent variables.

    A sample site in a plate, or with an axis of one element per row, counts as an observation.
    """
    drawn: Any = prune_subsample_sites(trace).nodes
    nodes = {name: node for name, node in drawn.items() if node["type"] == "sample"}
    unknown = [name for name in draw if name not in nodes]
    missing = [
        name
        for name, node in nodes.items()
        if not node["is_observed"] and not node["cond_indep_stack"] and num_rows not in node["value"].shape
    ]
    for names, problem in ((unknown, "has values of {}, which the model does not draw"), (missing, "lacks {}")):
        if names:
            _refuse(problem.format(names))
    for name, value in draw.items():
        expected = nodes[name]["fn"].shape()
        if value.shape != expected:
            _refuse(f"has `{name}` of shape {tuple(value.shape)}, which must be {tuple(expected)}")


def _refuse(problem: str) -> NoReturn:
    raise ValueError(f"the posterior belongs to another model: it {problem}; pass the model that was fitted.")
