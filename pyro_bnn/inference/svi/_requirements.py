"""Checks before a fit: model and guide belong together, and the guide draws every latent variable."""

import inspect
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.util import prune_subsample_sites
from torch import nn

from ..._core.inputs import Batch
from ..._core.scope import is_auxiliary, seeded, short_errors
from ...modelling.model import BayesianModel
from ..guides import FlatGuide
from ._functions import PyroFunction
from ._step import running_statistics

SITE_PREFIXES = ("net.", "prior.", "likelihood.")


def check_model(model: object, guide: object) -> None:
    """Raise if a model is given as a guide, or a guide as a model."""
    if isinstance(model, (FlatGuide, AutoGuide)):
        raise ValueError(f"`model` must be a model, got the guide {type(model).__name__}; pass the guide's model.")
    if isinstance(guide, BayesianModel):
        raise ValueError("`guide` must be a guide, got a BayesianModel; make one, such as MeanFieldGuide(model).")
    if guide is model and model is not None:
        raise ValueError(f"`guide` and `model` must be different modules, got the same {type(model).__name__} twice.")


def check_signature(name: str, module: nn.Module, batch: Batch) -> None:
    """Raise unless a module can be called with a batch."""
    try:
        inspect.signature(module.function if isinstance(module, PyroFunction) else module.forward).bind(*batch)
    except TypeError as error:
        raise ValueError(
            f"`{name}` must be a Pyro {name} that takes the {len(batch)} tensors of a batch as arguments, got "
            f"{type(module).__name__}: {error}. For a plain network make a BayesianModel and a guide."
        ) from None


def traced_guide(model: nn.Module, guide: nn.Module, elbo: ELBO, batch: Batch) -> Any:
    """A trace of one call of a guide; raises unless it draws all latent variables, where Pyro would only warn."""
    check_signature("model", model, batch)
    check_signature("guide", guide, batch)
    example = next(guide.parameters(), None)  # if there are none, this call makes them, with the seed of the fit
    seed, device = (None, None) if example is None else (0, example.device)
    with short_errors(), seeded(seed, device), torch.no_grad(), poutine.block():
        trace: Any = poutine.trace(guide).get_trace(*batch)
        if isinstance(model, BayesianModel) or isinstance(elbo, TraceEnum_ELBO):
            return trace
        needed = _drawn(poutine.replay(model, trace=trace), batch)
    missing = sorted(needed - {name for name, _ in trace.iter_stochastic_nodes()})
    if missing:
        raise ValueError(
            f"the guide must draw every latent variable of the model, but it lacks {missing}; make a guide of this "
            "model, or, if one of these is observed, pass the targets in each batch."
        )
    return trace


def _drawn(model: Any, batch: Batch) -> set[str]:
    """Names of the latent variables that a model draws in a call."""
    trace: Any = prune_subsample_sites(poutine.trace(model).get_trace(*batch))
    return {name for name, node in trace.iter_stochastic_nodes() if not is_auxiliary(node)}


def check_own_statements(model: BayesianModel, latent: set[str], batch: Batch) -> None:
    """Raise unless a guide draws all variables that the network or the likelihood draws in its forward pass."""
    with short_errors(), seeded(0), torch.no_grad(), poutine.block():
        buffers = running_statistics(model)
        before = [buffer.clone() for buffer in buffers]
        drawn = _drawn(model, batch)
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
    missing = sorted(drawn - {*latent, *model.latent_names})
    if missing:
        raise ValueError(
            f"the network draws {missing} by `pyro.sample`, but the guide does not, so a fit would not learn it; make "
            "it a `PyroSample` of a `PyroModule`, which becomes a site of the model, or fit Pyro's `AutoNormal(model)`."
        )


def learned_parameters(
    model: nn.Module, guide: nn.Module, elbo: ELBO, batch: Batch, trace: Any, *, is_direct: bool
) -> list[nn.Parameter]:
    """All parameters to learn. Raises if the sites in the guide's trace do not fit the model or the ELBO."""
    latent = [node for node in trace.nodes.values() if node["type"] == "sample" and not node["is_observed"]]
    if isinstance(model, BayesianModel) and any(node["name"] == "obs" for node in latent):
        raise ValueError(
            "the guide draws the observed site `obs`, because it was first called without targets; build it with "
            "`auto_guide`, or make `guide(x, y)` its first call."
        )
    if any(is_auxiliary(node) for node in latent) and isinstance(elbo, TraceMeanField_ELBO) and not is_direct:
        raise ValueError(
            f"{type(guide).__name__} samples auxiliary variables, for which TraceMeanField_ELBO has no closed form and "
            "omits the Jacobian of constrained sites; use `elbo=Trace_ELBO()`, or MeanFieldGuide."
        )
    owned = dict.fromkeys(parameter for module in (guide, model) for parameter in module.parameters())
    for name, node in trace.nodes.items():
        # Without a constraint, the value is the parameter itself. After Pyro's first call it has no `unconstrained`.
        if node["type"] == "param" and node["value"] not in owned and node["value"].unconstrained() not in owned:
            raise ValueError(
                f"the guide's parameter `{name}` must be in the guide, but is in Pyro's global store; make it a "
                "`PyroParam` or `nn.Parameter` of the module, or fit with `pyro.infer.SVI`."
            )
    if isinstance(model, BayesianModel):
        drawn = {node["name"] for node in latent if not is_auxiliary(node)}
        _check_sites(model, drawn)
        if not is_direct:
            check_own_statements(model, drawn, batch)
    parameters = [parameter for parameter in owned if parameter.requires_grad]
    if not parameters:
        raise ValueError("guide and model have no parameter to learn; pass a guide with at least one.")
    return parameters


def _check_sites(model: BayesianModel, drawn: set[str]) -> None:
    missing = [name for name in model.latent_names if name not in drawn]
    foreign = sorted(name for name in drawn if name.startswith(SITE_PREFIXES) and name not in model.latent_names)
    if missing or foreign:
        problem = f"it lacks {missing}" if missing else f"it also draws {foreign}"
        raise ValueError(f"the guide was made for another model: {problem}; make a guide of this model.")
