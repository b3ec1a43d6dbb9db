"""A distribution of one real number in place of a prior."""

import functools

import pyro.distributions as dist
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

import pyro_bnn as pb
from pyro_bnn.modelling.priors import as_prior

from .tolerances import assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.02)


@pytest.mark.parametrize("kind", [dist.Normal, torch.distributions.Normal])
def test_a_normal_distribution_is_a_normal_prior(kind):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    ours, theirs = (
        pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(0.5), num_data=8)
        for prior in (kind(0.0, 0.7), pb.NormalPrior(0.7))
    )
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    fits = [
        pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=5, seed=0)
        for model in (ours, theirs)
    ]
    assert fits[0].history.path == fits[1].history.path == "direct"
    assert_identical(torch.tensor(fits[0].history.elbo), torch.tensor(fits[1].history.elbo))
    assert "Normal(loc: 0.0, scale: 0.7" in str(ours)


def test_distributions_are_priors_by_name_and_in_estimators():
    net = nn.Linear(3, 2)
    prior = pb.PriorByName({"**.bias": dist.StudentT(3.0, 0.0, 1.0), "**": torch.distributions.Laplace(0.0, 0.5)})
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(0.5), num_data=8)
    values = {name: torch.randn_like(model.initial_value(name)) for name in model.site_names}
    assert_identical(
        model.prior_of("net.bias").log_prob(values["net.bias"]),
        dist.StudentT(3.0, 0.0, 1.0).log_prob(values["net.bias"]).sum(),
    )
    assert_identical(
        model.prior_of("net.weight").log_prob(values["net.weight"]),
        dist.Laplace(0.0, 0.5).log_prob(values["net.weight"]).sum(),
    )
    x, y = torch.randn(20, 1).numpy(), torch.randn(20).numpy()
    regressor = pb.BNNRegressor(method="svi", prior=dist.Normal(0.0, 0.3), max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning):
        regressor.fit(x, y)
    assert "0.3" in repr(regressor.model_.prior)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (dist.LogNormal(0.0, 1.0), "over all real numbers, got LogNormal on GreaterThan"),
        (dist.Normal(torch.zeros(3), 1.0), r"be of one number.*batch shape \(3,\)"),
        (dist.MultivariateNormal(torch.zeros(2), torch.eye(2)), r"event shape \(2,\)"),
        (dist.Poisson(2.0), "over all real numbers"),
        (dist.Normal, "a distribution of one number, such as"),
        (1.0, "a distribution of one number, such as"),
        (dist.Cauchy, r"got the class Cauchy; pass an instance, Cauchy\(...\).$"),
        (pb.FanInNormalPrior, r"pass an instance, FanInNormalPrior\(...\).$"),
        ("FanInNormalPrior", r"got 'FanInNormalPrior'; write FanInNormalPrior\(2.0\).$"),
        ("cauchy", "got 'cauchy'.$"),
        (int, "got the class int.$"),
        (nn.Module, "got the class Module.$"),
    ],
)
def test_a_distribution_that_is_no_prior_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        as_prior("prior", value)
    with pytest.raises(ValueError, match=r"priors\['\*\*'\]"):
        pb.PriorByName({"**": value})
