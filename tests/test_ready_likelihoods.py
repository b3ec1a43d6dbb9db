"""Ready-made likelihoods: densities, moments and distribution functions from SciPy; simulations find the truth."""

import functools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.infer import Predictive
from torch import nn

import pyro_bnn as pb
from pyro_bnn import likelihoods

from .tolerances import STANDARD_ERRORS, assert_identical, z_scores

ADAM = functools.partial(torch.optim.Adam, lr=0.05)
OUTPUT = torch.tensor([[-1.5], [0.0], [0.4], [2.0]], dtype=torch.float64)
LEVELS = [0.05, 0.5, 0.9]


def negative_binomial(f, alpha):
    return scipy.stats.nbinom(1 / alpha, 1 / (1 + alpha * math.exp(f)))


class ZeroInflated:
    """By hand, since SciPy has no such distribution."""

    def __init__(self, base, gate):
        self.base, self.gate = base, 1 / (1 + math.exp(-gate))

    dist = None

    def logpdf(self, y):
        return math.log(self.gate * (y == 0) + (1 - self.gate) * self.base.pmf(y))

    def cdf(self, y):
        return (self.gate + (1 - self.gate) * self.base.cdf(y)) * (y >= 0)

    def mean(self):
        return (1 - self.gate) * self.base.mean()

    def var(self):
        second = (1 - self.gate) * (self.base.var() + self.base.mean() ** 2)
        return second - self.mean() ** 2


# name -> (likelihood, outputs of a row for f, SciPy's distribution for f, targets)
READY = {
    "student": (
        likelihoods.StudentT(3.0, 0.7), lambda f: [f], lambda f: scipy.stats.t(3.0, f, 0.7), [-2.0, 0.1, 30.0],
    ),
    "beta": (
        likelihoods.Beta(5.0),
        lambda f: [f],
        lambda f: scipy.stats.beta(5 / (1 + math.exp(-f)), 5 / (1 + math.exp(f))),
        [0.01, 0.4, 0.98],
    ),
    "negative binomial": (
        likelihoods.NegativeBinomial(0.6), lambda f: [f], lambda f: negative_binomial(f, 0.6), [0.0, 3.0, 40.0],
    ),
    "zero-inflated Poisson": (
        likelihoods.ZeroInflatedPoisson(),
        lambda f: [f, 0.3],
        lambda f: ZeroInflated(scipy.stats.poisson(math.exp(f)), 0.3),
        [0.0, 1.0, 9.0],
    ),
    "zero-inflated negative binomial": (
        likelihoods.ZeroInflatedNegativeBinomial(0.6),
        lambda f: [f, -0.5],
        lambda f: ZeroInflated(negative_binomial(f, 0.6), -0.5),
        [0.0, 1.0, 9.0],
    ),
    "weibull": (
        likelihoods.Survival(shape=1.7),
        lambda f: [f],
        lambda f: scipy.stats.weibull_min(1.7, scale=math.exp(f)),
        [0.05, 1.0, 6.0],
    ),
    "lognormal": (
        likelihoods.Survival("lognormal", shape=2.0),
        lambda f: [f],
        lambda f: scipy.stats.lognorm(0.5, scale=math.exp(f)),
        [0.05, 1.0, 6.0],
    ),
    "censored": (
        likelihoods.Censored(low=-9.0, scale=0.7), lambda f: [f], lambda f: scipy.stats.norm(f, 0.7), [-1.0, 3.0],
    ),
}  # fmt: skip


def expected(name, function):
    """A function of SciPy's distribution for each row, shape (N, 1)."""
    return torch.tensor([[function(READY[name][2](f))] for f in OUTPUT[:, 0].tolist()], dtype=torch.float64)


def prediction(name, outputs=None):
    """A prediction whose only draw of the weights has the given outputs."""
    likelihood, row, _, _ = READY[name]
    outputs = torch.tensor([row(f) for f in OUTPUT[:, 0].tolist()]) if outputs is None else outputs
    total = likelihood.accumulator()
    total.add(likelihood(outputs), keep=True)
    return total.prediction(None), likelihood(outputs)


