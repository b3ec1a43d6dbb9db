"""The low-rank guide: Pyro's distribution, the same fit on both paths, correct closed forms, and a better bound."""

import functools

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, kl_divergence

import pyro_bnn as pb

from .cases import SCALE_MAPS, small_model
from .fits import ELBOS, FROZEN, MORE_PRIORS, assert_same, fit, fit_both, problem, whole
from .layers import standard_errors_apart
from .test_exact import D, Problem, fitted, gap_of_mean_field
from .tolerances import STANDARD_ERRORS, agrees_in_mean, assert_identical

MIXED = pb.PriorByName({"**.bias": pb.ScaleMixturePrior(0.5, 1.0, 0.3), "**": pb.NormalPrior(0.7)})
"""Closed forms for the weights, none for the biases."""


def low_rank(model, rank=3, **kwargs):
    """A guide with scales of different sizes, and correlations that are not small."""
    return pb.LowRankGuide(model, rank=rank, init=pb.NormalInit(rho=-1.0, rho_scale=0.5), **kwargs)


def flat(guide, kind):
    """Parameters of all sites, one after the other, shape (P,)."""
    return torch.cat([guide.get_submodule(kind).get_parameter(site.name).flatten() for site in guide.sites])


def gaussian(guide):
    """Torch's distribution of the flat vector, differentiable."""
    scale = guide.scale_map(flat(guide, guide.scale_map.name))
    return LowRankMultivariateNormal(flat(guide, "loc"), guide.factor.mT * scale[:, None], scale.square())


# --- the same fit by either path --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("prior", ["normal", "mixture", "laplace", "positive", "per-weight"])
def test_every_prior_gives_the_same_fit(monkeypatch, prior, num_particles):
    make = problem(prior, make_guide=low_rank)
    assert_same(fit_both(monkeypatch, make, elbo=Trace_ELBO(num_particles=num_particles), batch_size=4))


@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-learned", "gaussian-latent", "gaussian-latent-vector"])
def test_every_likelihood_gives_the_same_fit(monkeypatch, likelihood, num_particles):
    make = problem("mixture", likelihood, make_guide=low_rank)
    assert_same(fit_both(monkeypatch, make, elbo=Trace_ELBO(num_particles=num_particles), kl_weight=0.3))


@pytest.mark.parametrize("rank", [1, 43])
@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_every_scale_map_and_rank_gives_the_same_fit(monkeypatch, scale_map, rank):
    make_guide = functools.partial(low_rank, rank=rank, scale_map=SCALE_MAPS[scale_map])
    assert_same(fit_both(monkeypatch, problem(likelihood="categorical", make_guide=make_guide)))


def test_another_seed_is_another_fit(monkeypatch):
    """The must-fail twin."""
    first = fit_both(monkeypatch, problem(make_guide=low_rank))[0]
    second = fit_both(monkeypatch, problem(make_guide=low_rank), seed=2)[1]
    with pytest.raises(AssertionError):
        assert_same((first, second))


# --- Pyro's distribution ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-latent"])
def test_the_elbo_is_that_of_pyros_own_guide_with_the_same_parameters(likelihood):
    model, x, y = whole(likelihood, prior=MORE_PRIORS["mixture"])
    ours, theirs = low_rank(model), pb.auto_guide(AutoLowRankMultivariateNormal, model, rank=3)
    with torch.no_grad():
        theirs.loc.copy_(flat(ours, "loc"))
        theirs.cov_factor.copy_(ours.factor.mT)
        dict(theirs.named_parameters())["scale_unconstrained"].copy_(flat(ours, "rho"))
    elbos = [fit(model, guide, x, y, optimizer=FROZEN).history.elbo for guide in (ours, theirs)]
    assert_identical(*elbos)
    with torch.no_grad():
        theirs.cov_factor.mul_(1.001)
    with pytest.raises(AssertionError):
        assert_identical(elbos[0], fit(model, theirs, x, y, optimizer=FROZEN).history.elbo)


