"""Priors that depend on latent scales, or learn them: the model, the densities, exact answers, all ways to infer."""

import copy
import functools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn.joint import find_sites

from .cases import GUIDES, HIERARCHICAL_PRIORS, LEARNED_PRIORS, small_model
from .tolerances import STANDARD_ERRORS, agrees_in_mean, assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.02)
INFERRED = {**HIERARCHICAL_PRIORS, **LEARNED_PRIORS}


def problem(prior, likelihood="gaussian-fixed", **kwargs):
    return small_model(prior=INFERRED[prior], likelihood=likelihood, num_data=6, **kwargs)


# --- the model --------------------------------------------------------------------------------------------------------


def test_scales_are_sites_drawn_once_and_before_the_weights():
    model, x, y = problem("horseshoe")
    trace = poutine.trace(model).get_trace(x, y)
    parents = [
        *("prior.0.global_scale", "prior.0.weight.local_scales", "prior.0.bias.local_scales"),
        *("prior.2.global_scale", "prior.2.weight.local_scales", "prior.2.bias.local_scales"),
    ]
    assert [*model.latent_names] == [*parents, *model.site_names]
    assert trace.stochastic_nodes == [*parents, *model.site_names, "data"]
    assert model.site_names == ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    assert model.parents_of("net.0.bias") == ("prior.0.global_scale", "prior.0.bias.local_scales")
    assert trace.nodes["prior.0.weight.local_scales"]["value"].shape == (5, 1)
    assert not model.has_fixed_priors


def test_densities_are_those_of_the_formulas():
    model, _, _ = problem("horseshoe-per-weight")
    weight, local = torch.randn(3, 5, 4), torch.rand(3, 5, 4)
    tau = torch.rand(3)
    values = {"prior.0.weight.global_scale": tau, "prior.0.weight.local_scales": local}
    scale = tau[:, None, None] * local
    scale = 2 * scale / (4 + scale**2).sqrt()
    expected = torch.distributions.Normal(0.0, scale).log_prob(weight).sum((1, 2))
    assert_identical(model.prior_given("net.0.weight", values).log_prob(weight), expected)
    local_prior = model.prior_of("prior.0.weight.local_scales")
    assert_identical(local_prior.log_prob(local[0]), (math.log(2 / math.pi) - (1 + local[0] ** 2).log()).sum())
    model, _, _ = problem("hierarchical")
    prior = model.prior_given("net.2.bias", {"prior.2.scale": torch.tensor(0.3)})
    assert_identical(prior.stddev, torch.full((2,), 0.3))
    with pytest.raises(ValueError, match=r"depends on \['prior.2.scale'\]; call `prior_given`"):
        model.prior_of("net.2.bias")


def test_a_layers_parameters_share_a_scale_or_each_has_its_own():
    shared, _, _ = problem("hierarchical")
    own, _, _ = problem("hierarchical-per-parameter")
    assert shared.latent_names[:2] == ("prior.0.scale", "prior.2.scale")
    assert own.latent_names[:2] == ("prior.0.weight.scale", "prior.0.bias.scale")


def test_globs_choose_which_parameters_have_scales():
    model, _, _ = problem("hierarchical-by-name")
    assert model.latent_names[:2] == ("prior.0.scale", "prior.2.scale")
    assert model.parents_of("net.0.bias") == ()
    assert model.parents_of("net.0.weight") == ("prior.0.scale",)


def test_tied_weights_have_one_scale():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model, _, _ = small_model(net=nn.Sequential(first, second), prior=pb.HierarchicalNormalPrior(per="parameter"))
    assert model.latent_names[:3] == ("prior.0.weight.scale", "prior.0.bias.scale", "prior.1.bias.scale")