def is_survival(name):
    return isinstance(READY[name][0], likelihoods.Survival)


@pytest.mark.parametrize("name", READY)
def test_density_is_scipys(name):
    _, made = prediction(name)
    for y in READY[name][3]:
        value = torch.tensor([y, 1.0]) if is_survival(name) else torch.tensor(y)
        density = expected(name, lambda d, y=y: (d.logpmf if hasattr(d.dist, "logpmf") else d.logpdf)(y))
        torch.testing.assert_close(made.log_prob(value).reshape(-1, 1), density, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", READY)
def test_moments_distribution_function_and_quantiles_are_scipys(name):
    found, _ = prediction(name)
    shaped = functools.partial(torch.reshape, shape=(-1, 1))
    torch.testing.assert_close(shaped(found.mean), expected(name, lambda d: d.mean()), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(shaped(found.aleatoric), expected(name, lambda d: d.var()), rtol=1e-9, atol=1e-10)
    for y in READY[name][3]:
        below = shaped(found.cdf(torch.full_like(found.mean, y)))
        torch.testing.assert_close(below, expected(name, lambda d, y=y: d.cdf(y)), rtol=1e-8, atol=1e-10)
    quantiles = found.quantile(LEVELS)
    for level, quantile in zip(LEVELS, quantiles, strict=True):
        at, below = (cdf_of_rows(name, quantile - step) for step in (0, 1))
        if found.components.support.is_discrete:
            assert bool((at >= level - 1e-9).all())
            assert bool((below < level).all())
        else:
            torch.testing.assert_close(at, torch.full_like(at, level), rtol=1e-8, atol=1e-9)


def cdf_of_rows(name, values):
    """SciPy's distribution function of a value for each row."""
    pairs = zip(OUTPUT[:, 0].tolist(), values.flatten().tolist(), strict=True)
    return torch.tensor([READY[name][2](f).cdf(value) for f, value in pairs])


@pytest.mark.parametrize("name", READY)
def test_draws_have_the_mean(name):
    found, _ = prediction(name)
    draws = found.sample(20_000, seed=1)
    assert bool((z_scores(draws, found.mean).abs() < STANDARD_ERRORS).all())
    assert not bool(
        (z_scores(draws, found.mean + 0.5 * found.aleatoric.sqrt()).abs() < STANDARD_ERRORS).any()
    )  # the twin


def test_beyond_limits_the_probability_counts():
    likelihood = likelihoods.Censored(low=0.0, high=2.0, scale=0.7)
    made, normal = likelihood(OUTPUT), scipy.stats.norm(OUTPUT.numpy(), 0.7)
    assert_identical(made.log_prob(torch.tensor(0.0)), torch.from_numpy(normal.logcdf(0.0)))
    assert_identical(made.log_prob(torch.tensor(2.0)), torch.from_numpy(normal.logsf(2.0)))
    assert_identical(made.log_prob(torch.tensor(1.3)), torch.from_numpy(normal.logpdf(1.3)))
    draws = made.sample((1000,))
    assert float(draws.min()) == 0.0
    assert float(draws.max()) == 2.0


@pytest.mark.parametrize("name", ["weibull", "lognormal"])
def test_a_censored_time_counts_by_its_survival(name):
    _, made = prediction(name)
    for time in (0.05, 2.0, 50.0):
        survival = expected(name, lambda d, time=time: d.logsf(time))
        torch.testing.assert_close(made.log_prob(torch.tensor([time, 0.0])), survival[:, 0], rtol=1e-9, atol=1e-12)


def test_ordinal_probabilities_are_differences_of_logistic_functions():
    cuts = np.array([-1.0, 0.5, 3.0])
    made = likelihoods.Ordinal(4, cuts.tolist())(OUTPUT)
    below = scipy.stats.logistic.cdf(cuts - OUTPUT.numpy())  # (N, 3)
    probs = np.diff(np.concatenate([np.zeros((4, 1)), below, np.ones((4, 1))], 1))
    assert_identical(made.probs, torch.from_numpy(probs))
    far = likelihoods.Ordinal(3, [0.0, 1.0])(torch.tensor([[800.0], [-800.0]]))
    assert_identical(far.logits[0, 0], torch.tensor(-800.0))  # where a difference of probabilities is 0
    torch.testing.assert_close(far.logits[1, 1], torch.tensor(-800.0 + math.log(1 - math.exp(-1.0))), rtol=1e-9, atol=0)


# --- simulations: the truth is found, and by a wrong likelihood it is not ---------------------------------------------


def fitted(likelihood, x, y, num_epochs=400):
    torch.manual_seed(0)
    net = nn.Linear(x.shape[1], likelihood.num_outputs(1))
    model = pb.BayesianModel(net, prior=dist.Normal(0.0, 10.0), likelihood=likelihood, num_data=len(x))
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.05))
    posterior = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=num_epochs, seed=0)
    return model, posterior


