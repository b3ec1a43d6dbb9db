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
from pyro_bnn.inference.joint import find_sites
from pyro_bnn.modelling.priors import HierarchicalPrior

from .cases import GUIDES, HIERARCHICAL_PRIORS, LEARNED_PRIORS, POINTS, small_model
from .tolerances import STANDARD_ERRORS, assert_identical

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
    history = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=3, seed=0).history
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


@pytest.mark.daily("learned-TraceMeanField_ELBO")  # the other one in `test_pyro_tools.py`
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("prior", INFERRED)
def test_vectorised_particles_estimate_the_same_elbo(prior, elbo):
    model, x, y = problem(prior)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    one = torch.tensor([elbo().loss(model, guide, x, y) for _ in range(150)])
    many = elbo(num_particles=150, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    assert abs(float(many) - float(one.mean())) < STANDARD_ERRORS * float(one.std()) * math.sqrt(2 / 150)


# --- all ways to infer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guide", "prior"),  # a point under a prior that is learned is refused
    [
        pytest.param(g, p, marks=() if g == "normal" or p == "hierarchical" else pytest.mark.nightly)
        for g in GUIDES
        for p in INFERRED
        if g != "pruned" and not (g in POINTS and p in LEARNED_PRIORS)
    ],
)
def test_every_guide_fits_and_predicts(prior, guide):
    model, x, y = problem(prior, "gaussian-latent")
    posterior = pb.fit_svi(model, (x, y), GUIDES[guide](model), optimizer=ADAM, num_epochs=3, seed=0)
    assert set(posterior.sample(2)) == set(model.latent_names)
    assert guide == "batch-ensemble" or set(posterior.median()) == set(model.latent_names)
    assert math.isfinite(pb.predict(model, posterior, x, y=y, num_samples=3, seed=0).nll)


@pytest.mark.daily("hierarchical")
@pytest.mark.parametrize("prior", INFERRED)
def test_a_fit_reports_the_elbo_of_pyro(prior):
    model, x, y = problem(prior)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    history = pb.fit_svi(model, (x, y), guide, optimizer=frozen, num_epochs=120, seed=0).history
    ours = torch.tensor([record.elbo for record in history.epochs])
    pyros = -torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(120)])
    error = math.sqrt(float(ours.var() + pyros.var()) / 120)
    assert abs(float(ours.mean() - pyros.mean())) < STANDARD_ERRORS * error


@pytest.mark.daily("NUTS-hierarchical", "HMC-learned")
@pytest.mark.parametrize("prior", ["hierarchical", "horseshoe-per-weight", "learned"])
@pytest.mark.parametrize("sampler", [pb.NUTS(max_tree_depth=4), pb.HMC()], ids=lambda sampler: type(sampler).__name__)
def test_samplers_infer_scales_too(prior, sampler, tmp_path):
    model, x, y = problem(prior)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        warnings.filterwarnings("ignore", message="the model's learnable parameters .* stay at their present values")
        chains = pb.fit_mcmc(model, (x, y), sampler=sampler, num_samples=20, num_warmup=10, num_chains=2, seed=0)
    assert set(chains.sample(4)) == set(model.latent_names)
    nll = pb.predict(model, chains, x, y=y, seed=0).nll
    assert math.isfinite(nll)
    pb.save_posterior(chains, tmp_path / "chains", model)
    assert pb.predict(model, pb.load_posterior(tmp_path / "chains", model), x, y=y, seed=0).nll == nll
    guide = pb.MeanFieldGuide(model)
    comparison = pb.compare(model, {"chains": chains, "guide": guide}, x, y=y, num_samples=40)
    assert "guide" in str(comparison)


def test_laplace_finds_a_mode_with_scales():
    model, x, y = small_model(
        prior=pb.HierarchicalNormalPrior(dist.LogNormal(0.0, 0.3)), likelihood="gaussian-fixed", num_data=6
    )
    posterior = pb.fit_laplace(model, (x, y), seed=0)
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


# --- refused ----------------------------------------------------------------------------------------------------------


class DrawsScale(pb.Prior):
    def elementwise(self, name, parameter, module):
        return dist.Normal(0.0 * parameter, pyro.sample("scale", dist.HalfNormal(1.0)))


class DeclaresScale(pb.Prior):
    def elementwise(self, name, parameter, module):
        return dist.Normal(0.0 * parameter, pyro.param("scale", torch.ones(())))


class ClashingScales(HierarchicalPrior):
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
        (DrawsScale(), r"statement `pyro.sample\('scale', ...\)`, which would run only once.*HierarchicalNormalPrior"),
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
        (lambda: pb.HierarchicalNormalPrior(per="unit"), "`per` must be one of 'layer', 'parameter'"),
        (lambda: pb.HorseshoePrior(0.0), "`global_scale` must be"),
        (lambda: pb.HorseshoePrior(local="layer"), "`local` must be one of 'unit', 'weight'"),
        (lambda: pb.HorseshoePrior(slab_scale=-1.0), "`slab_scale` must be"),
        (lambda: pb.LearnedNormalPrior(0.0), "`scale` must be"),
    ],
)
def test_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
