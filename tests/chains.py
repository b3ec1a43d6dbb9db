"""Code shared by the tests of samplers: short fits, and means of chains judged in standard errors."""

import math
import warnings

import pyro
import pyro.distributions as dist
import scipy.stats
import torch

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import convergence

from .tolerances import SMALLEST_P_VALUE, STANDARD_ERRORS


def quietly(fit, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        return fit(*args, **kwargs)


def fit_briefly(model, x, y, **kwargs):
    return quietly(pb.fit_nuts, model, (x, y), num_samples=4, num_warmup=4, num_chains=2, **kwargs)


def hierarchy(x, y):
    """A prior scale with a prior of its own, and a noise scale."""
    spread = pyro.sample("spread", dist.HalfCauchy(1.0))
    weight = pyro.sample("weight", dist.Normal(0.0, spread).expand([3]).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weight, noise), obs=y)


def effective(values):
    """Effective sample size of each column, shape (K, S, M)."""
    return convergence(values).ess_bulk


def z_scores(values, expected):
    """z-scores of chain means, shape (K, S, M), by effective sample sizes, which must be large enough."""
    ess = effective(values)
    assert ess.min() > 200
    return (values.mean((0, 1)) - expected) / (values.flatten(0, 1).std(0) / ess.sqrt())


def moments_agree(values, mean, covariance):
    """Means and all second moments, shape (K, S, M)."""
    deviations = values - mean
    products = (deviations.unsqueeze(-1) * deviations.unsqueeze(-2)).flatten(2)
    scores = torch.cat([z_scores(values, mean), z_scores(products, covariance.flatten())])
    return bool((scores.abs() < STANDARD_ERRORS).all())


def assert_from(draws, cdf):
    """Kolmogorov's test on draws thinned to independence."""
    values = draws.flatten(2)[..., 0].unsqueeze(-1)
    keep = max(1, math.ceil(values.numel() / float(effective(values).min())))
    thinned = values[:, ::keep].flatten()
    assert scipy.stats.kstest(cdf(thinned).numpy(), "uniform").pvalue > SMALLEST_P_VALUE