@pytest.mark.uses_param_store
@pytest.mark.parametrize("setting", [False, True], ids=["global-params", "module-local-params"])
def test_the_losses_are_those_of_pyros_own_loop_which_keeps_nothing_of_it(setting):
    losses = []
    with pyro.settings.context(module_local_params=setting):
        for is_ours in (True, False):
            torch.manual_seed(0)
            model, x, y = whole("gaussian-latent")
            guide = low_rank(model)
            if is_ours:
                losses.append(fit(model, guide, x, y, num_epochs=10, seed=5).history.loss)
                continue
            torch.manual_seed(5)
            svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
            losses.append([svi.step(x, y) for _ in range(10)])
    assert_identical(*losses)
    assert losses[0][0] != losses[0][-1]
    assert not [name for name in pyro.get_param_store() if "loc" in name or "factor" in name]


def draws_by_hand(model, guide, num_draws):
    """Flat draws in unconstrained space, (S, P), from the posterior and from calls of the guide."""
    posterior = pb.GuidePosterior(guide).sample(num_draws)
    calls = [guide() for _ in range(num_draws)]
    for draws in (posterior, {site.name: torch.stack([call[site.name] for call in calls]) for site in guide.sites}):
        free = [
            draws[site.name] if site.transform is None else site.transform.inv(draws[site.name]) for site in guide.sites
        ]
        yield torch.cat([value.reshape(num_draws, -1) for value in free], 1).detach()


def test_draws_have_the_moments_of_torchs_distribution():
    model, _, _ = small_model(likelihood="gaussian-latent", net=nn.Linear(4, 2))
    guide = low_rank(model, rank=2)
    q = gaussian(guide)
    mean, covariance = q.mean.detach(), q.covariance_matrix.detach()
    for draws in draws_by_hand(model, guide, 1000):
        assert agrees_in_mean(draws, mean)
        assert not agrees_in_mean(draws, mean + 0.3 * covariance.diagonal().sqrt())
        deviations = draws - mean
        products = deviations[:, :, None] * deviations[:, None, :]
        assert agrees_in_mean(products, covariance)
        assert not agrees_in_mean(products, covariance.diagonal().diag())
    scales = torch.cat([guide.scales()[site.name].reshape(-1) for site in guide.sites])
    assert_identical(scales, covariance.diagonal().sqrt())


# --- divergences in closed form ---------------------------------------------------------------------------------------


def steps_of(model, guide, x, y, *, num_steps, **options):
    """KL and flat gradients of several steps with a learning rate of 0."""
    torch.manual_seed(3)
    with pb.svi_step(model, guide, FROZEN, **options) as step:
        for _ in range(num_steps):
            kl = step(x, y).kl
            assert step.path == "direct"
            yield kl, torch.cat([parameter.grad.flatten() for parameter in guide.parameters()])


def gradients_of(*arguments, **options):
    """KL and flat gradients of one step with a learning rate of 0."""
    (found,) = steps_of(*arguments, num_steps=1, **options)
    return found


@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("scale_map", SCALE_MAPS)
@pytest.mark.parametrize("prior", ["normal", "wide", "per-weight", "fan-in"])
def test_the_closed_form_is_that_of_torch_and_so_are_its_gradients(prior, scale_map, num_particles):
    model, x, y = whole(prior=MORE_PRIORS[prior])
    guide = low_rank(model, scale_map=SCALE_MAPS[scale_map])
    elbo = TraceMeanField_ELBO(num_particles=num_particles)
    kl, with_kl = gradients_of(model, guide, x, y, elbo=elbo, kl_weight=1.0)
    _, without = gradients_of(model, guide, x, y, elbo=elbo, kl_weight=0.0)
    means, variances = (
        torch.cat([getattr(site.prior, moment).reshape(-1) for site in guide.sites]) for moment in ("mean", "variance")
    )
    q = gaussian(guide)
    for factor, is_right in ((1.0, True), (1.05, False)):  # a prior that is a little wider is another one
        p = MultivariateNormal(means, covariance_matrix=(factor * variances).diag())
        exact = kl_divergence(MultivariateNormal(q.mean, covariance_matrix=q.covariance_matrix), p)
        gradient = torch.autograd.grad(exact, list(guide.parameters()), retain_graph=True)
        flat_gradient = torch.cat([part.flatten() for part in gradient])
        assert torch.allclose(kl, exact, rtol=1e-10) == is_right
        assert torch.allclose(with_kl - without, flat_gradient, rtol=1e-8, atol=1e-9) == is_right


