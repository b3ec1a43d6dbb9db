"""A posterior as the prior of the next fit."""

import functools

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn.modelling.priors import PosteriorPrior

from .tolerances import STANDARD_ERRORS

NOISE = 0.5
ADAM = functools.partial(torch.optim.Adam, lr=0.02)


def model_of(num_data, prior, num_inputs=1):
    likelihood = pb.GaussianLikelihood(NOISE)
    net = nn.Linear(num_inputs, 1, bias=False)
    return pb.BayesianModel(net, prior=prior, likelihood=likelihood, num_data=num_data)


def exact(x, y, precision=0.0, loc=0.0):
    """Mean and standard deviation of the weight in linear regression, given its Gaussian prior."""
    total = precision + float((x**2).sum()) / NOISE**2
    return (precision * loc + float((x * y).sum()) / NOISE**2) / total, total**-0.5


def data(num_data, seed):
    torch.manual_seed(seed)
    x = torch.randn(num_data, 1)
    return x, 1.5 * x + NOISE * torch.randn(num_data, 1)


def fitted(prior, x, y):
    """A guide with the exact posterior, which a fit would only approximate."""
    model = model_of(len(x), prior)
    guide = pb.MeanFieldGuide(model)
    given = prior("net.weight", torch.zeros(1, 1), None)
    loc, scale = exact(x, y, float(given.variance.reciprocal()), float(given.mean))
    state = {"loc.net.weight": torch.tensor([[loc]])}
    state["rho.net.weight"] = guide.scale_map.inverse(torch.tensor([[scale]]))
    guide.load_state_dict(state)
    return model, pb.GuidePosterior(guide)


def test_two_halves_one_after_the_other_are_all_data_together():
    x, y = data(40, 0)
    _, first = fitted(pb.NormalPrior(1.0), x[:20], y[:20])
    _, second = fitted(first.as_prior(), x[20:], y[20:])
    loc, scale = exact(x, y, 1.0)
    assert float(second.guide.locations()["net.weight"]) == pytest.approx(loc, rel=1e-12)
    assert float(second.guide.scales()["net.weight"]) == pytest.approx(scale, rel=1e-12)
    _, forgot = fitted(pb.NormalPrior(1.0), x[20:], y[20:])
    assert float(forgot.guide.scales()["net.weight"]) > 1.2 * scale


def test_a_fit_finds_the_posterior_under_it():
    x, y = data(40, 0)
    _, first = fitted(pb.NormalPrior(1.0), x[:20], y[:20])
    model = model_of(20, first.as_prior())
    guide = pb.MeanFieldGuide(model)
    options = {"elbo": TraceMeanField_ELBO(), "estimator": pb.LocalReparameterization(), "num_epochs": 800, "seed": 0}
    posterior = pb.fit_svi(model, (x[20:], y[20:]), guide, optimizer=ADAM, **options)
    loc, scale = exact(x, y, 1.0)
    assert posterior.history.path == "direct"
    assert abs(float(posterior.median()["net.weight"]) - loc) < 0.2 * scale
    assert float(guide.scales()["net.weight"]) == pytest.approx(scale, rel=0.1)
    assert exact(x[20:], y[20:], 1.0)[1] > 1.5 * scale  # without what was learned first


@pytest.mark.parametrize(("location", "is_silent"), [(3.0, False), (0.0, True)])
def test_a_posterior_at_an_informed_prior_is_not_dominated_by_it(location, is_silent):
    net = nn.Linear(3, 1)
    moments = {"net.weight": (1, 3), "net.bias": (1,)}
    locations = {name: torch.full(shape, location) for name, shape in moments.items()}
    prior = PosteriorPrior(locations, {name: torch.full(shape, 0.1) for name, shape in moments.items()})
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(NOISE), num_data=20)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    with torch.no_grad():
        for name, value in guide.locations().items():
            value.copy_(locations[name])
    warned = pb.GuidePosterior(guide).diagnose(model).warnings
    assert any("prior-dominated" in warning for warning in warned) == is_silent


