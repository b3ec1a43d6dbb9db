"""The noise scale that the evidence chooses, compared with Bayesian linear regression in closed form; row weights."""

import functools

import pyro.distributions as dist
import pytest
import scipy.optimize
import torch
from torch import nn

import pyro_bnn as pb

from .cases import LIKELIHOODS, small_model, small_net
from .test_gauss_newton import covariance_of
from .tolerances import assert_identical

NUM_DATA, NUM_INPUTS, TRUE_NOISE = 25, 3, 0.3
PRIOR_SCALE = 1.3
LATENT = dist.LogNormal(-1.5, 0.5)

torch.manual_seed(0)
X = torch.randn(NUM_DATA, NUM_INPUTS, dtype=torch.float64)
Y = (X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + TRUE_NOISE * torch.randn(NUM_DATA)).double()[:, None]


def exact_evidence(precision, scale, y=Y):
    """log p(y) of y = x w + noise with w ~ N(0, 1 / precision), in closed form."""
    covariance = scale**2 * torch.eye(NUM_DATA) + X @ X.T / precision
    return float(torch.distributions.MultivariateNormal(torch.zeros(NUM_DATA), covariance).log_prob(y[:, 0]))


def exact_mean(precision, scale, y=Y):
    """Mean of the weights, shape (1, D)."""
    return torch.linalg.solve(X.T @ X / scale**2 + precision * torch.eye(NUM_INPUTS), X.T @ y / scale**2).T


def maximised(function, start):
    found = scipy.optimize.minimize(lambda z: -function(torch.tensor(z)), start, method="Nelder-Mead", tol=1e-12)
    return torch.tensor(found.x).exp()


def linear(likelihood, outputs=1):
    net = nn.Linear(NUM_INPUTS, outputs, bias=False)
    return pb.BayesianModel(net, prior=pb.NormalPrior(PRIOR_SCALE), likelihood=likelihood, num_data=NUM_DATA)


STRUCTURES = ["full", "kronecker"]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_prior_precision_and_learned_noise_are_those_of_largest_evidence(structure):
    precision, scale = maximised(lambda z: exact_evidence(*z.exp()), [0.0, 0.0])
    model = linear(pb.GaussianLikelihood(None))
    fit = functools.partial(pb.fit_gauss_newton, structure=structure, prior_precision="evidence")
    posterior = fit(model, (X, Y), init={"net.weight": exact_mean(precision, scale)})
    found = model.likelihood.noise_scale().detach()
    assert float(found) == pytest.approx(float(scale), rel=1e-5)
    assert posterior.prior_precisions["net.weight"] == pytest.approx(float(precision), rel=1e-5)
    assert posterior.log_evidence == pytest.approx(exact_evidence(precision, scale), abs=1e-8)
    assert "the scale of largest evidence, 0.2" in posterior.status.message
    assert "(before 1)" in posterior.status.message
    assert posterior.status
    prediction = pb.predict(model, posterior, X, num_samples=5, seed=0)
    assert_identical(prediction.aleatoric, torch.full_like(Y, float(found) ** 2))
    # must fail: the noise of largest likelihood is smaller, and has less evidence
    residuals = Y - X @ exact_mean(precision, scale).T
    of_likelihood = float(residuals.square().mean().sqrt())
    assert of_likelihood < 0.97 * scale
    assert exact_evidence(precision, of_likelihood) < posterior.log_evidence - 1e-2


def test_the_noise_is_learned_under_the_models_prior_too():
    (scale,) = maximised(lambda z: exact_evidence(PRIOR_SCALE**-2, z.exp()), [0.0])
    model = linear(pb.GaussianLikelihood(None))
    init = {"net.weight": exact_mean(PRIOR_SCALE**-2, scale)}
    posterior = pb.fit_gauss_newton(model, (X, Y), structure="full", init=init)
    assert float(model.likelihood.noise_scale().detach()) == pytest.approx(float(scale), rel=1e-5)
    assert posterior.log_evidence == pytest.approx(exact_evidence(PRIOR_SCALE**-2, scale), abs=1e-8)
    torch.testing.assert_close(
        torch.linalg.inv(covariance_of(posterior)), X.T @ X / scale**2 + torch.eye(NUM_INPUTS) / PRIOR_SCALE**2
    )
    again = pb.fit_gauss_newton(model, (X, Y), structure="full", init=init)
    assert again.log_evidence == pytest.approx(posterior.log_evidence, abs=1e-8)
    given = pb.fit_gauss_newton(linear(pb.GaussianLikelihood(0.5)), (X, Y), structure="full", init=init)
    assert given.log_evidence < posterior.log_evidence - 1  # must fail


