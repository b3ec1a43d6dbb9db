"""Posteriors of every method as ArviZ's `InferenceData`."""

import functools
import sys

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import ChainStatistics

from .cases import small_model
from .chains import quietly
from .tolerances import IDENTITY, STANDARD_ERRORS, agrees_in_mean


def chains_of(model):
    draws = pb.GuidePosterior(pb.MeanFieldGuide(model)).sample(40, seed=1)
    names = ("log_density", "energy", "accept", "diverging", "num_steps", "step_size", "inverse_mass")
    statistics = {**dict.fromkeys(names), "diverging": torch.zeros(4, 10, dtype=torch.bool)}
    samples = {name: value.unflatten(0, (4, 10)) for name, value in draws.items()}
    return pb.MCMCPosterior(samples, ChainStatistics(**statistics, seconds=3.0), pb.Status(True, "ok"), sampler="NUTS")


def fit_of(model, x, y):
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    return pb.fit_svi(model, (x, y), pb.LowRankGuide(model, rank=2), optimizer=adam, num_epochs=2, seed=0)


METHODS = {
    # name -> (posterior of a model and its data, its method)
    "SVI": (fit_of, "SVI with LowRankGuide"),
    "point": (lambda model, *_: pb.GuidePosterior(pb.DeltaGuide(model)), "DeltaGuide"),
    "stock guide": (lambda model, *_: pb.GuidePosterior(pb.auto_guide(AutoNormal, model)), "AutoNormal"),
    "Laplace": (lambda model, x, y: quietly(pb.fit_laplace, model, (x, y), max_iter=5), "Laplace"),
    "ensemble": (
        lambda model, *_: pb.EnsemblePosterior([pb.GuidePosterior(pb.MeanFieldGuide(model)) for _ in range(3)]),
        "ensemble of 3 (MeanFieldGuide)",
    ),
    "MCMC": (lambda model, *_: chains_of(model), "NUTS"),
}


@pytest.fixture(params=METHODS)
def inferred(request):
    make, method = METHODS[request.param]
    model, x, y = small_model(likelihood="gaussian-latent", num_data=6)
    return model, x, y, make(model, x, y), method


def test_draws_are_those_of_the_posterior_as_one_chain(inferred):
    *_, posterior, _ = inferred
    before = torch.get_rng_state()
    data = posterior.to_arviz(num_samples=6, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert data.groups() == ["posterior"]
    for name, value in posterior.sample(6, seed=3).items():
        np.testing.assert_array_equal(data.posterior[name].values, value[None])


def test_log_likelihoods_are_those_of_the_draws(inferred):
    model, x, y, posterior, _ = inferred
    data = posterior.to_arviz(num_samples=6, model=model, x=x.numpy(), y=y.numpy())
    assert {*data.groups()} == {"posterior", "posterior_predictive", "log_likelihood", "observed_data"}
    assert data.posterior_predictive["obs"].shape == (1, 6, *y.shape)
    np.testing.assert_array_equal(data.observed_data["obs"], y)
    for index in range(6):
        draw = {name: torch.as_tensor(data.posterior[name].values[0, index]) for name in data.posterior}
        expected = model.observation_given(draw, x).log_prob(y).sum(-1)
        np.testing.assert_allclose(data.log_likelihood["obs"].values[0, index], expected, **IDENTITY)


def test_the_posterior_says_how_it_was_made(inferred, tmp_path):
    import arviz

    *_, posterior, method = inferred
    posterior.to_arviz(num_samples=6).to_netcdf(tmp_path / "posterior.nc")
    said = arviz.from_netcdf(tmp_path / "posterior.nc").posterior.attrs
    assert said["method"] == method
    assert (said["status"], said.get("status_ok")) == (str(posterior.status), posterior.status.ok)
    assert (said.get("sampling_time"), said["inference_library"]) == (posterior.seconds, "pyro_bnn")
    assert said["inference_library_version"] == pb.__version__


def test_all_draws_of_chains_keep_their_chains_and_statistics():
    model, x, _ = small_model()
    posterior = chains_of(model)
    data = posterior.to_arviz(model=model, x=x)
    np.testing.assert_array_equal(data.posterior["net.0.bias"], posterior.chains["net.0.bias"])
    assert data.posterior_predictive["obs"].shape == (4, 10, 6)
    assert data.sample_stats["diverging"].shape == (4, 10)
    joined = pb.EnsemblePosterior([posterior, posterior]).to_arviz()
    assert joined.posterior["net.0.bias"].shape == (1, 80, 5)


def test_by_default_there_are_a_thousand_draws():
    model = small_model()[0]
    assert pb.GuidePosterior(pb.DeltaGuide(model)).to_arviz().posterior["net.0.bias"].shape == (1, 1000, 5)


def test_predictive_draws_have_the_noise_of_weights_and_observations():
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.5), num_data=1)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=2.0))
    data = pb.GuidePosterior(guide).to_arviz(num_samples=4000, model=model, x=torch.tensor([[1.0]]), seed=5)
    obs = torch.as_tensor(data.posterior_predictive["obs"].values).flatten()
    assert agrees_in_mean(obs[:, None], torch.ones(1))
    assert not agrees_in_mean(obs[:, None], torch.tensor([1.3]))
    variance, standard_error = float(obs.var()), (2 / 4000) ** 0.5
    assert abs(variance / (4 + 2.25) - 1) < STANDARD_ERRORS * standard_error
    assert abs(variance / 4 - 1) > STANDARD_ERRORS * standard_error  # without the noise of observations
    residuals = obs - torch.as_tensor(data.posterior["net.weight"].values).flatten()
    correlation = float(torch.corrcoef(torch.stack([residuals, obs - residuals]))[0, 1])
    assert abs(correlation) < STANDARD_ERRORS / 4000**0.5  # the two have random numbers of their own


def test_a_guide_that_looks_at_the_inputs_gets_them():
    model, x, _ = small_model(likelihood="gaussian-fixed")
    seen = []

    def guide(*arguments):
        seen.append(arguments)
        return pb.DeltaGuide(model)(*arguments)

    pb.GuidePosterior(guide).to_arviz(num_samples=2, model=model, x=x.tolist())
    assert all(torch.equal(arguments[0], x) for arguments in seen)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(2, 4)}, "`model` and `x` go together"),
        ({"num_samples": 0}, "`num_samples` must be a whole number of at least 1"),
        ({"seed": -1}, "`seed` must"),
        ({"model": nn.Linear(1, 1), "x": torch.zeros(1, 1)}, "`model` must be the BayesianModel"),
    ],
)
def test_wrong_arguments_are_answered_with_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        pb.GuidePosterior(pb.DeltaGuide(small_model()[0])).to_arviz(**arguments)


def test_without_arviz_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[mcmc\]'"):
        pb.GuidePosterior(pb.DeltaGuide(small_model()[0])).to_arviz()