@pytest.mark.parametrize("prior", LEARNED_PRIORS)
def test_learned_scales_are_parameters_of_the_model_and_of_nothing_else(prior):
    model, x, y = problem(prior)
    keys = {f"prior_parameters.{key}" for key in ("0.log_scale", "2.log_scale")}
    if prior == "learned-per-parameter":
        keys = {f"prior_parameters.{i}.{leaf}.log_scale" for i in (0, 2) for leaf in ("weight", "bias")}
    assert {name for name, _ in model.named_parameters()} == keys
    guide = pb.MeanFieldGuide(model)
    before = copy.deepcopy(model.state_dict())
    history = pb.fit_svi(model, guide, (x, y), optimizer=ADAM, num_epochs=3, seed=0).history
    assert history.path.startswith("pyro")
    assert all(not torch.equal(model.state_dict()[key], before[key]) for key in keys)
    pb.predict(model, guide, x, num_samples=2)
    assert dict(pyro.get_param_store()) == {}
    twin, _, _ = problem(prior)
    twin.load_state_dict(model.state_dict())
    for name in model.site_names:
        assert_identical(twin.prior_of(name).stddev.detach(), model.prior_of(name).stddev.detach())
    assert model.float().prior_of("net.0.weight").stddev.dtype == torch.float32


@pytest.mark.uses_param_store
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("prior", INFERRED)
def test_predictive_runs_in_parallel_too(prior, parallel):
    model, x, y = problem(prior)
    guide = pb.MeanFieldGuide(model)
    for source in (guide, None):
        samples = Predictive(model, guide=source, num_samples=7, parallel=parallel)(x)
        assert samples["obs"].shape == (7, *y.shape)
        for name in model.latent_names:
            assert samples[name].numel() == 7 * samples[name][0].numel()


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("prior", INFERRED)
def test_vectorised_particles_estimate_the_same_elbo(prior, elbo):
    model, x, y = problem(prior)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    one = torch.tensor([elbo().loss(model, guide, x, y) for _ in range(300)])
    many = elbo(num_particles=300, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    assert abs(float(many) - float(one.mean())) < STANDARD_ERRORS * float(one.std()) * math.sqrt(2 / 300)


# --- all ways to infer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guide", [name for name in GUIDES if name != "pruned"])
@pytest.mark.parametrize("prior", INFERRED)
def test_every_guide_fits_and_predicts(prior, guide):
    model, x, y = problem(prior, "gaussian-latent")
    posterior = pb.fit_svi(model, GUIDES[guide](model), (x, y), optimizer=ADAM, num_epochs=3, seed=0)
    assert set(posterior.median()) == set(model.latent_names)
    assert math.isfinite(pb.predict(model, posterior, x, y=y, num_samples=3, seed=0).nll)


@pytest.mark.parametrize("prior", INFERRED)
def test_a_fit_reports_the_elbo_of_pyro(prior):
    model, x, y = problem(prior)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    history = pb.fit_svi(model, guide, (x, y), optimizer=frozen, num_epochs=300, seed=0).history
    ours = torch.tensor([record.elbo for record in history.epochs])
    pyros = -torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(300)])
    error = math.sqrt(float(ours.var() + pyros.var()) / 300)
    assert abs(float(ours.mean() - pyros.mean())) < STANDARD_ERRORS * error


@pytest.mark.parametrize("prior", ["hierarchical", "horseshoe-per-weight", "learned"])
@pytest.mark.parametrize("fit", [pb.fit_nuts, pb.fit_hmc])
def test_samplers_infer_scales_too(prior, fit, tmp_path):
    model, x, y = problem(prior)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        warnings.filterwarnings("ignore", message="the model's learnable parameters .* stay at their present values")
        options = {"max_tree_depth": 4} if fit is pb.fit_nuts else {}
        chains = fit(model, x, y, num_samples=20, num_warmup=10, num_chains=2, seed=0, **options)
    assert set(chains.sample(4)) == set(model.latent_names)
    nll = pb.predict(model, chains, x, y=y, seed=0).nll
    assert math.isfinite(nll)
    chains.save(tmp_path / "chains")
    assert pb.predict(model, pb.MCMCPosterior.load(tmp_path / "chains"), x, y=y, seed=0).nll == nll
    guide = pb.MeanFieldGuide(model)
    comparison = pb.compare(model, {"chains": chains, "guide": guide}, x, y=y, num_samples=40)
    assert "guide" in str(comparison)


def test_laplace_finds_a_mode_with_scales():
    model, x, y = small_model(
        prior=pb.HierarchicalNormalPrior(dist.LogNormal(0.0, 0.3)), likelihood="gaussian-fixed", num_data=6
    )
    posterior = pb.fit_laplace(model, x, y, seed=0)
    assert set(posterior.median()) == set(model.latent_names)
    assert all(bool((posterior.median()[f"prior.{i}.scale"] > 0).all()) for i in (0, 2))


