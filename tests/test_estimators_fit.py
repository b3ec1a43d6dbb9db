"""With an estimator the ELBO stays the ELBO, its gradient varies less, and fits find the optimum."""

import functools
from contextlib import nullcontext

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO

import pyro_bnn as pb
from pyro_bnn.inference.estimators import Applied
from pyro_bnn.inference.svi import NonFiniteError

from .cases import ESTIMATORS, PRIORS, small_model
from .fits import ELBOS, fit
from .layers import pair, standard_errors_apart
from .test_exact import Problem, mean_field_at_its_optimum
from .tolerances import STANDARD_ERRORS, agrees_in_mean, assert_identical

# --- the objective ----------------------------------------------------------------------------------------------------


def losses_and_gradients(applied, model, guide, x, y, *, elbo, num_draws=150):
    """Losses (S,) and gradients (S, P) of independent single-draw objectives, in a context or without one."""
    losses, gradients = [], []
    for _ in range(num_draws):
        guide.zero_grad()
        with applied or nullcontext():
            loss = elbo().differentiable_loss(model, guide, x, y)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in guide.parameters()]).clone())
    return torch.stack(losses), torch.stack(gradients)


@pytest.mark.daily("normal-Trace_ELBO")
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", ["normal", "mixture", "laplace"])
def test_the_elbo_and_its_gradient_are_those_of_sampled_weights(prior, elbo):
    model, x, y = small_model(prior=pb.ScaleMixturePrior(0.5, 1.0, 0.3) if prior == "mixture" else PRIORS[prior])
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    expected = losses_and_gradients(None, model, guide, x, y, elbo=elbo)
    for estimator in ESTIMATORS.values():
        found = losses_and_gradients(estimator.applied(model, guide), model, guide, x, y, elbo=elbo)
        for a, b in zip(found, expected, strict=True):
            assert bool((standard_errors_apart(a, b) < STANDARD_ERRORS).all())


@pytest.mark.daily("Trace_ELBO")
@pytest.mark.parametrize("elbo", ELBOS)
def test_in_one_context_either_elbo_is_right(elbo):
    """The context works for both: it draws the weights whose densities `Trace_ELBO` needs.

    Without these draws, which `fit_svi` omits if it can, `Trace_ELBO` would take the densities at the means.
    """
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    lrt = ESTIMATORS["lrt"]
    expected = losses_and_gradients(None, model, guide, x, y, elbo=Trace_ELBO)
    for applied, is_right in ((lrt.applied(model, guide), True), (Applied(lrt, model, guide, closed_form=True), False)):
        found = losses_and_gradients(applied, model, guide, x, y, elbo=elbo)
        for a, b in zip(found, expected, strict=True):
            agrees = bool((standard_errors_apart(a, b) < STANDARD_ERRORS).all())
            assert agrees == (is_right or elbo is TraceMeanField_ELBO)


@pytest.mark.nightly
def test_gradients_vary_less_than_with_shared_weights():
    x, y = pb.data.regression_problem(32)
    x, y = x.double(), y.double()
    model, guide = pair(
        pb.nets.mlp([1, 10, 2]), num_data=32, likelihood=pb.HeteroscedasticGaussianLikelihood(), scale=0.1
    )
    spread = {}
    for name, estimator in (("rt", None), *ESTIMATORS.items()):
        applied = estimator and estimator.applied(model, guide)
        _, gradients = losses_and_gradients(applied, model, guide, x, y, elbo=TraceMeanField_ELBO, num_draws=150)
        spread[name] = (gradients - gradients.mean(0)).square().sum(1)
    for name in ESTIMATORS:
        assert spread[name].mean() < 0.7 * spread["rt"].mean()
        assert standard_errors_apart(spread[name], spread["rt"]) > STANDARD_ERRORS


# --- fitting ----------------------------------------------------------------------------------------------------------