def test_a_scale_that_the_user_named_stays():
    model = linear(pb.GaussianLikelihood(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    posterior = pb.fit_gauss_newton(model, (X, Y), structure="full", prior_precision="evidence")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "noise" not in posterior.status.message


def test_a_latent_scale_is_held_at_its_most_probable_value():
    def of_scale(z):
        scale = z.exp()
        return exact_evidence(PRIOR_SCALE**-2, scale) + float(LATENT.log_prob(scale) + z)

    (scale,) = maximised(of_scale, [0.0])
    (without_prior,) = maximised(lambda z: exact_evidence(PRIOR_SCALE**-2, z.exp()), [0.0])
    model = linear(pb.GaussianLikelihood(LATENT))
    init = {"net.weight": exact_mean(PRIOR_SCALE**-2, scale), "likelihood.scale": torch.tensor(9.0)}
    posterior = pb.fit_gauss_newton(model, (X, Y), structure="full", init=init)
    found = posterior.median()["likelihood.scale"]
    assert float(found) == pytest.approx(float(scale), rel=1e-5)
    assert abs(float(found) / float(without_prior) - 1) > 1e-3  # must fail
    assert posterior.log_evidence == pytest.approx(exact_evidence(PRIOR_SCALE**-2, scale), abs=1e-6)
    assert f"fixed at its most probable value under the evidence, {float(scale):.3g}" in posterior.status.message
    assert set(posterior.sample(3, seed=0)["likelihood.scale"].tolist()) == {float(found)}
    prediction = pb.predict(model, posterior, X, num_samples=5, seed=0)
    assert_identical(prediction.aleatoric, torch.full_like(Y, float(found) ** 2))


def test_a_prior_of_the_scale_may_have_been_used_before():
    prior = dist.LogNormal(-1.5, 0.5)
    prior.log_prob(torch.tensor(0.3))  # torch then keeps the inverse of its transform, which refers back to it
    posterior = pb.fit_gauss_newton(linear(pb.GaussianLikelihood(prior)), (X, Y), structure="full")
    assert posterior.median()["likelihood.scale"] > 0


def test_each_output_has_its_own_latent_scale():
    both = torch.cat([Y, 4 * Y.flip(0)], 1)
    model = linear(pb.GaussianLikelihood(LATENT.expand([2]).to_event(1)), outputs=2)
    singles = [linear(pb.GaussianLikelihood(LATENT)) for _ in range(2)]
    init = torch.cat([exact_mean(1.0, 0.3), exact_mean(1.0, 0.3, both[:, 1:])])
    for structure in ("full", "diagonal"):
        fit = functools.partial(pb.fit_gauss_newton, structure=structure)
        together = fit(model, (X, both), init={"net.weight": init})
        apart = [
            fit(single, (X, both[:, i : i + 1]), init={"net.weight": init[i : i + 1]})
            for i, single in enumerate(singles)
        ]
        scales = torch.stack([posterior.median()["likelihood.scale"] for posterior in apart])
        assert scales[1] > 2 * scales[0]
        torch.testing.assert_close(together.median()["likelihood.scale"], scales, rtol=1e-5, atol=0)
        torch.testing.assert_close(
            covariance_of(together), torch.block_diag(*map(covariance_of, apart)), rtol=1e-5, atol=1e-12
        )
        assert together.log_evidence == pytest.approx(sum(posterior.log_evidence for posterior in apart), abs=1e-6)


def test_residuals_of_zero_name_no_scale():
    model = linear(pb.GaussianLikelihood(None))
    weight = model.initial_value("net.weight")
    with pytest.raises(ValueError, match="fits all targets of an output without error; set a scale"):
        pb.fit_gauss_newton(model, (X, X @ weight.T), structure="full")
    assert float(model.likelihood.noise_scale().detach()) == pytest.approx(1.0)
    latent = linear(pb.GaussianLikelihood(LATENT))  # with a prior there is a most probable one
    init = {"net.weight": weight}
    found = pb.fit_gauss_newton(latent, (X, X @ weight.T), structure="full", init=init).median()["likelihood.scale"]

    def of_scale(z):
        evidence = -NUM_DATA * z - 0.5 * torch.logdet(X.T @ X * (-2 * z).exp() + torch.eye(3) / PRIOR_SCALE**2)
        return float(evidence + LATENT.log_prob(z.exp()) + z)

    assert float(found) == pytest.approx(float(maximised(of_scale, [0.0])), rel=1e-5)


# --- the curvature of each likelihood ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "poisson", "heteroscedastic", "gaussian-fixed"])
def test_the_curvature_in_the_outputs_is_the_fisher_information(name):
    """It is the Hessian in f of KL(p(y | f*) || p(y | f)) at f = f*, which torch has in closed form."""
    likelihood, num_outputs, *_ = LIKELIHOODS[name]
    net = nn.Linear(4, num_outputs, bias=False)
    model, x, y = small_model(likelihood=name, num_data=6, net=net)
    posterior = pb.fit_gauss_newton(model, (x, y), structure="full")
    expected = torch.eye(4 * num_outputs) / 0.7**2
    for row in x:
        at = (net.weight @ row).detach()[None]

        def divergence(output, at=at):
            return torch.distributions.kl_divergence(likelihood(at), likelihood(output)).sum()

        curvature = torch.autograd.functional.hessian(divergence, at)[0, :, 0]
        expected += torch.einsum("ck,i,j->cikj", curvature, row, row).reshape(expected.shape)
    torch.testing.assert_close(torch.linalg.inv(covariance_of(posterior)), expected)
    diagonal = pb.fit_gauss_newton(model, (x, y), structure="diagonal")
    torch.testing.assert_close(covariance_of(diagonal).diagonal(), expected.diagonal().reciprocal())


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
@pytest.mark.parametrize("name", ["categorical", "bernoulli", "heteroscedastic", "gaussian-learned", "gaussian-fixed"])
def test_a_weight_of_two_is_the_same_row_twice(name, structure):
    likelihood, num_outputs, targets, _ = LIKELIHOODS[name]
    x, y, weights = torch.randn(6, 4), targets(6), torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 1.0])
    rows = torch.arange(6).repeat_interleave(weights.long())
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, num_outputs))
    make = functools.partial(pb.BayesianModel, net, prior=pb.NormalPrior(0.7))
    weighted = make(likelihood=likelihood.with_row_weights(), num_data=6)
    repeated = make(likelihood=likelihood, num_data=len(rows))
    fit = functools.partial(pb.fit_gauss_newton, structure=structure)
    found = fit(weighted, (x, likelihood.join_weights(y, weights)))
    expected = fit(repeated, (x[rows], y[rows]))
    torch.testing.assert_close(covariance_of(found), covariance_of(expected), rtol=1e-6, atol=1e-9)
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
    once = fit(make(likelihood=likelihood, num_data=6), (x, y))
    assert abs(once.log_evidence - expected.log_evidence) > 0.1  # must fail


def test_class_weights_weight_the_curvature():
    model, x, y = small_model(num_data=6)
    weights = torch.tensor([1.0, 2.0, 1.0])
    net = small_net()
    net.load_state_dict({name.removeprefix("net."): model.initial_value(name) for name in model.site_names})
    by_class = pb.BayesianModel(
        net, prior=pb.NormalPrior(0.7), likelihood=pb.CategoricalLikelihood(weights), num_data=6
    )
    likelihood = pb.CategoricalLikelihood().with_row_weights()
    by_row = pb.BayesianModel(net, prior=pb.NormalPrior(0.7), likelihood=likelihood, num_data=6)
    for structure in ("full", "kronecker"):
        found = pb.fit_gauss_newton(by_class, (x, y), structure=structure)
        expected = pb.fit_gauss_newton(by_row, (x, likelihood.join_weights(y, weights[y])), structure=structure)
        torch.testing.assert_close(covariance_of(found), covariance_of(expected))
