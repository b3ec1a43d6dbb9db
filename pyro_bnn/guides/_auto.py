"""Pyro's AutoNormal, set up so that its known traps cannot bite."""

from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor

from .._scope import own_parameters, seeded
from ..model import BayesianModel


def auto_normal(model: BayesianModel, *, init_scale: float = 0.01) -> AutoNormal:
    """Pyro's `AutoNormal` for a model, centred on the network's own weights.

    A plain ``AutoNormal(model)`` first called without targets takes the observed site for a latent one, and has no
    parameters to load a state dict into before that first call. This one looks at the latent variables alone and is
    complete at once. With any AutoNormal use `Trace_ELBO`: its divergences are not closed-form, and
    `TraceMeanField_ELBO` gets those of constrained variables wrong.

    Args:
        model: The model to guide.
        init_scale: Initial standard deviation of every latent variable, in unconstrained space.

    Returns:
        A guide that takes the model's arguments.
    """

    def init_loc(site: dict) -> Tensor:
        own = site["name"] in model.site_names
        value: Tensor = model.initial_value(site["name"]) if own else init_to_median(site)
        return value

    guide = AutoNormal(model.sample_latents, init_loc_fn=init_loc, init_scale=init_scale)
    with own_parameters(guide), seeded(0):  # one seed, one start
        guide()
    return guide