def slope(likelihood, x, y, index=0):
    """z-score of the slope's posterior mean, from the truth 1, under its posterior standard deviation."""
    _, posterior = fitted(likelihood, x, y)
    draws = posterior.sample(500, seed=0)["net.weight"][:, index, 0]
    return float((draws.mean() - 1) / draws.std())


def rows(num_rows=2000, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, 1, generator=generator), np.random.default_rng(seed)


def as_column(values):
    return torch.as_tensor(np.asarray(values, float)).reshape(-1, 1)


def test_outliers_move_a_gaussian_but_not_student():
    x, random = rows(300)
    y = x + 0.3 * torch.from_numpy(random.standard_normal((300, 1)))
    y[x[:, 0] > 1.5] -= 15.0  # a gross error of measurement
    assert abs(slope(likelihoods.StudentT(4.0), x, y)) < STANDARD_ERRORS
    assert abs(slope(pb.GaussianLikelihood(None), x, y)) > STANDARD_ERRORS


@pytest.mark.nightly
def test_counts_that_vary_more_than_poisson():
    x, random = rows()
    mean = np.exp(x.numpy() + 1.0)
    y = as_column(random.negative_binomial(2.0, 2.0 / (2.0 + mean)))
    model, posterior = fitted(likelihoods.NegativeBinomial(), x, y)
    draws = posterior.sample(500, seed=0)["net.weight"][:, 0, 0]
    assert abs(float((draws.mean() - 1) / draws.std())) < STANDARD_ERRORS
    assert abs(float(model.likelihood.number("dispersion").detach()) - 0.5) < 0.1
    held, other = (pb.predict(*fitted(one, x, y), x, y=y, num_samples=20, seed=0) for one in (
        likelihoods.NegativeBinomial(), pb.PoissonLikelihood(),
    ))  # fmt: skip
    gain = held.log_density - other.log_density
    assert float(gain.mean()) > STANDARD_ERRORS * float(gain.std()) / len(gain) ** 0.5
    assert float(held.aleatoric.mean()) > 2 * float(other.aleatoric.mean())


@pytest.mark.nightly
def test_more_zeros_than_poisson():
    x, random = rows()
    is_zero = random.random((2000, 1)) < 0.4
    y = as_column(np.where(is_zero, 0, random.poisson(np.exp(x.numpy() + 1.0))))
    assert abs(slope(likelihoods.ZeroInflatedPoisson(), x, y)) < STANDARD_ERRORS
    _, posterior = fitted(likelihoods.ZeroInflatedPoisson(), x, y)
    gate = posterior.sample(500, seed=0)["net.bias"][:, 1].sigmoid()
    assert abs(float((gate.mean() - 0.4) / gate.std())) < STANDARD_ERRORS
    _, wrong = fitted(pb.PoissonLikelihood(), x, y)
    rate = wrong.sample(500, seed=0)["net.bias"][:, 0].exp()
    assert abs(float((rate.mean() - math.e) / rate.std())) > STANDARD_ERRORS


@pytest.mark.nightly
def test_proportions():
    x, random = rows()
    mean = 1 / (1 + np.exp(-x.numpy()))
    y = as_column(random.beta(8 * mean, 8 * (1 - mean))).clamp(1e-9, 1 - 1e-9)
    model, posterior = fitted(likelihoods.Beta(), x, y)
    draws = posterior.sample(500, seed=0)["net.weight"][:, 0, 0]
    assert abs(float((draws.mean() - 1) / draws.std())) < STANDARD_ERRORS
    assert abs(float(model.likelihood.number("precision").detach()) - 8) < 1
    assert abs(slope(pb.GaussianLikelihood(None), x, y)) > STANDARD_ERRORS


