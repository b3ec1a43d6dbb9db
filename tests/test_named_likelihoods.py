"""Likelihoods by name: each can be made, can be fitted with its number of outputs, and is in the error message."""

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.modelling.likelihoods import LIKELIHOOD_CHOICES, LIKELIHOODS, make_likelihood

from .fits import fit


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("num_targets", [1, 2])
def test_every_named_likelihood_can_be_fitted_with_the_outputs_that_it_asks_for(name, num_targets):
    likelihood = make_likelihood(name)
    x, y = torch.randn(6, 2), torch.arange(6 * num_targets).reshape(6, num_targets) % 2.0
    if name == "categorical":
        num_targets, y = 2, y[:, 0].long()
    net = nets.mlp([2, 3, likelihood.num_outputs(num_targets)])
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
    posterior = fit(model, pb.MeanFieldGuide(model), x, y)
    prediction = pb.predict(model, posterior, x, y=y, num_samples=4)
    assert prediction.log_density.isfinite().all()
    found = "classes" if isinstance(prediction, pb.uncertainty.ClassificationPrediction) else "numbers or counts"
    assert LIKELIHOODS[name].targets in found


@pytest.mark.parametrize(("spec", "num_outputs"), [("mixture", 18), ("mixture:5", 30), ("heteroscedastic", 4)])
def test_the_number_of_outputs_of_two_targets(spec, num_outputs):
    assert make_likelihood(spec).num_outputs(2) == num_outputs


def test_a_number_is_the_noise_scale_and_without_one_it_is_latent():
    assert float(make_likelihood("gaussian:0.5").noise_scale()) == 0.5
    with pytest.raises(ValueError, match="latent variable"):
        make_likelihood("gaussian").noise_scale()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_name_is_in_the_error(name):
    assert name in LIKELIHOOD_CHOICES
    with pytest.raises(ValueError, match=f"unknown likelihood 'Normal'; did you mean 'gaussian'. Choose .*{name}"):
        make_likelihood("Normal")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gaussian:", "needs one number after the colon, SCALE"),
        ("gaussian:1,2", "needs one number after the colon, SCALE"),
        ("gaussian:-1", "`scale` must be a finite number above 0"),
        ("mixture:1.5", "`num_components` must be a whole number"),
        ("poisson:2", "must have no number: write 'poisson'"),
        (3, "unknown likelihood int; choose categorical"),
    ],
)
def test_what_cannot_be_made_is_told(spec, message):
    with pytest.raises(ValueError, match=message):
        make_likelihood(spec)