@pytest.mark.uses_param_store
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_fit_svi_and_pyros_loop_give_the_same_losses(estimator, elbo, path):
    losses = {}

    def fresh():
        torch.manual_seed(11)
        model, x, y = small_model(likelihood="gaussian-latent", num_data=6)
        return model, pb.MeanFieldGuide(model, init=pb.NormalInit()), x, y

    for run in ("first", "second"):
        history = fit(
            *fresh(), num_epochs=5, elbo=elbo(num_particles=2), seed=5, estimator=ESTIMATORS[estimator]
        ).history
        losses[run] = history.loss
    model, guide, x, y = fresh()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo(num_particles=2))
    torch.manual_seed(5)
    with Applied(ESTIMATORS[estimator], model, guide, closed_form=elbo is TraceMeanField_ELBO):
        losses["pyro"] = [svi.step(x, y) for _ in range(5)]
    losses["plain"] = fit(*fresh(), num_epochs=5, elbo=elbo(num_particles=2), seed=5).history.loss
    assert losses["first"] == losses["second"]
    assert_identical(losses["first"], losses["pyro"])
    assert losses["first"] != losses["plain"]


@pytest.mark.daily("flipout-TraceMeanField_ELBO")  # `fit` finds it by local reparameterisation in `test_fit.py`
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_fit_svi_finds_the_optimum(estimator, elbo):
    problem = Problem()
    guide = pb.MeanFieldGuide(problem.model)
    posterior = fit(
        problem.model,
        guide,
        problem.x,
        problem.y,
        optimizer=pb.optim.scheduled(
            functools.partial(torch.optim.Adam, lr=0.05),
            functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.996),
        ),
        num_epochs=1000,
        elbo=elbo(num_particles=2),
        estimator=ESTIMATORS[estimator],
    )
    _, scale = mean_field_at_its_optimum(problem)
    torch.testing.assert_close(guide.median()["net.weight"], problem.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(guide.scales()["net.weight"], scale, atol=0, rtol=0.12)
    elbos = torch.tensor([record.elbo for record in posterior.history.epochs[-200:]])
    assert elbos.mean() - 5 * elbos.std() / 200**0.5 < problem.log_evidence
    assert elbos.mean() > problem.log_evidence - 1.0


@pytest.mark.daily(
    "pyro-lrt-Trace_ELBO-0.0",
    "direct-lrt-Trace_ELBO-1e-05",
    "direct-flipout-TraceMeanField_ELBO-0.5",
)
@pytest.mark.parametrize("weight", [0.0, 1e-5, 0.5, 1.0])
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_history_holds_the_two_terms_of_the_elbo(estimator, elbo, weight, path):
    """With parameters that do not move, the means of the losses are those of the closed form and of drawn weights."""
    problem = Problem()
    guide, scale = mean_field_at_its_optimum(problem)
    still = functools.partial(torch.optim.SGD, lr=1e-300)
    history = fit(
        problem.model,
        guide,
        problem.x,
        problem.y,
        optimizer=still,
        num_epochs=400,
        elbo=elbo(),
        kl_weight=weight,
        estimator=ESTIMATORS[estimator],
    ).history
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(problem.mean, scale), torch.distributions.Normal(0.0, 1.3)
    ).sum()
    errors = (problem.y - problem.x @ problem.mean.T).square() + problem.x.square() @ scale.square().T
    likelihood = torch.distributions.Normal(0.0, 0.6).log_prob(torch.tensor(0.0)) * 12 - errors.sum() / 2 / 0.6**2
    found = torch.tensor([[record.kl, record.expected_log_likelihood] for record in history.epochs])
    if elbo is TraceMeanField_ELBO and (path == "direct" or weight > 1e-3):  # below, Pyro's is that of the draw
        assert_identical(found[:, 0], kl.expand(400))
    else:
        assert agrees_in_mean(found[:, 0], kl)
        assert not agrees_in_mean(found[:, 0], kl + 1)
    assert agrees_in_mean(found[:, 1], likelihood)
    assert not agrees_in_mean(found[:, 1], likelihood + 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_loss_that_is_not_finite_is_reported(estimator, path):
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.net.get_parameter("2.bias").fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"net\.2\.bias"):
        fit(model, guide, x, y, elbo=TraceMeanField_ELBO(), estimator=ESTIMATORS[estimator])


def test_draws_of_the_posterior_are_genuine_in_callbacks_and_after_the_fit():
    model, x, y = small_model(num_data=6)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    seen = []

    def callback(history):
        seen.append(guide()["net.0.weight"] - guide.locations()["net.0.weight"])

    posterior = fit(model, guide, x, y, elbo=TraceMeanField_ELBO(), estimator=ESTIMATORS["lrt"], callbacks=[callback])
    draws = posterior.sample(10)["net.0.weight"]
    assert all(float(deviation.detach().abs().max()) > 0.1 for deviation in seen)
    assert float(draws.std(0).mean()) > 0.1
