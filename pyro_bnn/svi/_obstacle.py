"""When the direct path may be taken: where it gives the numbers that Pyro's own machinery gives, up to rounding."""

import copy
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn
from torch.distributions.transforms import IndependentTransform

from .._reflection import tensors_of
from .._scope import seeded
from ..guides import MeanFieldGuide
from ..joint import Site, find_sites
from ..model import BayesianModel
from ._flat import guide_parameters


def obstacle(model: nn.Module, guide: nn.Module, elbo: type[ELBO], x: Tensor) -> str | None:
    """Why the direct path is closed, or None. A copy of the model is run once, on a batch of inputs x."""
    if type(model) is not BayesianModel:
        return f"the model is of type {type(model).__name__}"
    if type(guide) is not MeanFieldGuide:
        return f"the guide is of type {type(guide).__name__}"
    if elbo not in (Trace_ELBO, TraceMeanField_ELBO):
        return f"the bound is {elbo.__name__}"
    if _PYRO_STACK:
        return "effect handlers are active"
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if _is_changed(model) or _is_changed(guide):
        return "the model or the guide has hooks"
    if model.is_intercepted or guide._choose is not None:
        return "an estimator is applied already"
    sites = find_sites(model, (), {})
    return _of_priors(model, sites) or _of_guide(model, guide, sites) or _of_network(model, x)


def _is_changed(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _of_priors(model: BayesianModel, sites: list[Site]) -> str | None:
    if any(site.plates for site in sites) or not model.has_fixed_priors:
        return "a prior depends on other variables"
    if any(tensor.requires_grad for site in sites for tensor in tensors_of(site.prior)):
        return "a prior is learned"
    if any(site.prior.batch_shape or site.prior.event_shape != site.start.shape for site in sites):
        return "a prior has not the shape of its parameter"
    return None


def is_flat(model: BayesianModel, site: Site) -> bool:
    """Whether a site is computed by hand: a parameter of the network on the real line. Others are few."""
    return site.transform is None and site.name in model.site_names


def _of_guide(model: BayesianModel, guide: MeanFieldGuide, sites: list[Site]) -> str | None:
    if len(sites) != len(guide._sites) or not all(map(_are_alike, sites, guide._sites)):
        return "model and guide have different sites"
    flat = [site for site in sites if is_flat(model, site)]
    if not flat or any(site.start.numel() == 0 for site in flat):
        return "no parameter of the network is real, or one is empty"
    pairs = [(site.start, p) for site in flat for p in guide_parameters(guide, site.name).values()]
    if len({id(parameter) for _, parameter in pairs}) < len(pairs):
        return "two sites share a parameter of the guide"
    if any(p.shape != start.shape or (p.dtype, p.device) != (model.dtype, model.device) for start, p in pairs):
        return "parameters of the guide differ from those of the network in shape, dtype or device"
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for _, p in pairs):
        return "parameters of the guide have hooks"
    return None if all(p.requires_grad for _, p in pairs) else "parameters of the guide are frozen"


def _are_alike(first: Site, second: Site) -> bool:
    a, b = first.transform, second.transform
    while isinstance(a, IndependentTransform) and isinstance(b, IndependentTransform):
        a, b = a.base_transform, b.base_transform
    return (first.name, first.start.shape) == (second.name, second.start.shape) and bool(a == b)


def _of_network(model: BayesianModel, x: Tensor) -> str | None:
    try:
        with seeded(0, model.device), torch.no_grad(), poutine.block():
            copied = copy.deepcopy(model)  # batch normalisation and the like change what they run in
            trace: Any = poutine.trace(copied.observation).get_trace(x)
    except Exception as error:  # what is wrong with the data, the real step will say
        return f"the model could not be tried out ({type(error).__name__}: {error})"
    if {*trace.stochastic_nodes} != {*model.latent_names} or trace.observation_nodes:
        return "the network or the likelihood has sites of its own"
    return None
