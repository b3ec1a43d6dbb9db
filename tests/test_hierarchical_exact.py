"""Priors with scales: exact answers, and the initial values of guides."""

import functools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import find_sites

from .cases import HIERARCHICAL_PRIORS, LEARNED_PRIORS
from .tolerances import agrees_in_mean, assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.02)
INFERRED = {**HIERARCHICAL_PRIORS, **LEARNED_PRIORS}


# --- exact answers ----------------------------------------------------------------------------------------------------


def one_weight(prior):
    """y ~ N(w x, 0.5^2), with a single weight."""
    x = torch.tensor([[-1.0], [0.5], [1.5], [0.2]])
    y = torch.tensor([[-1.9], [1.4], [2.6], [0.9]])
    net = nn.Linear(1, 1, bias=False)
    return pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(0.5), num_data=4).double(), x, y


def moments_by_quadrature(scale_prior, x, y):
    """Posterior means of log t, (log t)^2, w and w^2 on a grid of u = log t and w."""
    u, w = torch.linspace(-12, 6, 3001)[:, None], torch.linspace(-3, 6, 3001)
    log_joint = scale_prior.log_prob(u.exp()) + u + dist.Normal(0.0, u.exp()).log_prob(w)
    log_joint = log_joint + dist.Normal(0.0, 0.5).log_prob(y - x * w).sum(0)
    weights = (log_joint - log_joint.max()).exp()
    weights = weights / weights.sum()
    return torch.stack([(weights * f).sum() for f in (u, u**2, w, w**2)])


@pytest.mark.nightly  # by day, `test_mcmc.py` compares such a marginal with quadrature
@pytest.mark.slow
@pytest.mark.parametrize(
    "scale_prior", [dist.HalfNormal(torch.tensor(1.0)), dist.LogNormal(torch.tensor(0.0), torch.tensor(0.8))]
)
def test_nuts_has_the_moments_of_scale_and_weight(scale_prior):
    model, x, y = one_weight(pb.HierarchicalNormalPrior(scale_prior))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)  # so short a chain cannot be judged alone
        posterior = pb.fit_nuts(model, (x, y), num_samples=60, num_warmup=80, num_chains=60, seed=0)
    u, w = (posterior.chains[name].reshape(60, 60) for name in ("prior.scale", "net.weight"))
    u = u.log()
    means = torch.stack([u, u**2, w, w**2], -1).mean(1)  # of independent chains
    exact = moments_by_quadrature(scale_prior, x, y)
    wrong = moments_by_quadrature(dist.HalfNormal(torch.tensor(0.3)), x, y)
    assert agrees_in_mean(means, exact)
    assert not agrees_in_mean(means, wrong)


def orthogonal_problem():
    """Bayesian linear regression whose exact posterior is a product, for which a mean-field guide is exact."""
    torch.manual_seed(4)
    x = torch.linalg.qr(torch.randn(30, 5)).Q * 4
    w = 1.7 * torch.randn(5)
    y = x @ w + 0.5 * torch.randn(30)
    net = nn.Linear(5, 1, bias=False)
    prior = pb.LearnedNormalPrior(0.3)
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(0.5), num_data=30).double()
    return model, x, y.unsqueeze(-1)


def log_evidence(scale, x, y):
    covariance = 0.25 * torch.eye(len(x)) + scale**2 * x @ x.T
    return dist.MultivariateNormal(torch.zeros(len(x)), covariance).log_prob(y.squeeze(-1))


def best_scale(x, y):
    """The maximiser of the exact log evidence, by Newton's method on its logarithm."""
    u = torch.zeros(())
    for _ in range(50):
        gradient, curvature = (
            torch.autograd.functional.jacobian(lambda v: log_evidence(v.exp(), x, y), u),
            torch.autograd.functional.hessian(lambda v: log_evidence(v.exp(), x, y), u),
        )
        u = u - gradient / curvature
    return float(u.exp())


