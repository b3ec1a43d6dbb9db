"""Bayesian linear regression: posterior and evidence are known in closed form."""

import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal
from pyro.nn import PyroModule
from torch import nn

import pyro_bnn as pb

from .tolerances import agrees_in_mean, assert_identical

PRIOR_SCALE, NOISE, N, D = 1.3, 0.6, 12, 3


class Problem:
    """y = x w + noise with w ~ N(0, PRIOR_SCALE^2): model, data, posterior N(mean, inverse precision), evidence."""

    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(N, D, generator=generator) @ torch.tensor(
            [[1.0, 0.5, 0.0], [0.0, 1.0, 0.8], [0.0, 0.0, 1.0]]
        )
        self.y = self.x @ torch.tensor([[1.0], [-2.0], [0.5]]) + NOISE * torch.randn(N, 1, generator=generator)
        self.precision = self.x.T @ self.x / NOISE**2 + torch.eye(D) / PRIOR_SCALE**2
        self.mean = torch.linalg.solve(self.precision, self.x.T @ self.y / NOISE**2).T  # (1, D), like the weight
        covariance = NOISE**2 * torch.eye(N) + PRIOR_SCALE**2 * self.x @ self.x.T
        self.log_evidence = scipy.stats.multivariate_normal.logpdf(self.y.flatten(), cov=covariance.numpy())
        self.model = pb.BayesianModel(
            nn.Linear(D, 1, bias=False),
            prior=pb.NormalPrior(PRIOR_SCALE),
            likelihood=pb.GaussianLikelihood(NOISE),
            num_data=N,
        )


@pytest.fixture
def problem():
    return Problem()


class ExactGuide(PyroModule):
    def __init__(self, problem, shift=0.0):
        super().__init__()
        self.problem, self.shift = problem, shift

    def forward(self, x=None, y=None):
        flat = dist.MultivariateNormal(
            self.problem.mean.flatten() + self.shift, precision_matrix=self.problem.precision
        )
        transform = dist.transforms.ReshapeTransform((D,), (1, D))
        return pyro.sample("net.weight", dist.TransformedDistribution(flat, [transform]))


def test_every_draw_of_the_exact_guide_has_the_log_evidence_as_its_elbo(problem):
    guide = ExactGuide(problem)
    elbos = [-Trace_ELBO().loss(problem.model, guide, problem.x, problem.y) for _ in range(20)]
    assert_identical(elbos, [problem.log_evidence] * 20)


def test_a_shifted_guide_does_not(problem):
    guide = ExactGuide(problem, shift=0.1)
    elbos = torch.tensor([-Trace_ELBO().loss(problem.model, guide, problem.x, problem.y) for _ in range(20)])
    assert elbos.std() > 1e-3
    assert elbos.mean() < problem.log_evidence


def mean_field_at_its_optimum(problem):
    """Mean of the posterior, variance 1 / Lambda_ii: not the marginal variance."""
    guide = pb.MeanFieldGuide(problem.model)
    scale = problem.precision.diagonal().rsqrt().reshape(1, D)
    with torch.no_grad():
        guide.loc.net.weight.copy_(problem.mean)
        guide.rho.net.weight.copy_(scale.expm1().log())
    return guide, scale


@pytest.mark.nightly
def test_the_mean_field_optimum_has_zero_gradient_on_average(problem):
    guide, _ = mean_field_at_its_optimum(problem)
    gradients = []
    for _ in range(4000):
        guide.zero_grad()
        TraceMeanField_ELBO().differentiable_loss(problem.model, guide, problem.x, problem.y).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in guide.parameters()]).clone())
    assert agrees_in_mean(torch.stack(gradients), 0.0)


@pytest.mark.nightly
def test_the_marginal_variance_is_no_optimum(problem):
    guide, _ = mean_field_at_its_optimum(problem)
    marginal = torch.linalg.inv(problem.precision).diagonal().sqrt().reshape(1, D)
    with torch.no_grad():
        guide.rho.net.weight.copy_(marginal.expm1().log())
    gradients = []
    for _ in range(4000):
        guide.zero_grad()
        TraceMeanField_ELBO().differentiable_loss(problem.model, guide, problem.x, problem.y).backward()
        gradients.append(guide.rho.net.weight.grad.flatten().clone())
    assert not agrees_in_mean(torch.stack(gradients), 0.0)


