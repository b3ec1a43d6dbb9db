"""A model's learned parameters belong to its last fit: earlier posteriors warn before they predict with them."""

import copy
import re
import warnings

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import PinnedPosterior

X = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
Y = 2 * X + 0.05 * torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CHANGED = r"learned `likelihood.rho` changed after this posterior was made"


def make_model(where="**"):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Linear(3, 1))
    likelihood = pb.GaussianLikelihood(None)
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=30, where=where)


def fit(model, num_epochs=40, guide=None, lr=0.1):
    def optimizer(parameters):
        return torch.optim.Adam(parameters, lr=lr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a short fit
        guide = pb.DeltaGuide(model) if guide is None else guide
        return pb.fit_svi(model, (X, Y), guide, optimizer=optimizer, num_epochs=num_epochs, progress=False, seed=0)


def laplace(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pb.fit_laplace(model, (X, Y), seed=0)


def noise(model, posterior):
    return float(pb.predict(model, posterior, X, seed=0).aleatoric_sd.mean())


@pytest.mark.parametrize("first", [laplace, fit])
def test_posterior_warns_after_another_fit_of_its_model(first):
    model = make_model()
    posterior = first(model)
    before = noise(model, posterior)  # without a warning, which would be an error
    later = fit(model, num_epochs=60)
    with pytest.warns(UserWarning, match=CHANGED):
        assert noise(model, posterior) != pytest.approx(before, rel=0.05)
    noise(model, later)
    model.load_state_dict(posterior.learned, strict=False)
    assert noise(model, posterior) == pytest.approx(before, rel=1e-5)


def test_copies_of_a_model_do_not_change_each_other():
    model = make_model()
    posterior = laplace(model)
    other = copy.deepcopy(model)
    fit(other)
    assert noise(model, posterior) == pytest.approx(1.0, rel=1e-5)
    with pytest.warns(UserWarning, match=CHANGED):
        noise(other, posterior)


def test_rounding_of_a_model_is_no_change():
    model = make_model()
    posterior = fit(model)
    model.bfloat16().double()
    noise(model, posterior)


def test_learned_part_of_a_network_is_compared():
    model = make_model(where="net.1.*")
    posterior = fit(model)
    with torch.no_grad():
        model.network[0].weight.mul_(2)
    with pytest.warns(UserWarning, match=r"learned `net\.0\.weight` changed"):
        noise(model, posterior)


def test_pinned_and_stored_posteriors_remember():
    model = make_model(where="net.1.*")
    posterior = fit(model)
    pinned = PinnedPosterior(model, posterior)
    stored = pb.StoredPosterior.of(posterior, 3, seed=0)
    with torch.no_grad():
        model.network[0].weight.mul_(2)
    noise(model, pinned)  # the draws contain the network's own values
    with pytest.warns(UserWarning, match=r"net\.0\.weight"):
        noise(model, stored)
    fit(model)
    with pytest.warns(UserWarning, match=CHANGED):
        noise(model, pinned)


def test_ensemble_of_fits_of_one_model_warns_but_the_method_ensemble_does_not():
    model = make_model()
    first, second = fit(model, num_epochs=20), fit(model, num_epochs=60)
    with pytest.warns(UserWarning, match=r"make a noise scale latent"):
        noise(model, pb.EnsemblePosterior([first, second]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ensemble = pb.fit(model, (X, Y), method="ensemble", num_members=2, num_workers=1, num_epochs=50, seed=0)
    noise(model, ensemble)


def test_files_keep_the_learned_values(tmp_path):
    model = make_model()
    posterior = fit(model)
    pb.save_posterior(posterior, tmp_path / "first", model)
    fit(model)
    with pytest.warns(UserWarning, match=CHANGED):
        pb.save_posterior(posterior, tmp_path / "second", model)
    loaded = pb.load_posterior(tmp_path / "first", model=model)
    assert loaded.learned.keys() == {"likelihood.rho"}
    noise(model, loaded)
    fit(model)
    with pytest.warns(UserWarning, match=CHANGED):
        noise(model, loaded)


def test_chains_say_which_numbers_they_do_not_infer():
    remedy = r"GaussianLikelihood keeps scale = 1\. Give it a prior .* or learn it first, by `fit_svi`"
    with pytest.warns() as record:
        pb.fit_nuts(make_model(), (X, Y), num_samples=20, num_warmup=20, num_chains=1, seed=0)
    assert sum(bool(re.search(remedy, str(warning.message))) for warning in record) == 1
