"""Pyro models of one's own whose latent variables are in a plate, and messages about their arguments."""

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


@pytest.mark.daily("AutoNormal-*", "AutoDelta-g*", "AutoLow*-s*", "Mean*", "by*")
@pytest.mark.parametrize(("name", "model"), CASES)
def test_plates_are_not_variables(name, model):
    """The draws have the latent variables alone, also if Pyro's sites of the plates are in the guide's trace."""
    guide = GUIDES[name](model)
    posterior = pb.fit_svi(model, (T, GROUP, Y), guide, optimizer=ADAM, num_epochs=20, seed=0)
    (draw,) = posterior.draws(1, T, GROUP)
    assert {site: tuple(value.shape) for site, value in draw.items()} == {"level": (4,), "slope": ()}
    prediction = pb.predict(model, posterior, (T, GROUP), y=Y, num_samples=300, seed=1)
    mean = torch.stack([value["level"][GROUP] + value["slope"] * T for value in posterior.draws(300, T, GROUP)])
    error = (mean.std(0) / 300**0.5).clamp(min=1e-6)
    assert bool(((prediction.mean - mean.mean(0)).abs() < 8 * error).all())


def test_stacked_draws_have_no_plates():
    guide = autoguide.AutoNormal(grouped)
    posterior = pb.fit_svi(grouped, (T, GROUP, Y), guide, optimizer=ADAM, num_epochs=1, seed=0)
    assert posterior.sample(3).keys() == {"level", "slope"}


# --- messages ---------------------------------------------------------------------------------------------------------


def two_observed(t, group, y=None, count=None):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(t)):
        pyro.sample("obs", dist.Normal(level + t, 0.3), obs=y)
        pyro.sample("count", dist.Poisson(t.exp()), obs=count)


def test_observed_sites_are_named_if_there_are_several():
    guide = autoguide.AutoNormal(pyro.poutine.block(two_observed, expose=["level"]))
    guide(T, GROUP)
    with pytest.raises(ValueError, match=r"observed sites \['obs', 'count'\] .* got NoneType .* `site=\"obs\"`"):
        pb.predict(two_observed, guide, (T, GROUP), num_samples=3)
    assert pb.predict(two_observed, guide, (T, GROUP), num_samples=3, site="obs").mean.shape == T.shape


def test_a_site_without_a_row_for_each_input_is_named():
    def few(t, group, y=None):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            pyro.sample("obs", dist.Normal(level, 0.3), obs=y)

    with pytest.raises(ValueError, match=r"got NoneType; its observed sites are `obs` of shape \(5,\)"):
        pb.predict(few, lambda *_: pyro.sample("level", dist.Normal(0.0, 1.0)), (T, GROUP), num_samples=3)


def posterior_of(kind):
    if kind == "stored":
        draws = {"level": torch.zeros(5, 4), "slope": torch.zeros(5)}
        return pb.StoredPosterior(draws, method="made up", status=pb.Status(True, "made up"))
    if kind == "guide":
        return pb.MeanFieldGuide(grouped, T, GROUP, Y)
    return pb.fit_nuts(grouped, (T, GROUP, Y), num_samples=5, num_warmup=2, num_chains=1, seed=0)


MISSING = (
    r"cannot be (saved|loaded): `data` .* got none for \['y'\], so the model draws \['obs'\].*pass the targets, too"
)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["stored", "guide", "chains"])
def test_targets_that_are_missing_in_data_are_named(kind, tmp_path):
    posterior, path = posterior_of(kind), tmp_path / "file"
    with pytest.raises(ValueError, match=MISSING):
        pb.save_posterior(posterior, path, grouped, data=(T, GROUP))
    pb.save_posterior(posterior, path, grouped, data=(T, GROUP, Y))
    with pytest.raises(ValueError, match=MISSING):
        pb.load_posterior(path, grouped, data=(T, GROUP))


def test_targets_of_counts_that_are_missing_in_data_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"`count` is Poisson.*if it is the observed site, pass the targets"):
        pb.save_posterior(posterior_of("stored"), tmp_path / "file", two_observed, data=(T, GROUP, Y))