@pytest.mark.nightly  # `test_fit.py` has a fit that finds the same optimum
@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_fit_svi_finds_the_optimum(problem, elbo, batch_size):
    guide = pb.MeanFieldGuide(problem.model)
    posterior = pb.fit_svi(
        problem.model,
        (problem.x, problem.y),
        guide,
        optimizer=pb.optim.scheduled(
            functools.partial(torch.optim.Adam, lr=0.05),
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.995 if batch_size is None else 0.993),
        ),
        num_epochs=800 if batch_size is None else 700,
        batch_size=batch_size,
        elbo=elbo(num_particles=4),
        seed=0,
    )
    _, scale = mean_field_at_its_optimum(problem)
    torch.testing.assert_close(guide.median()["net.weight"], problem.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(guide.scales()["net.weight"], scale, atol=0, rtol=0.12)
    elbos = torch.tensor([record.elbo for record in posterior.history.epochs[-200:]])
    assert elbos.mean() - 5 * elbos.std() / 200**0.5 < problem.log_evidence
    assert elbos.mean() > problem.log_evidence - 1.0


def test_the_bound_at_the_optimum_is_the_evidence_minus_the_known_gap(problem):
    """KL(mean field || exact) = (sum log Lambda_ii - log det Lambda) / 2."""
    guide, _ = mean_field_at_its_optimum(problem)
    gap = 0.5 * (problem.precision.diagonal().log().sum() - torch.logdet(problem.precision))
    elbos = torch.tensor([-Trace_ELBO().loss(problem.model, guide, problem.x, problem.y) for _ in range(700)])
    assert agrees_in_mean(elbos, problem.log_evidence - gap)
    assert not agrees_in_mean(elbos, problem.log_evidence)


def test_prediction_from_the_exact_guide_has_the_exact_moments(problem):
    x = torch.randn(4, D)
    prediction = pb.predict(problem.model, ExactGuide(problem), x, num_samples=1600, keep_draws=True, seed=1)
    exact_mean = x @ problem.mean.T
    exact_epistemic = ((x @ torch.linalg.inv(problem.precision)) * x).sum(-1, keepdim=True)
    assert agrees_in_mean(prediction.components.mean, exact_mean)
    deviations = (prediction.components.mean - exact_mean).square()
    assert agrees_in_mean(deviations, exact_epistemic)
    torch.testing.assert_close(prediction.epistemic, exact_epistemic, rtol=0.18, atol=0)
    assert_identical(prediction.aleatoric, torch.full((4, 1), NOISE**2))
    y = exact_mean + 0.3
    exact = dist.Normal(exact_mean, (exact_epistemic + NOISE**2).sqrt()).log_prob(y).flatten()
    likelihoods = prediction.components.log_prob(y).squeeze(-1).exp()
    assert agrees_in_mean(likelihoods, exact.exp())
    with_targets = pb.predict(problem.model, ExactGuide(problem), x, y=y, num_samples=1600, seed=1)
    assert_identical(with_targets.log_density, likelihoods.mean(0).log())
    assert math.isclose(with_targets.nll, float(-with_targets.log_density.mean()))


# --- other families of guides -----------------------------------------------------------------------------------------


def fitted(problem, guide, **settings):
    """A fit with a learning rate that falls to 0, so that the noise of the last steps averages out."""
    settings = {"num_epochs": 1000, **settings}
    num_epochs = settings["num_epochs"]
    return pb.fit_svi(
        problem.model,
        (problem.x, problem.y),
        guide,
        optimizer=pb.optim.scheduled(
            functools.partial(torch.optim.Adam, lr=0.1),
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 1e-3 ** (1 / num_epochs)),
        ),
        seed=0,
        **settings,
    )


def covariance_of(guide):
    return guide.get_posterior().covariance_matrix.detach()


def gap_of_mean_field(problem):
    """KL from the best independent Gaussians to the exact posterior."""
    return 0.5 * float(problem.precision.diagonal().log().sum() - torch.logdet(problem.precision))


@pytest.mark.nightly
@pytest.mark.daily("low-rank")
@pytest.mark.parametrize("rank", [None, D], ids=["full-rank", "low-rank"])
def test_a_gaussian_with_correlations_reaches_the_exact_posterior(problem, rank):
    init = pb.NetworkInit(scale=0.2)
    if rank is None:
        guide = pb.auto_guide(AutoMultivariateNormal, problem.model, init=init)
    else:
        guide = pb.auto_guide(AutoLowRankMultivariateNormal, problem.model, rank=rank, init=init)
    posterior = fitted(problem, guide, elbo=Trace_ELBO(num_particles=4))
    exact = torch.linalg.inv(problem.precision)
    torch.testing.assert_close(posterior.median()["net.weight"], problem.mean, atol=0.05, rtol=0)
    largest = float(exact.diagonal().max())
    torch.testing.assert_close(covariance_of(guide), exact, atol=0.15 * largest, rtol=0)
    assert not torch.allclose(exact, problem.precision.diagonal().reciprocal().diag(), atol=0.3 * largest)
    elbo = sum(record.elbo for record in posterior.history.epochs[-100:]) / 100
    assert abs(elbo - problem.log_evidence) < 0.05 < 0.2 * gap_of_mean_field(problem)
    draws = posterior.sample(4000, seed=1)["net.weight"]
    assert agrees_in_mean((draws - posterior.median()["net.weight"]).square().squeeze(1), covariance_of(guide).diag())


