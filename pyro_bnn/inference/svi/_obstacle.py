"""Conditions of the direct path: it is taken only if its numbers are those of Pyro's own machinery, up to rounding."""

from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn

from ..._core.copies import copied
from ..._core.inputs import Inputs
from ..._core.reflection import has_hooks, overridden_names, tensors_of
from ..._core.scope import seeded
from ...modelling.model import BayesianModel
from ..guides import FlatGuide
from ..joint import Joint
from ._functions import PyroFunction


def direct_joint(model: nn.Module, guide: nn.Module, elbo: ELBO, x: Inputs) -> Joint | str:
    """The joint density for the direct path, or why that path is closed. Runs a copy of the model once, on inputs x."""
    if not isinstance(model, BayesianModel):
        kind = "a function" if isinstance(model, PyroFunction) else f"of type {type(model).__name__}"
        return f"the model is {kind}"
    if overridden := overridden_names(type(model), BayesianModel):
        return f"the model, of type {type(model).__name__}, overrides {', '.join(overridden)}"
    if not isinstance(guide, FlatGuide):
        return f"the guide is of type {type(guide).__name__}"
    if guide.changes is not None:
        return guide.changes
    if type(elbo) not in (Trace_ELBO, TraceMeanField_ELBO):
        return f"the bound is {type(elbo).__name__}"
    if elbo.vectorize_particles or elbo.retain_graph:
        return "the bound vectorises its particles or retains its graph"
    if _PYRO_STACK:  # later steps do not look: the handlers may then be those of another thread
        return "effect handlers are active"
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if has_hooks(model):
        return "the model or the guide has hooks"
    if model.interception.is_active:
        return "an estimator is applied already"
    if not model.has_fixed_priors:
        return "a prior depends on other variables or is learned"
    joint = guide.joint(model)
    return _of_priors(joint) or guide.obstacle(joint) or _of_network(model, x) or joint


def _of_priors(joint: Joint) -> str | None:
    if any(site.plates for site in joint.sites):
        return "a latent variable is inside a plate"
    if any(tensor.requires_grad for site in joint.sites for tensor in tensors_of(site.prior)):
        return "a prior is learned"
    if any(site.prior.batch_shape or site.prior.event_shape != site.start.shape for site in joint.sites):
        return "the shape of a prior is not that of its parameter"
    return None


def _of_network(model: BayesianModel, x: Inputs) -> str | None:
    try:
        with seeded(0, model.device), torch.no_grad(), poutine.block():  # other threads of ours wait
            tried = copied(model)  # a run changes the buffers of layers such as batch normalisation
            trace: Any = poutine.trace(tried.observation).get_trace(x)
    except Exception as error:  # if the data are wrong, the real step raises the right error
        return f"the model could not be tried out ({type(error).__name__}: {error})"
    if {*trace.stochastic_nodes} != {*model.latent_names} or trace.observation_nodes:
        return "the network or the likelihood has sites of its own"
    return None
