"""Pyro's AutoNormal, set up so that its known traps cannot bite."""

import torch
from pyro.infer.autoguide import AutoNormal

from .. import _checks
from .._scope import own_parameters, seeded
from ..model import BayesianModel
from ._init import Init, NetworkInit
from ._sites import find_sites


def auto_normal(model: BayesianModel, *, init: Init | None = None) -> AutoNormal:
    """Pyro's `AutoNormal` for a model, by default centred on the network's own weights.

    A plain ``AutoNormal(model)`` first called without targets takes the observed site for a latent one, and has no
    parameters to load a state dict into before that first call. This one looks at the latent variables alone and is
    complete at once. With any AutoNormal use `Trace_ELBO`: its divergences are not closed-form, and
    `TraceMeanField_ELBO` gets those of constrained variables wrong.

    Args:
        model: The model to guide.
        init: First locations and scales.

    Returns:
        A guide that takes the model's arguments.
    """
    _checks.kind("model", model, BayesianModel, "a BayesianModel")
    init = NetworkInit() if init is None else init
    guide = AutoNormal(model.sample_latents)
    with own_parameters(guide), seeded(0):  # what is drawn here is overwritten
        guide()
    parameters = dict(guide.named_parameters())
    with torch.no_grad():
        for site in find_sites(model, (), {}):
            loc, rho = init(site)
            parameters[f"locs.{site.name}_unconstrained"].copy_(loc)
            parameters[f"scales.{site.name}_unconstrained"].copy_(rho)  # AutoNormal's scale is softplus of it too
    return guide
