import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

import pyro_bnn as pb
from pyro_bnn.distributions import ScaleMixtureNormal, move_distribution

from .tolerances import SMALLEST_P_VALUE, agrees_in_mean, assert_identical

SETTINGS = [(0.5, 1.0, math.exp(-6)), (0.25, 0.75, 0.1), (0.75, 1.0, math.exp(-8)), (0.3, 0.01, 2.0)]


def reference_log_prob(mixing, scale1, scale2, w):
    first = math.log(mixing) + scipy.stats.norm.logpdf(w, scale=scale1)
    second = math.log1p(-mixing) + scipy.stats.norm.logpdf(w, scale=scale2)
    return np.logaddexp(first, second)


@pytest.mark.parametrize("setting", SETTINGS)
def test_log_density_is_that_of_the_mixture_from_the_spike_to_the_far_tail(setting):
    w = torch.cat([torch.zeros(1), torch.logspace(-8, 3, 200)])
    w = torch.cat([-w, w])
    assert_identical(ScaleMixtureNormal(*setting).log_prob(w), reference_log_prob(*setting, w.numpy()))


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradient_is_exact_and_finite_where_probability_space_would_underflow(setting):
    mixing, scale1, scale2 = setting
    w = torch.cat([torch.logspace(-8, 3, 100), -torch.logspace(-8, 3, 100)]).requires_grad_()
    (gradient,) = torch.autograd.grad(ScaleMixtureNormal(*setting).log_prob(w).sum(), w)
    # d log p / dw = -w (r1 / s1^2 + r2 / s2^2) with responsibilities r from the reference densities
    value = w.detach().numpy()
    first = math.log(mixing) + scipy.stats.norm.logpdf(value, scale=scale1)
    r1 = np.exp(first - reference_log_prob(*setting, value))
    r2 = -np.expm1(first - reference_log_prob(*setting, value))
    expected = torch.as_tensor(-value * (r1 / scale1**2 + r2 / scale2**2))
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("setting", SETTINGS)
def test_single_precision_is_finite_and_accurate(setting):
    w = torch.logspace(-8, 3, 300, dtype=torch.float32).requires_grad_()
    prior = ScaleMixtureNormal(*(torch.tensor(v, dtype=torch.float32) for v in setting))
    log_prob = prior.log_prob(w)
    (gradient,) = torch.autograd.grad(log_prob.sum(), w)
    exact = ScaleMixtureNormal(*setting).log_prob(w.detach().double())
    assert log_prob.dtype == gradient.dtype == torch.float32
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(log_prob.double(), exact, rtol=1e-5, atol=1e-4)


def test_gradients_reach_the_mixtures_own_parameters():
    def log_prob(mixing, scale1, scale2):
        return ScaleMixtureNormal(mixing, scale1, scale2).log_prob(torch.tensor([-2.0, 0.001, 0.3])).sum()

    arguments = [torch.tensor(v, requires_grad=True) for v in (0.3, 1.2, 0.1)]
    assert torch.autograd.gradcheck(log_prob, arguments)


@pytest.mark.parametrize("setting", SETTINGS)
def test_draws_moments_and_cdf_belong_together(setting):
    prior = ScaleMixtureNormal(*setting)
    draws = prior.sample((20_000,))
    assert scipy.stats.kstest(draws.numpy(), lambda w: prior.cdf(torch.as_tensor(w)).numpy()).pvalue > SMALLEST_P_VALUE
    assert agrees_in_mean(draws.square(), prior.variance)
    assert agrees_in_mean(draws, prior.mean)


def test_draws_of_another_mixture_are_told_apart():
    wrong = ScaleMixtureNormal(0.6, 1.0, 0.1).sample((20_000,))
    cdf = ScaleMixtureNormal(0.5, 1.0, 0.1).cdf
    assert scipy.stats.kstest(wrong.numpy(), lambda w: cdf(torch.as_tensor(w)).numpy()).pvalue < SMALLEST_P_VALUE
    assert not agrees_in_mean(wrong.square(), ScaleMixtureNormal(0.5, 1.0, 0.1).variance)