@pytest.mark.daily("mixed-gaussian-latent")
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-latent"])
@pytest.mark.parametrize("prior", ["laplace", "mixed"])
def test_closed_and_drawn_divergences_have_the_same_expectation_and_gradients(prior, likelihood):
    """Laplace priors have closed forms for the marginals; mixtures have none, so their divergences are drawn."""
    model, x, y = small_model(prior={**MORE_PRIORS, "mixed": MIXED}[prior], likelihood=likelihood, num_data=6)
    guide = low_rank(model)
    found = {}
    for elbo in ELBOS:
        steps = steps_of(model, guide, x, y, num_steps=600, elbo=elbo(), kl_weight=3.0)
        found[elbo] = [torch.stack(part) for part in zip(*steps, strict=True)]
    for closed, drawn in zip(found[TraceMeanField_ELBO], found[Trace_ELBO], strict=True):
        assert bool((standard_errors_apart(closed, drawn) < STANDARD_ERRORS).all())
    (closed, _), (drawn, _) = found[TraceMeanField_ELBO], found[Trace_ELBO]
    assert standard_errors_apart(closed + 2.0, drawn) > STANDARD_ERRORS  # two nats would be seen
    assert float(closed.var()) < 0.5 * float(drawn.var())


# --- what it is good for ----------------------------------------------------------------------------------------------


@pytest.mark.daily("3-TraceMeanField_ELBO")
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("rank", [1, D])
def test_it_beats_independent_gaussians_and_comes_near_the_evidence(rank, elbo):
    exact = Problem()
    guide = pb.LowRankGuide(exact.model, rank=rank, init=pb.NetworkInit(scale=0.2))
    posterior = fitted(exact, guide, elbo=elbo(num_particles=4), num_epochs=500)
    assert posterior.history.path == "direct"
    elbos = fit(exact.model, guide, exact.x, exact.y, optimizer=FROZEN, num_epochs=200).history.elbo
    bound = sum(elbos) / 200
    gap = gap_of_mean_field(exact)
    if rank == D:
        assert abs(bound - exact.log_evidence) < 0.05 < 0.2 * gap
        covariance = torch.linalg.inv(exact.precision)
        largest = float(covariance.diagonal().max())
        torch.testing.assert_close(gaussian(guide).covariance_matrix.detach(), covariance, atol=0.15 * largest, rtol=0)
        torch.testing.assert_close(posterior.median()["net.weight"], exact.mean, atol=0.05, rtol=0)
    assert bound > exact.log_evidence - 0.5 * gap


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_estimators_are_refused_with_the_remedy():
    model, x, y = whole()
    guide = low_rank(model)
    for estimator in (pb.LocalReparameterization(), pb.Flipout()):
        with pytest.raises(ValueError, match="`guide` must be a MeanFieldGuide"):
            fit(model, guide, x, y, estimator=estimator)
        with pytest.raises(ValueError, match=r"are correlated.*leave `estimator` out, or use MeanFieldGuide"):
            guide.flat(guide.joint(model), noise=estimator.noise, closed_form=False)


def test_pyros_mean_field_elbo_which_would_be_wrong_is_refused_off_the_direct_path(path):
    """Pyro sees one auxiliary vector and a `Delta` for each site, and has no divergence of a `Delta`."""
    model, x, y = whole("gaussian-latent")
    if path == "direct":
        assert fit(model, low_rank(model), x, y, elbo=TraceMeanField_ELBO()).history.path == "direct"
        return
    with pytest.raises(ValueError, match=r"LowRankGuide samples auxiliary variables.*use `elbo=Trace_ELBO\(\)`"):
        fit(model, low_rank(model), x, y, elbo=TraceMeanField_ELBO())


def test_ranks_must_be_possible():
    model, _, _ = small_model()  # 43 weights
    for rank, message in ((44, "at most the number of latent numbers, 43, got 44"), (0, "at least 1, got 0")):
        with pytest.raises(ValueError, match=message):
            pb.LowRankGuide(model, rank=rank)
    with pytest.raises(ValueError, match="`model` must be a BayesianModel"):
        pb.LowRankGuide(nn.Linear(2, 2), rank=1)
    with pytest.raises(ValueError, match="`init` must be an Init"):
        pb.LowRankGuide(model, rank=1, init=0.1)
