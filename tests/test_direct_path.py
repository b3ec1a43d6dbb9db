"""Fits take the direct path where it is right, and Pyro's path elsewhere; the history says which."""

import dataclasses
import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroSample
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.history import History

from .fits import FUSED, fit, linear, six_rows

SGD = functools.partial(torch.optim.SGD, lr=1e-4)


class PlainModel(pb.BayesianModel):
    """Adds a name, and changes nothing."""

    label = "mine"


class PlainGuide(pb.MeanFieldGuide):
    """Adds a method, and changes nothing."""

    def num_parameters(self):
        return sum(parameter.numel() for parameter in self.parameters())


class Subclass(PlainModel):
    """Runs its own code when called."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class SubclassedGuide(PlainGuide):
    """Runs its own code when called."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Sampling(nn.Linear):
    """A network that has a Pyro site."""

    def forward(self, x):
        pyro.factor("penalty", -self.weight.square().sum())
        return super().forward(x)


def with_dependent_prior():
    model, guide = linear()
    setattr(
        model,
        "net.0.weight".replace("0.", ""),
        PyroSample(lambda self: dist.Normal(torch.zeros(2, 4), 2.0).to_event(2)),
    )
    return model, guide


def with_hook():
    model, guide = linear()
    model.register_forward_hook(lambda *_: None)
    return model, guide


def with_subclassed_guide():
    model, _ = linear()
    return model, SubclassedGuide(model)


class LearnedPrior(pb.Prior):
    """Its scale is a parameter."""

    def __init__(self):
        self.scale = torch.ones((), requires_grad=True)

    def elementwise(self, name, parameter, module):
        return dist.Normal(torch.zeros(()), self.scale)


class Odd(nn.Linear):
    """A network that cannot be copied."""

    def __deepcopy__(self, memo):
        if "weight" in self._buffers:  # it is the model's
            raise TypeError("no copies")
        return Odd(4, 2)


def with_frozen_guide():
    model, guide = linear(where="net.weight")
    guide.requires_grad_(False)
    return model, guide


def with_parameter_hook():
    model, guide = linear()
    guide.rho.get_parameter("net.bias").register_hook(lambda gradient: 0 * gradient)
    return model, guide


def with_tied_scales():
    model, guide = linear(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)))
    guide.rho.get_submodule("net.1").weight = guide.rho.get_submodule("net.0").weight
    return model, guide


def with_one_scale_per_layer():
    model, guide = linear()
    guide.rho.get_submodule("net").weight = nn.Parameter(torch.tensor(-3.0))
    return model, guide


def with_other_support():
    model, guide = linear()
    exp = dist.transforms.ExpTransform()
    first, *others = guide.sites
    guide.sites = (first, *(dataclasses.replace(site, transform=exp) for site in others))
    return model, guide


REASONS = {
    "Subclass, overrides forward": (lambda: linear(kind=Subclass), {}),
    "AutoNormal": (lambda: (model := linear()[0], pb.auto_guide(AutoNormal, model)), {}),
    "SubclassedGuide overrides forward": (with_subclassed_guide, {}),
    "RenyiELBO": (linear, {"elbo": RenyiELBO(num_particles=2)}),
    "hooks": (with_hook, {}),
    "sites of its own": (lambda: linear(Sampling(4, 2)), {}),
    "depends on other variables": (with_dependent_prior, {}),
    "is learned": (lambda: linear(prior=LearnedPrior()), {}),
    "could not be tried out": (lambda: linear(Odd(4, 2)), {}),
    "frozen": (with_frozen_guide, {}),
    "parameters of the guide have hooks": (with_parameter_hook, {}),
    "share a parameter": (with_tied_scales, {}),
    "in shape, dtype or device": (with_one_scale_per_layer, {}),
    "different sites": (with_other_support, {}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_whatever_the_direct_path_would_get_wrong_goes_through_pyro(reason):
    make, options = REASONS[reason]
    model, guide = make()
    data = six_rows()
    history = pb.fit_svi(model, data, guide, optimizer=SGD, num_epochs=1, **options).history
    assert history.path.startswith("pyro: ")
    assert reason in history.path


def test_a_plain_subclass_is_fitted_directly():
    model, _ = linear(kind=PlainModel)
    assert fit(model, PlainGuide(model), *six_rows(), optimizer=SGD).history.path == "direct"


@pytest.mark.parametrize(
    ("context", "reason"),
    [(pyro.poutine.scale(scale=2.0), "handlers"), (torch.autocast("cpu", torch.bfloat16), "autocast")],
)
def test_what_surrounds_the_fit_counts_too(context, reason):
    model, guide = linear()
    data = six_rows()
    with context:
        history = pb.fit_svi(model, data, guide, optimizer=SGD, num_epochs=1).history
    assert reason in history.path


def test_a_parameter_that_is_not_learned_stays():
    model, guide = linear()
    guide.loc.get_parameter("net.bias").requires_grad_(False)
    before = guide.loc.get_parameter("net.bias").clone()
    pb.fit_svi(model, six_rows(), guide, optimizer=FUSED, num_epochs=3)
    assert torch.equal(guide.loc.get_parameter("net.bias"), before)


def test_the_path_survives_json():
    model, guide = linear()
    data = six_rows()
    history = pb.fit_svi(model, data, guide, optimizer=SGD, num_epochs=1).history
    assert History.from_dict(history.to_dict()).path == "direct"


# --- what would be wrong on either path -------------------------------------------------------------------------------


def test_a_network_that_changes_its_weights_in_place_is_refused():
    class Clamping(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    model, guide = linear(Clamping(4, 2))
    with pytest.raises(ValueError, match="in place"):
        pb.fit_svi(model, six_rows(), guide, optimizer=FUSED, num_epochs=1)


def test_a_prior_that_changes_is_refused():
    data = six_rows()
    model, guide = linear()

    def callback(history):
        setattr(model, "net.weight", PyroSample(dist.Normal(torch.zeros(2, 4), 2.0).to_event(2)))

    with pytest.raises(ValueError, match="prior was changed"):
        pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=2, callbacks=[callback])
