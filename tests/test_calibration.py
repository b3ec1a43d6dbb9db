"""Simulation-based calibration: truths from the prior, data from the truths, and their ranks among the draws.

If the draws are from the posterior, every rank is uniform (Talts et al., 2018, https://arxiv.org/abs/1804.06788).
The replications are the outputs of one linear layer: given the inputs they are independent regressions, and so one fit
draws from all their posteriors.
"""

import sys

import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.nn import PyroModule
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.guides import GuidePosterior

from .conftest import SEED
from .tolerances import SMALLEST_P_VALUE

R, N, D = 400, 4, 2  # replications, data and weights of each
NUM_DRAWS, NUM_BINS = 49, 10  # ranks 0 to 49 fall into bins of five
PRIOR_SCALE, NOISE = 1.3, 0.6
LOG_NOISE, LOG_NOISE_SCALE = -0.5, 0.8
WEIGHT, SCALE = "net.weight", "likelihood.scale"


class Simulation:
    """Truths and data: y = x w + noise, with a known noise scale or one from its prior for each replication."""

    def __init__(self, *, latent_noise=False):
        self.x = torch.tensor([[1.0, 0.5], [-1.0, 0.3], [0.2, -1.0], [0.7, 0.7]])
        self.latent_noise = latent_noise
        self.truth = {WEIGHT: PRIOR_SCALE * torch.randn(R, D)}
        if latent_noise:
            self.truth[SCALE] = dist.LogNormal(LOG_NOISE, LOG_NOISE_SCALE).sample((R,))
        self.y = self.x @ self.truth[WEIGHT].T
        self.y += self.truth.get(SCALE, torch.tensor(NOISE)) * torch.randn(N, R)

    def model(self, *, noise=NOISE, log_noise=LOG_NOISE):
        """All replications as one model, which is wrong if its values are not those of the simulation."""
        prior = dist.LogNormal(torch.full((R,), log_noise), LOG_NOISE_SCALE).to_event(1)
        return pb.BayesianModel(
            nn.Linear(D, R, bias=False),
            prior=pb.NormalPrior(PRIOR_SCALE),
            likelihood=pb.GaussianLikelihood(prior if self.latent_noise else noise),
            num_data=N,
        )

    def log_likelihood(self, values):
        """Log-likelihood of each replication's data, shape (..., R). Its rank shows whether draws use the data."""
        scale = values[SCALE] if self.latent_noise else torch.full((R,), NOISE)
        return dist.Normal(self.x @ values[WEIGHT].mT, scale.unsqueeze(-2)).log_prob(self.y).sum(-2)

    def quantities(self, values):
        """Scalars of each replication, ``{name: shape (..., R)}``."""
        named = {f"weight {index}": values[WEIGHT][..., index] for index in range(D)}
        named |= {"noise scale": values[SCALE]} if self.latent_noise else {}
        return named | {"log-likelihood": self.log_likelihood(values)}

    def p_values(self, draws):
        """p-values by name, of chi-square tests that a quantity's ranks among NUM_DRAWS draws are uniform."""
        assert len(draws[WEIGHT]) == NUM_DRAWS
        drawn = self.quantities(draws)
        return {name: p_value((drawn[name] < truth).sum(0)) for name, truth in self.quantities(self.truth).items()}

    def nuts(self, **wrong):
        """NUM_DRAWS draws of every replication: each third draw, since autocorrelations are then below 0.05."""
        model = self.model(**wrong)
        lengths = {"num_samples": NUM_DRAWS, "num_warmup": 60, "num_chains": 3, "max_tree_depth": 6}
        posterior = pb.fit_nuts(model, (self.x, self.y), seed=SEED, **lengths)
        return posterior.sample(NUM_DRAWS)


def p_value(ranks):
    counts = torch.bincount(ranks * NUM_BINS // (NUM_DRAWS + 1), minlength=NUM_BINS)
    return scipy.stats.chisquare(counts.numpy()).pvalue


class ExactGuide(PyroModule):
    """The posterior of every replication in closed form, for a given noise scale, right or wrong."""

    def __init__(self, simulation, noise=NOISE):
        super().__init__()
        x, y = simulation.x, simulation.y
        self.precision = x.T @ x / noise**2 + torch.eye(D) / PRIOR_SCALE**2
        self.mean = torch.linalg.solve(self.precision, x.T @ y / noise**2).T  # (R, D)

    def forward(self, *_):
        rows = dist.MultivariateNormal(self.mean, precision_matrix=self.precision)
        return pyro.sample(WEIGHT, rows.to_event(1))


def test_an_exact_guide_is_calibrated():
    simulation = Simulation()
    draws = GuidePosterior(ExactGuide(simulation)).sample(NUM_DRAWS)
    assert min(simulation.p_values(draws).values()) > SMALLEST_P_VALUE


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_a_guide_that_misjudges_the_noise_is_not(factor):
    simulation = Simulation()
    draws = GuidePosterior(ExactGuide(simulation, noise=factor * NOISE)).sample(NUM_DRAWS)
    assert min(simulation.p_values(draws).values()) < SMALLEST_P_VALUE


def test_the_likelihoods_rank_shows_draws_that_ignore_the_data():
    """The weights' own ranks cannot: the truths are draws from the prior, too."""
    simulation = Simulation()
    p_values = simulation.p_values({WEIGHT: PRIOR_SCALE * torch.randn(NUM_DRAWS, R, D)})
    assert p_values.pop("log-likelihood") < SMALLEST_P_VALUE
    assert min(p_values.values()) > SMALLEST_P_VALUE


@pytest.fixture
def without_arviz(monkeypatch):
    """Diagnostics of thousands of replications take longer than their draws."""
    monkeypatch.setitem(sys.modules, "arviz", None)


@pytest.mark.slow
@pytest.mark.parametrize("latent_noise", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_fit_nuts_is_calibrated(latent_noise, without_arviz):
    simulation = Simulation(latent_noise=latent_noise)
    assert min(simulation.p_values(simulation.nuts()).values()) > SMALLEST_P_VALUE


@pytest.mark.nightly
@pytest.mark.slow
def test_fit_nuts_with_a_wrong_likelihood_is_not(without_arviz):
    simulation = Simulation()
    assert min(simulation.p_values(simulation.nuts(noise=1.6 * NOISE)).values()) < SMALLEST_P_VALUE


@pytest.mark.nightly
@pytest.mark.slow
def test_fit_nuts_without_the_jacobian_would_not_be(without_arviz):
    """With z = log(scale), a LogNormal(m, s) without its Jacobian exp(z) is a LogNormal(m - s^2, s) with it."""
    simulation = Simulation(latent_noise=True)
    p_values = simulation.p_values(simulation.nuts(log_noise=LOG_NOISE - LOG_NOISE_SCALE**2))
    assert p_values["noise scale"] < SMALLEST_P_VALUE