@pytest.mark.nightly
def test_a_mean_field_fit_misses_the_covariance_as_it_must(problem):
    guide = pb.MeanFieldGuide(problem.model, init=pb.NetworkInit(scale=0.2))
    posterior = fitted(problem, guide, elbo=Trace_ELBO(num_particles=2), num_epochs=600)
    conditional, marginal = 1 / problem.precision.diagonal(), torch.linalg.inv(problem.precision).diagonal()
    variance = guide.scales()["net.weight"].flatten().square()
    torch.testing.assert_close(variance, conditional, rtol=0.15, atol=0)
    assert (variance < 0.7 * marginal).all()
    elbo = sum(record.elbo for record in posterior.history.epochs[-300:]) / 300
    assert abs(elbo - (problem.log_evidence - gap_of_mean_field(problem))) < 0.2 * gap_of_mean_field(problem)


def test_the_delta_guide_finds_the_mode_and_records_the_log_prior(problem):
    guide = pb.DeltaGuide(problem.model)
    posterior = fitted(problem, guide)
    w = posterior.median()["net.weight"]
    torch.testing.assert_close(w, problem.mean, atol=1e-5, rtol=0)
    last = posterior.history.epochs[-1]
    log_prior = dist.Normal(0.0, PRIOR_SCALE).log_prob(w).sum()
    log_likelihood = dist.Normal(problem.x @ w.T, NOISE).log_prob(problem.y).sum()
    assert math.isclose(last.kl, -log_prior, rel_tol=1e-5)
    assert math.isclose(last.expected_log_likelihood, log_likelihood, rel_tol=1e-5)
    assert posterior.status.ok
    draws = posterior.sample(3)["net.weight"]
    assert torch.equal(draws, w.expand(3, 1, D))


@pytest.mark.nightly
def test_without_its_kl_the_delta_guide_finds_least_squares(problem):
    guide = pb.DeltaGuide(problem.model)
    posterior = fitted(problem, guide, kl_weight=0.0)
    least_squares = torch.linalg.lstsq(problem.x, problem.y).solution.T
    torch.testing.assert_close(posterior.median()["net.weight"], least_squares, atol=1e-5, rtol=0)
    assert (least_squares - problem.mean).abs().max() > 0.01  # and not the posterior's mode
    history = posterior.history
    assert history.loss == [-value for value in history.expected_log_likelihood]
    assert posterior.status.ok


def test_maximum_likelihood_takes_the_same_steps_as_plain_torch(problem):
    """To the last digit: with a KL weight of 0, the prior has no effect."""
    model = pb.BayesianModel(
        nn.Linear(D, 1), prior=pb.NormalPrior(1e-3), likelihood=pb.GaussianLikelihood(NOISE), num_data=N
    )
    net = nn.Linear(D, 1)
    net.load_state_dict({name: model.initial_value(f"net.{name}") for name in ("weight", "bias")})
    sgd = functools.partial(torch.optim.SGD, lr=1e-3)
    posterior = pb.fit_svi(
        model, (problem.x, problem.y), pb.DeltaGuide(model), optimizer=sgd, num_epochs=20, kl_weight=0.0
    )
    optimizer = sgd(net.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        (-dist.Normal(net(problem.x), NOISE).log_prob(problem.y).sum()).backward()
        optimizer.step()
    for name, value in net.named_parameters():
        assert_identical(posterior.median()[f"net.{name}"], value.detach())


def test_the_mode_of_a_noise_scale_is_that_of_its_own_density_not_of_its_logarithms():
    """The network returns 0: y ~ N(0, s^2), s ~ LogNormal(0, 1). With u = log s the two modes differ by a Jacobian."""
    y = torch.tensor([[0.5], [-1.5], [1.0], [2.0]])
    x = torch.zeros(4, 1)
    net = nn.Linear(1, 1, bias=False)  # of zeros: the output is 0 whatever the weight
    likelihood = pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=4)
    posterior = pb.fit_svi(
        model,
        (x, y),
        pb.DeltaGuide(model),
        optimizer=pb.optim.scheduled(
            functools.partial(torch.optim.Adam, lr=0.05),
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.99),
        ),
        num_epochs=1000,
    )
    mode = float(posterior.median()["likelihood.scale"])

    def slope(s, jacobian):
        """Of -4 log s - sum y^2 / (2 s^2) - log(s)^2 / 2 - log s, with respect to log s, plus the Jacobian's."""
        return -4 + float(y.square().sum()) / s**2 - math.log(s) - 1 + jacobian

    assert abs(slope(mode, jacobian=0.0)) < 1e-5
    assert abs(slope(mode, jacobian=1.0)) > 0.5