def exact_guide(model, x, scale, y):
    guide = pb.MeanFieldGuide(model)
    precision = x.square().sum(0) / 0.25 + scale**-2
    with torch.no_grad():
        guide.loc.get_parameter("net.weight").copy_((x.T @ y).squeeze(-1) / 0.25 / precision)
        guide.rho.get_parameter("net.weight").copy_(precision.rsqrt().expm1().log())
    return guide


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_gradient_in_a_learned_scale_vanishes_where_the_evidence_is_largest(factor):
    model, x, y = orthogonal_problem()
    scale = factor * best_scale(x, y)
    with torch.no_grad():
        model.get_parameter("prior_parameters.log_scale").fill_(math.log(scale))
    guide = exact_guide(model, x, scale, y)
    loss = TraceMeanField_ELBO().differentiable_loss(model, guide, x, y)
    single = Trace_ELBO().loss(model, guide, x, y)  # has no noise, as the guide is exact
    assert_identical(-single, log_evidence(scale, x, y))
    loss.backward()
    gradient = float(model.get_parameter("prior_parameters.log_scale").grad)
    assert (abs(gradient) < 1e-8) == (factor == 1.0)


@pytest.mark.nightly
def test_fit_svi_learns_the_scale_that_maximises_the_evidence():
    model, x, y = orthogonal_problem()
    guide = pb.MeanFieldGuide(model)
    optimizers = []

    def optimizer(parameters):
        optimizers.append(torch.optim.Adam(parameters, lr=0.05))
        return optimizers[0]

    def cool(history):
        optimizers[0].param_groups[0]["lr"] = 0.05 / (1 + len(history.epochs) / 100)

    pb.fit_svi(
        model, (x, y), guide, optimizer=optimizer, num_epochs=1500, elbo=TraceMeanField_ELBO(), seed=0, callbacks=[cool]
    )
    learned = float(model.prior_of("net.weight").stddev.flatten()[0].detach())
    assert learned == pytest.approx(best_scale(x, y), rel=0.02)


# --- where a guide starts ---------------------------------------------------------------------------------------------


def horseshoe_regression(x, y):
    num_inputs = x.shape[1]
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    local = pyro.sample("local", dist.HalfCauchy(torch.ones(num_inputs)).to_event(1))
    w = pyro.sample("w", dist.Normal(torch.zeros(num_inputs), tau * local).to_event(1))
    noise = pyro.sample("noise", dist.HalfCauchy(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ w, noise), obs=y)


def ours(x, y):
    prior = pb.HorseshoePrior(local="weight")
    net = nn.Sequential(nn.Linear(x.shape[1], 1, bias=False), nn.Flatten(0))
    likelihood = pb.GaussianLikelihood(dist.HalfCauchy(1.0))
    return pb.BayesianModel(net, prior=prior, likelihood=likelihood, num_data=len(x))


@pytest.mark.parametrize("num_inputs", [20, 200])
@pytest.mark.parametrize("kind", ["plain", "ours"])
def test_a_horseshoe_regression_starts_at_a_sane_loss(kind, num_inputs):
    r"""With scales near 1, weights are within a few units of 0, and the error of y is sqrt(D): about D nats per row."""
    x = torch.randn(50, num_inputs)
    y = 2 * x[:, 0] - x[:, 1] + 0.5 * torch.randn(50)
    model = horseshoe_regression if kind == "plain" else ours(x, y)
    guides = [pb.MeanFieldGuide(model, x, y) for _ in range(2)]
    assert all(map(torch.equal, guides[0].parameters(), guides[1].parameters()))
    losses = [Trace_ELBO().loss(model, guides[0], x, y) for _ in range(20)]
    assert sum(losses) / 20 < 50 * num_inputs


def test_children_start_under_the_prior_that_their_parents_starts_give():
    x, y = torch.randn(50, 20), torch.randn(50)
    sites = {site.name: site for site in find_sites(horseshoe_regression, (x, y), {})}
    scale = sites["tau"].start * sites["local"].start
    assert_identical(sites["w"].prior.base_dist.scale, scale)
    assert not any(site.is_fixed for site in sites.values() if site.name == "w")
    assert bool((sites["w"].start.abs() < 2 * scale).all())


@pytest.mark.parametrize("make", [pb.MeanFieldGuide, functools.partial(pb.auto_guide, AutoNormal), pb.DeltaGuide])
def test_weights_outside_of_a_priors_support_start_at_its_median(make):
    """Half of a network's initial weights are negative, outside of the support of a LogNormal."""

    class Positive(pb.Prior):
        def elementwise(self, name, parameter, module):
            return dist.LogNormal(parameter.new_zeros(()), 1.0)

    model = pb.BayesianModel(nn.Linear(4, 3), prior=Positive(), likelihood=pb.CategoricalLikelihood(), num_data=6)
    guide = make(model)
    assert all(bool(parameter.isfinite().all()) for parameter in guide.parameters())
    assert all(bool((value > 0).all()) for value in pb.GuidePosterior(guide).median().values())
