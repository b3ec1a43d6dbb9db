"""NumPyro's NUTS on the same network: another implementation, in another framework, draws from the same posterior."""

import functools

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import convergence

from .conftest import SEED
from .tolerances import STANDARD_ERRORS

WHY = "the other implementation: pip install -e '.[bench]'"
jax = pytest.importorskip("jax", reason=WHY)
numpyro = pytest.importorskip("numpyro", reason=WHY)
infer = pytest.importorskip("numpyro.infer", reason=WHY)  # importing it moves numpy's random state: not inside a test
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::pyro_bnn.inference.mcmc.ConvergenceWarning"
    ),  # of a few divergences, with some seeds
]

NUM_HIDDEN, PRIOR_SCALE = 8, 1.0
NOISE_PRIOR = (-0.7, 0.3)  # of the logarithm
NUM_CHAINS, NUM_WARMUP, NUM_SAMPLES, MAX_DEPTH = 4, 500, 1000, 6
GRID = torch.linspace(-1.2, 1.2, 13, dtype=torch.float64)[:, None]  # beyond the data, which end at 1


def problem():
    x, y = pb.data.regression_problem(20, noise=5.0)
    return 2 * x.double(), y.double() / 10


def predictive_moments(hidden_weight, hidden_bias, weight, bias, noise_scale):
    """For each draw and grid point, f and the term whose mean is the predictive variance, each of shape (K, S, M)."""
    hidden = (GRID @ hidden_weight.mT + hidden_bias.unsqueeze(-2)).tanh()
    f = (hidden @ weight.mT + bias.unsqueeze(-2)).squeeze(-1)
    return f, (f - f.mean((0, 1))).square() + noise_scale.unsqueeze(-1).square()


@functools.cache
def ours():
    x, y = problem()
    model = pb.BayesianModel(
        nn.Sequential(nn.Linear(1, NUM_HIDDEN), nn.Tanh(), nn.Linear(NUM_HIDDEN, 1)),
        prior=pb.NormalPrior(PRIOR_SCALE),
        likelihood=pb.GaussianLikelihood(dist.LogNormal(*NOISE_PRIOR)),
        num_data=len(x),
    )
    lengths = {"num_samples": NUM_SAMPLES, "num_warmup": NUM_WARMUP, "num_chains": NUM_CHAINS}
    return model, pb.fit_nuts(model, (x, y), max_tree_depth=MAX_DEPTH, compile=True, seed=SEED, **lengths)


@functools.cache
def theirs(prior_scale=PRIOR_SCALE):
    def model(x, y):
        shapes = {"hidden_weight": (NUM_HIDDEN, 1), "hidden_bias": (NUM_HIDDEN,), "weight": (1, NUM_HIDDEN)}
        shapes["bias"] = (1,)
        draws = [
            numpyro.sample(name, numpyro.distributions.Normal(0, prior_scale).expand(shape).to_event())
            for name, shape in shapes.items()
        ]
        noise_scale = numpyro.sample("noise_scale", numpyro.distributions.LogNormal(*NOISE_PRIOR))
        hidden = jax.numpy.tanh(x @ draws[0].T + draws[1])
        numpyro.sample(
            "obs", numpyro.distributions.Normal(hidden @ draws[2].T + draws[3], noise_scale).to_event(2), obs=y
        )

    with jax.enable_x64(True):
        mcmc = infer.MCMC(
            infer.NUTS(model, max_tree_depth=MAX_DEPTH),
            num_warmup=NUM_WARMUP,
            num_samples=NUM_SAMPLES,
            num_chains=NUM_CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.PRNGKey(SEED), *(part.numpy() for part in problem()))
        samples = mcmc.get_samples(group_by_chain=True)
    return {name: torch.tensor(jax.device_get(value)) for name, value in samples.items()}


def moments_of_ours():
    _, posterior = ours()
    names = ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias", "likelihood.scale")
    return predictive_moments(*(posterior.chains[name] for name in names))


def largest_z_score(ours, theirs):
    """Largest difference of the predictive moments, in standard errors."""
    scores = []
    for a, b in zip(ours, theirs, strict=True):
        variance = sum(part.var((0, 1)) / convergence(part).ess_bulk for part in (a, b))
        scores.append((a.mean((0, 1)) - b.mean((0, 1))) / variance.sqrt())
    return torch.cat(scores).abs().max()


def test_the_chains_of_both_have_converged():
    for moments in (moments_of_ours(), predictive_moments(**theirs())):
        assert convergence(torch.cat(moments, -1)).worst_r_hat < 1.01


def test_the_draws_predict_what_predict_says():
    model, posterior = ours()
    prediction = pb.predict(model, posterior, GRID, num_samples=posterior.num_stored)
    mean, variance = (moment.mean((0, 1)) for moment in moments_of_ours())
    torch.testing.assert_close(prediction.mean.flatten(), mean)
    biased = prediction.epistemic * (1 - 1 / posterior.num_stored)  # divided by S, and not by S - 1
    torch.testing.assert_close((biased + prediction.aleatoric).flatten(), variance)


def test_numpyro_draws_from_the_same_posterior():
    assert largest_z_score(moments_of_ours(), predictive_moments(**theirs())) < STANDARD_ERRORS


def test_numpyro_with_another_prior_does_not():
    wrong = predictive_moments(**theirs(prior_scale=1.5 * PRIOR_SCALE))
    assert largest_z_score(moments_of_ours(), wrong) > STANDARD_ERRORS