def test_ordered_classes():
    x, random = rows()
    cuts = np.array([-1.0, 0.0, 2.0])
    latent = x.numpy() + random.logistic(size=(2000, 1))
    y = torch.from_numpy((latent > cuts).sum(1))
    assert abs(slope(likelihoods.Ordinal(4), x, 3 - y)) > STANDARD_ERRORS  # classes in the wrong order
    model, posterior = fitted(likelihoods.Ordinal(4, likelihoods.Ordinal.prior(4)), x, y)
    draw = posterior.sample(500, seed=0)
    draws = draw["net.weight"][:, 0, 0]
    assert abs(float((draws.mean() - 1) / draws.std())) < STANDARD_ERRORS
    distances = draw["likelihood.cutpoints"].diff(dim=1)
    z = (distances.mean(0) - torch.tensor([1.0, 2.0])) / distances.std(0)
    assert bool((z.abs() < STANDARD_ERRORS).all())
    assert pb.predict(model, posterior, x, y=y, num_samples=20, seed=0).score()["accuracy"] > 0.45


@pytest.mark.nightly
def test_a_limit_of_detection():
    x, random = rows()
    complete = x + torch.from_numpy(random.standard_normal((2000, 1)))
    y = complete.clamp(min=0.0)  # half of the values are lost
    assert abs(slope(likelihoods.Censored(low=0.0), x, y)) < STANDARD_ERRORS
    assert abs(slope(pb.GaussianLikelihood(None), x, y)) > STANDARD_ERRORS
    found = pb.predict(*fitted(likelihoods.Censored(low=0.0), x, y), x, y=y, num_samples=50, seed=0, keep_draws=True)
    inside = (complete <= found.quantile(0.9)).double()
    assert abs(float((inside.mean() - 0.9) / (inside.std() / 2000**0.5))) < STANDARD_ERRORS  # also of the lost values


def test_end_of_follow_up():
    x, random = rows()
    times = as_column(np.exp(x.numpy()) * random.weibull(1.5, (2000, 1)))
    end = as_column(random.exponential(1.5, (2000, 1)))
    event = (times <= end).double()
    y = torch.cat([torch.minimum(times, end), event], 1)
    model, posterior = fitted(likelihoods.Survival(), x, y)
    draws = posterior.sample(500, seed=0)["net.weight"][:, 0, 0]
    assert abs(float((draws.mean() - 1) / draws.std())) < STANDARD_ERRORS
    assert abs(float(model.likelihood.number("shape").detach()) - 1.5) < 0.15
    as_if_complete = torch.cat([y[:, :1], torch.ones_like(event)], 1)
    assert abs(slope(likelihoods.Survival(), x, as_if_complete)) > STANDARD_ERRORS
    found = pb.predict(model, posterior, x, y=y, num_samples=50, seed=0, keep_draws=True)
    alive = 1 - found.cdf(torch.ones(2000))
    assert abs(float(alive.mean() - (times > 1).double().mean())) < STANDARD_ERRORS * 0.5 / 2000**0.5
    assert set(found.score()) == {"nll"}
    with pytest.raises(ValueError, match=r"CRPS needs complete targets, got .*censored.* use the log score"):
        found.crps(y)
    assert [*found.to_frame(level=0.8).columns][-3:] == ["time", "event", "log_density"]


def test_predictive_draws_have_the_form_of_the_targets():
    x = torch.randn(7, 1)
    for likelihood, shape in ((likelihoods.Survival(), (7, 2)), (likelihoods.StudentT(), (7, 1))):
        model = pb.BayesianModel(nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), likelihood=likelihood, num_data=7)
        drawn = Predictive(model, guide=pb.MeanFieldGuide(model), num_samples=3)(x)["obs"]
        assert drawn.shape == (3, *shape)