def test_draws_give_the_moments_of_posteriors_without_a_gaussian_guide():
    x, y = data(20, 1)
    model, posterior = fitted(pb.NormalPrior(1.0), x, y)
    loc, scale = exact(x, y, 1.0)
    laplace = pb.fit_laplace(model, (x, y))
    error = STANDARD_ERRORS * scale / 4000**0.5
    for source in (laplace, pb.EnsemblePosterior([posterior, laplace])):
        prior = source.as_prior(num_samples=4000, seed=0)
        assert abs(float(prior.locations["net.weight"]) - loc) < error
        assert abs(float(prior.scales["net.weight"]) - scale) < error
    assert torch.equal(laplace.as_prior(seed=1).scales["net.weight"], laplace.as_prior(seed=1).scales["net.weight"])


def test_a_constrained_weight_gives_its_own_moments_not_those_of_its_logarithm():
    class Positive(pb.Prior):
        def elementwise(self, name, parameter, module):
            return dist.LogNormal(parameter.new_zeros(()), 1.0)

    model = model_of(20, Positive())
    guide = pb.MeanFieldGuide(model)
    state = {"loc.net.weight": torch.tensor([[1.1]]), "rho.net.weight": guide.scale_map.inverse(torch.tensor([[0.2]]))}
    guide.load_state_dict(state)
    found = pb.GuidePosterior(guide).as_prior(num_samples=4000, seed=0)
    marginal = dist.LogNormal(1.1, 0.2)
    assert float(found.locations["net.weight"]) == pytest.approx(float(marginal.mean), rel=0.02)
    assert float(found.scales["net.weight"]) == pytest.approx(float(marginal.stddev), rel=0.1)


def test_a_noise_scale_is_no_part_of_it_and_new_layers_get_a_prior_of_their_own():
    likelihood = pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=5)
    posterior = pb.GuidePosterior(pb.MeanFieldGuide(model))
    prior = posterior.as_prior(otherwise=pb.NormalPrior(3.0))
    assert set(prior.locations) == {"net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias"}
    longer = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(1, 1))
    later = pb.BayesianModel(longer, prior=prior, likelihood=pb.GaussianLikelihood(0.1), num_data=5)
    priors = {name: later.prior_given(name, {}) for name in later.site_names}
    assert torch.equal(priors["net.0.weight"].mean, posterior.median()["net.0.weight"])
    assert float(priors["net.2.weight"].stddev) == 3.0
    with pytest.raises(ValueError, match=r"no `net.2.weight`.*`otherwise`"):
        pb.BayesianModel(longer, prior=posterior.as_prior(), likelihood=pb.GaussianLikelihood(0.1), num_data=5)
    wider = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"`net.0.weight` must have shape \(3, 2\) as in the posterior, got \(4, 2\)"):
        pb.BayesianModel(wider, prior=prior, likelihood=pb.GaussianLikelihood(0.1), num_data=5)


def test_a_change_of_the_posterior_does_not_change_the_prior():
    x, y = data(20, 2)
    _, posterior = fitted(pb.NormalPrior(1.0), x, y)
    prior = posterior.as_prior()
    before = prior.locations["net.weight"].clone()
    with torch.no_grad():
        for parameter in posterior.guide.parameters():
            parameter.add_(1.0)
    assert torch.equal(prior.locations["net.weight"], before)


@pytest.mark.parametrize(
    ("locations", "scales", "message"),
    [
        ({}, {}, "the same sites, at least one"),
        ({"a": torch.zeros(1)}, {"b": torch.ones(1)}, r"got \['a'\] and \['b'\]"),
        ({"a": torch.zeros(1)}, {"a": torch.ones(2)}, "the same shape"),
        ({"a": torch.zeros(1)}, {"a": torch.zeros(1)}, "removed weight"),
        ({"a": torch.full((1,), torch.nan)}, {"a": torch.ones(1)}, "locations"),
        (3, {}, "`locations`"),
    ],
)
def test_wrong_moments_are_named(locations, scales, message):
    with pytest.raises(ValueError, match=message):
        PosteriorPrior(locations, scales)


def test_chains_without_width_are_refused():
    model, _ = fitted(pb.NormalPrior(1.0), *data(5, 0))
    with pytest.raises(ValueError, match="must be above 0"):
        pb.GuidePosterior(pb.DeltaGuide(model)).as_prior()