def test_a_posterior_without_the_scales_is_refused():
    model, x, _ = problem("hierarchical")
    fixed, _, _ = small_model(likelihood="gaussian-fixed")
    with pytest.raises(ValueError, match=r"lacks the latent variables \['prior.0.scale', 'prior.2.scale'\]"):
        pb.predict(model, pb.MeanFieldGuide(fixed), x, num_samples=2)


def test_weights_with_inferred_scales_are_not_pruned():
    for prior in ("hierarchical", "learned"):
        model, _, _ = problem(prior)
        assert not any(site.is_fixed for site in find_sites(model, (), {}) if site.name in model.site_names)
        with pytest.raises(ValueError, match="prior"):
            pruning.prune(pb.MeanFieldGuide(model), fraction=0.4)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "scale_prior", [dist.HalfNormal(torch.tensor(1.0)), dist.LogNormal(torch.tensor(0.0), torch.tensor(0.8))]
)
def test_nuts_has_the_moments_of_scale_and_weight(scale_prior):
    model, x, y = one_weight(pb.HierarchicalNormalPrior(scale_prior))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)  # so short a chain cannot be judged alone
        posterior = pb.fit_nuts(model, x, y, num_samples=100, num_warmup=200, num_chains=60, seed=0)
    u, w = (posterior.samples[name].reshape(60, 100) for name in ("prior.scale", "net.weight"))
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
        model, guide, (x, y), optimizer=optimizer, num_epochs=1500, elbo=TraceMeanField_ELBO, seed=0, callbacks=[cool]
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
    r"""With scales near 1, each weight is within a few units of 0, and y misses by sqrt(D): some D nats per datum."""
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


# --- refused ----------------------------------------------------------------------------------------------------------


class DrawsScale(pb.Prior):
    def elementwise(self, name, parameter, module):
        return dist.Normal(0.0 * parameter, pyro.sample("scale", dist.HalfNormal(1.0)))


class DeclaresScale(pb.Prior):
    def elementwise(self, name, parameter, module):
        return dist.Normal(0.0 * parameter, pyro.param("scale", torch.ones(())))


class ClashingScales(pb.HierarchicalPrior):
    name, shape = "prior.scale", ()

    def parents(self, name, parameter, module):
        return {self.name: dist.HalfNormal(parameter.new_ones(self.shape))}

    def elementwise_given(self, values, name, parameter, module):
        return dist.Normal(0.0, values[self.name])


class Unprefixed(ClashingScales):
    name = "scale"


class Batched(ClashingScales):
    shape = (1,)


CLASH = pb.PriorByName(
    {"**.bias": pb.HierarchicalNormalPrior(dist.HalfNormal(2.0)), "**": pb.HierarchicalNormalPrior()}
)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (DrawsScale(), r"statement `pyro.sample\('scale', ...\)`, which would .*be frozen.*HierarchicalNormalPrior"),
        (DeclaresScale(), r"statement `pyro.param\('scale', ...\)`.*LearnedNormalPrior"),
        (CLASH, r"`net.0.bias` and `net.0.weight` both depend on `prior.0.scale`.*per=\"parameter\""),
        (Unprefixed(), "must have a name that begins with `prior.`, got `scale`"),
        (Batched(), r"`prior.scale` must have no batch shape, got \(1,\); use `.to_event\(\)`"),
    ],
)
def test_priors_that_cannot_be_are_refused_when_the_model_is_built(prior, message):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        small_model(prior=prior)
    assert dict(pyro.get_param_store()) == {}
    assert state.shape == torch.get_rng_state().shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pb.HierarchicalNormalPrior(dist.Normal(0.0, 1.0)), "must live on positive numbers"),
        (lambda: pb.HierarchicalNormalPrior(dist.HalfNormal(torch.ones(2)).to_event(1)), "must be of one number"),
        (lambda: pb.HierarchicalNormalPrior(per="unit"), '`per` must be "layer" or "parameter"'),
        (lambda: pb.HorseshoePrior(0.0), "`global_scale` must be"),
        (lambda: pb.HorseshoePrior(local="layer"), '`local` must be "unit" or "weight"'),
        (lambda: pb.HorseshoePrior(slab_scale=-1.0), "`slab_scale` must be"),
        (lambda: pb.LearnedNormalPrior(0.0), "`scale` must be"),
    ],
)
def test_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
