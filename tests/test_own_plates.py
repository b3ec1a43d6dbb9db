"""Pyro models of one's own whose latent variables are in a plate, and what is said of wrong arguments of such models."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide

import pyro_bnn as pb

from .fits import ADAM

pytestmark = pytest.mark.uses_param_store
T, GROUP, Y = torch.linspace(-1, 1, 12), torch.arange(12) % 4, torch.linspace(0, 2, 12)


def grouped(t, group, y=None):
    with pyro.plate("groups", 4):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(t)):
        return pyro.sample("obs", dist.Normal(level[group] + slope * t, 0.3), obs=y)


def subsampled(t, group, y=None):
    """The same; each call with targets uses 5 of the rows."""
    with pyro.plate("groups", 4):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(t), subsample_size=len(t) if y is None else 5) as rows:
        mean = level[group[rows]] + slope * t[rows]
        return pyro.sample("obs", dist.Normal(mean, 0.3), obs=None if y is None else y[rows])


def by_hand(t, group, y=None):
    levels, slope = pyro.param("levels", torch.zeros(4)), pyro.param("slope_mean", torch.tensor(0.0))
    with pyro.plate("groups", 4):
        pyro.sample("level", dist.Normal(levels, 0.1))
    pyro.sample("slope", dist.Normal(slope, 0.1))
    with pyro.plate("data", len(t), subsample_size=len(t) if y is None else 5):
        pass  # a guide may subsample the rows of the model


GUIDES = {
    **{
        name: getattr(autoguide, name)
        for name in ("AutoNormal", "AutoMultivariateNormal", "AutoDelta", "AutoLowRankMultivariateNormal")
    },
    "MeanFieldGuide": lambda model: pb.MeanFieldGuide(model, T, GROUP, Y),
    "by hand": lambda model: by_hand,
}


CASES = [(name, model) for name in GUIDES for model in (grouped, subsampled) if (name, model) != ("by hand", grouped)]


@pytest.mark.parametrize(("name", "model"), CASES)
def test_plates_are_not_variables(name, model):
    """The draws have the latent variables alone, also if Pyro's sites of the plates are in the guide's trace."""
    guide = GUIDES[name](model)
    posterior = pb.fit_svi(model, guide, (T, GROUP, Y), optimizer=ADAM, num_epochs=20, seed=0)
    (draw,) = posterior.draws(1, T, GROUP)
    assert {site: tuple(value.shape) for site, value in draw.items()} == {"level": (4,), "slope": ()}
    prediction = pb.predict(model, posterior, (T, GROUP), y=Y, num_samples=300, seed=1)
    mean = torch.stack([value["level"][GROUP] + value["slope"] * T for value in posterior.draws(300, T, GROUP)])
    error = (mean.std(0) / 300**0.5).clamp(min=1e-6)
    assert bool(((prediction.mean - mean.mean(0)).abs() < 8 * error).all())


def test_stacked_draws_have_no_plates():
    guide = autoguide.AutoNormal(grouped)
    posterior = pb.fit_svi(grouped, guide, (T, GROUP, Y), optimizer=ADAM, num_epochs=1, seed=0)
    assert posterior.sample(3).keys() == {"level", "slope"}