def test_shapes_follow_pyro_conventions():
    prior = ScaleMixtureNormal(0.5, torch.tensor([1.0, 2.0]), 0.1)
    assert prior.batch_shape == (2,)
    event = prior.expand([3, 2]).to_event(2)
    assert (event.batch_shape, event.event_shape) == ((), (3, 2))
    assert event.sample((7,)).shape == (7, 3, 2)
    assert event.log_prob(torch.zeros(7, 3, 2)).shape == (7,)
    assert prior.mean.shape == prior.variance.shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 0.1), "`mixing` must be strictly between 0 and 1"),
        ((1.0, 1.0, 0.1), "`mixing`"),
        ((0.5, -1.0, 0.1), "`scale1` must be finite and above 0"),
        ((0.5, 1.0, 0.0), "`scale2`"),
        ((0.5, 1.0, math.nan), "`scale2`"),
    ],
)
def test_impossible_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleMixtureNormal(*arguments)


def conjugate_free_model(y):
    w = pyro.sample("w", ScaleMixtureNormal(0.5, 1.0, 0.05).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(w.sum(), 1.0), obs=y)


def test_nuts_samples_the_posterior_under_a_mixture_prior():
    """One weight with a Gaussian likelihood: the posterior is a two-component Gaussian mixture, known exactly."""

    def model(y):
        w = pyro.sample("w", ScaleMixtureNormal(0.5, 2.0, 0.5))
        pyro.sample("obs", dist.Normal(w, 1.0), obs=y)

    y = torch.tensor(1.5)
    mcmc = MCMC(NUTS(model), num_samples=1500, warmup_steps=200, disable_progbar=True)
    mcmc.run(y)
    log_evidence = [scipy.stats.norm.logpdf(1.5, scale=math.sqrt(1 + s * s)) for s in (2.0, 0.5)]
    weights = np.exp(log_evidence - np.logaddexp(*log_evidence))
    means = [1.5 * s * s / (1 + s * s) for s in (2.0, 0.5)]
    draws = mcmc.get_samples()["w"]
    ess = float(mcmc.diagnostics()["w"]["n_eff"])
    assert ess > 200
    exact = float(np.dot(weights, means))
    assert abs(float(draws.mean()) - exact) < 5 * float(draws.std()) / math.sqrt(ess)
    assert abs(float(draws.mean()) - 1.5) > 5 * float(draws.std()) / math.sqrt(ess)  # not the likelihood's own mode


@pytest.mark.uses_param_store
def test_works_with_autonormal_svi_and_predictive():
    y = torch.ones(3)
    guide = AutoNormal(conjugate_free_model)
    svi = SVI(conjugate_free_model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    losses = [svi.step(y) for _ in range(5)]
    assert all(math.isfinite(loss) for loss in losses)
    assert Predictive(conjugate_free_model, guide=guide, num_samples=4)(y)["w"].squeeze(1).shape == (4, 2)


MOVABLE = {
    "normal": lambda: dist.Normal(torch.zeros(2), 1.0),
    "gamma": lambda: dist.Gamma(2.0, 1.0),
    "transformed": lambda: dist.LogNormal(torch.zeros(3), torch.ones(3)).to_event(1),
    "ours": lambda: ScaleMixtureNormal(0.5, 1.0, 0.1).expand([2]).to_event(1),
    "nested": lambda: dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), 1.0)),
}


@pytest.mark.parametrize("name", MOVABLE)
def test_any_distribution_can_change_its_dtype(name):
    distribution = MOVABLE[name]()
    moved = move_distribution(distribution, torch.zeros((), dtype=torch.float32))
    value = distribution.sample()
    assert moved.sample().dtype == torch.float32
    assert value.dtype == distribution.sample().dtype == torch.float64  # the original is as it was
    torch.testing.assert_close(
        moved.log_prob(value.float()).double(), distribution.log_prob(value), rtol=1e-4, atol=1e-5
    )


def test_is_a_prior_for_our_guide():
    model = pb.BayesianModel(
        torch.nn.Linear(2, 1), prior=pb.ScaleMixturePrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=3
    )
    loss = Trace_ELBO().loss(model, pb.MeanFieldGuide(model), torch.randn(3, 2), torch.randn(3, 1))
    assert math.isfinite(loss)
