import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.optimize
import scipy.stats
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

import pyro_bnn as pb
from pyro_bnn._core.reflection import move_distribution
from pyro_bnn.modelling.distributions import NormalMixture, ScaleMixtureNormal

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


def tail_probabilities(dtype):
    smallest = {torch.float64: -300, torch.float32: -37}[dtype]
    low = torch.logspace(smallest, -1, 30, dtype=torch.float64)
    return torch.cat([low, torch.tensor([0.3, 0.5, 0.7]), 1 - torch.logspace(-7, -1, 13)]).to(dtype)


def reference_quantile(weights, scales, q):
    """By root finding on scipy's tails; above one half on the upper one."""

    def tail(w, upper):
        return float(np.dot(weights, (scipy.stats.norm.sf if upper else scipy.stats.norm.cdf)(w, scale=scales)))

    upper, target = q > 0.5, min(q, 1 - q)
    bound = 40 * max(scales)

    def gap(w):
        value = tail(w, upper)
        return (math.log(value) if value > 0 else -1e4) - math.log(target)

    return scipy.optimize.brentq(gap, -bound, bound, xtol=1e-300, rtol=1e-14, maxiter=1000)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lower_tail_and_quantiles_are_exact_to_rounding(setting, dtype):
    prior = ScaleMixtureNormal(*(torch.tensor(v, dtype=dtype) for v in setting))
    mixing, *scales = (float(v.double()) for v in (prior.mixing, prior.scale1, prior.scale2))
    rtol = {torch.float64: 1e-11, torch.float32: 3e-7}[dtype]
    w = torch.linspace(-12.0, 5.0, 60, dtype=dtype) * max(scales)
    expected = sum(
        p * scipy.stats.norm.cdf(w.double().numpy(), scale=s) for p, s in zip((mixing, 1 - mixing), scales, strict=True)
    )
    cdf = prior.cdf(w)
    assert cdf.dtype == dtype
    torch.testing.assert_close(cdf.double(), torch.as_tensor(expected), rtol=rtol, atol=0.0)
    q = tail_probabilities(dtype)
    quantile = prior.icdf(q)
    expected = torch.tensor([reference_quantile((mixing, 1 - mixing), scales, float(p)) for p in q.double()])
    assert quantile.dtype == dtype
    torch.testing.assert_close(quantile.double(), expected, rtol=rtol, atol=1e-15 * max(scales))


def test_the_far_lower_tail_is_not_zero():
    assert float(ScaleMixtureNormal(0.5, 1.0, 0.1).cdf(torch.tensor(-30.0))) == pytest.approx(
        0.5 * scipy.stats.norm.cdf(-30.0), rel=1e-11
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_quantiles_of_a_general_mixture_are_exact_to_rounding(dtype):
    logits, loc, scale = torch.randn(3, 4).to(dtype), torch.randn(3, 4).to(dtype), torch.rand(3, 4).to(dtype) + 0.1
    mixture = NormalMixture(logits, loc, scale)
    weights = logits.double().softmax(-1).numpy()
    for q in (1e-30, 1e-6, 0.01, 0.5, 0.999, 1 - 1e-6):
        level = torch.tensor(q, dtype=dtype)
        quantile = mixture.icdf(level)
        assert quantile.dtype == dtype
        for row, value in enumerate(quantile.double().tolist()):
            parts = scipy.stats.norm(loc[row].double().numpy(), scale[row].double().numpy())
            tail, target = (parts.cdf, float(level)) if q <= 0.5 else (parts.sf, 1 - float(level))

            def gap(y, weights=weights[row], tail=tail, target=target):
                return np.dot(weights, tail(y)) / target - 1

            exact = scipy.optimize.brentq(gap, -30, 30, xtol=1e-14)
            assert value == pytest.approx(exact, rel={torch.float64: 1e-11, torch.float32: 2e-7}[dtype])


def test_quantiles_have_the_shapes_and_limits_of_torchs_own():
    prior = ScaleMixtureNormal(0.5, torch.tensor([1.0, 2.0]), 0.1)
    assert prior.icdf(torch.rand(5, 1)).shape == (5, 2)
    assert prior.icdf(torch.tensor(0.5)).tolist() == [0.0, 0.0]
    assert prior.icdf(torch.tensor([0.0, 1.0])).tolist() == [-math.inf, math.inf]
    assert prior.icdf(prior.cdf(torch.tensor([-3.0, 0.2]))).tolist() == pytest.approx([-3.0, 0.2])
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\]"):
        ScaleMixtureNormal(0.5, 1.0, 0.1, validate_args=True).icdf(torch.tensor(1.5))


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


@pytest.mark.nightly
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
