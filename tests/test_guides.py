import copy
import functools
import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from torch import nn
from torch.distributions import kl_divergence

import pyro_bnn as pb
from pyro_bnn.inference.guides import UniformInit, _mean_field
from pyro_bnn.inference.guides._auto import KINDS

from .cases import GUIDES, PRIORS, PRIORS_AND_LIKELIHOODS, small_model
from .tolerances import STANDARD_ERRORS, agrees_in_mean, assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def draw_of(guide, *args):
    trace = poutine.trace(guide).get_trace(*args)
    return {
        name: node["value"] for name, node in trace.iter_stochastic_nodes() if not node["infer"].get("is_auxiliary")
    }


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-latent", "gaussian-latent-vector"])
@pytest.mark.parametrize("name", GUIDES)
def test_draws_every_latent_with_its_shape_and_dtype_whatever_the_arguments(name, likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = GUIDES[name](model)
    prior = poutine.trace(model).get_trace(x, y)
    with pb._core.scope.own_parameters(guide):
        for args in ((), (x,), (x, y)):
            draw = draw_of(guide, *args)
            assert set(draw) == set(prior.stochastic_nodes) - {"data"}
            for site, value in draw.items():
                assert value.shape == prior.nodes[site]["value"].shape
                assert value.dtype == torch.float64
                assert prior.nodes[site]["fn"].support.check(value).all()


@pytest.mark.parametrize("name", GUIDES)
def test_a_gradient_reaches_every_parameter(name):
    model, x, y = small_model(likelihood="gaussian-latent")
    guide = GUIDES[name](model)
    with pb._core.scope.own_parameters(guide):
        Trace_ELBO(30 if name == "batch-ensemble" else 1).differentiable_loss(model, guide, x, y).backward()
    for parameter_name, parameter in guide.named_parameters():
        if name == "frozen" and parameter_name.startswith("loc."):
            assert parameter.grad is None
            continue
        is_used = torch.ones_like(parameter, dtype=torch.bool)
        if "scale_tril" in parameter_name:  # of a triangular matrix with ones on the diagonal
            is_used = is_used.tril(-1)
        if name == "pruned":
            is_used = guide.kept(parameter_name.partition(".")[2])
        assert (parameter.grad[is_used] != 0).all(), parameter_name


@pytest.mark.parametrize("name", GUIDES)
def test_a_fresh_guide_loads_a_state_and_draws_the_same(name):
    model, _, _ = small_model()
    torch.manual_seed(1)
    trained = GUIDES[name](model)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    fresh = GUIDES[name](model)
    assert list(fresh.parameters())
    fresh.load_state_dict(trained.state_dict())
    draws = []
    for guide in (trained, fresh):
        torch.manual_seed(5)
        with pb._core.scope.own_parameters(guide):
            draws.append(draw_of(guide))
    for site in draws[0]:
        assert torch.equal(draws[0][site], draws[1][site])


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))], ids=["copy", "pickle"])
def test_copies_draw_the_same(name, duplicate):
    model, _, _ = small_model(likelihood="gaussian-latent")
    guide = GUIDES[name](model)
    draws = []
    for g in (guide, duplicate(guide)):
        torch.manual_seed(5)
        with pb._core.scope.own_parameters(g):
            draws.append(draw_of(g))
    for site in draws[0]:
        assert torch.equal(draws[0][site], draws[1][site])


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["by Pyro", "one by one", "together, as on a GPU"])
def test_draws_have_the_stated_locations_scales_and_quantiles(way, monkeypatch):
    monkeypatch.setattr(_mean_field, "reads_wait", lambda device: way.startswith("together"))
    model, _, _ = small_model(likelihood="gaussian-latent")
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit(loc_scale=1.0, rho=-1.0, rho_scale=0.5))
    draws = [draw_of(guide) for _ in range(800)] if way == "by Pyro" else list(guide.draws(800))
    weights = torch.stack([draw["net.0.weight"] for draw in draws])
    loc, scale = guide.locations()["net.0.weight"], guide.scales()["net.0.weight"]
    assert agrees_in_mean(weights, loc)
    assert agrees_in_mean((weights - loc).square(), scale.square())
    assert not agrees_in_mean((weights - loc).square(), 1.3 * scale.square())

    noise = torch.stack([draw["likelihood.scale"] for draw in draws])  # a constrained site
    quantiles = guide.quantiles([0.1, 0.5, 0.9])
    assert quantiles["net.0.weight"].shape == (3, 5, 4)
    for level, value in zip((0.1, 0.5, 0.9), quantiles["likelihood.scale"], strict=True):
        error = math.sqrt(level * (1 - level) / len(draws))
        assert abs(float((noise < value).double().mean()) - level) < STANDARD_ERRORS * error
    assert_identical(guide.median()["likelihood.scale"], quantiles["likelihood.scale"][1])


@pytest.mark.parametrize("prior", ["normal", "fan-in", "laplace"])
def test_mean_field_elbo_uses_closed_form_divergences(prior):
    """A pure KL (no data term) then has no Monte Carlo error; with AutoNormal there is an error (trap 1)."""
    model, _x, _ = small_model(prior=PRIORS[prior])
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit())

    def kls(g):
        return torch.tensor([TraceMeanField_ELBO().loss(lambda: model.sample_latents(), g) for _ in range(20)])

    values = kls(guide)
    exact = 0.0
    for name in model.site_names:
        q = dist.Normal(guide.locations()[name], guide.scales()[name])
        layer = model.net.get_submodule(name.removeprefix("net.").rpartition(".")[0])
        p = PRIORS[prior](name, model.initial_value(name), layer).base_dist
        exact = exact + kl_divergence(q, p).sum()
    assert_identical(values, exact.detach().expand(20))
    auto = pb.auto_guide(AutoNormal, model)
    with pb._core.scope.own_parameters(auto):
        assert kls(auto).std() > 0.1


@pytest.mark.daily("normal-poisson", "mixture-*")
@PRIORS_AND_LIKELIHOODS
def test_both_elbos_agree_for_every_prior_and_likelihood(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    losses = [
        torch.tensor([elbo().loss(model, guide, x, y) for _ in range(100)])
        for elbo in (Trace_ELBO, TraceMeanField_ELBO)
    ]
    error = math.sqrt(sum(float(loss.var()) / 100 for loss in losses))
    assert abs(float(losses[0].mean() - losses[1].mean())) < STANDARD_ERRORS * error


@pytest.mark.nightly
def test_a_constrained_latent_keeps_its_jacobian_under_both_elbos():
    """LogNormal(0, 1) prior, q = LogNormal(1, s): KL is that of the Gaussians. AutoNormal loses the Jacobian."""

    def model():
        pyro.sample("scale", dist.LogNormal(0.0, 1.0))

    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.scale.fill_(1.0)
        guide.rho.scale.fill_(math.log(math.expm1(0.5)))
    exact = float(kl_divergence(dist.Normal(1.0, 0.5), dist.Normal(0.0, 1.0)))
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        losses = torch.tensor([elbo().loss(model, guide) for _ in range(4000)])
        assert agrees_in_mean(losses, exact)
        assert not agrees_in_mean(losses, exact + 1.0)  # what is missing without the Jacobian: E[log scale]


@pytest.mark.nightly
def test_several_particles_have_the_same_mean():
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    one = torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(200)])
    four = torch.tensor([Trace_ELBO(num_particles=4).loss(model, guide, x, y) for _ in range(50)])
    assert abs(float(one.mean() - four.mean())) < STANDARD_ERRORS * math.sqrt(float(one.var() / 200 + four.var() / 50))
    assert float(four.var()) < 0.6 * float(one.var())


# --- initialisation ---------------------------------------------------------------------------------------------------


def big_model():
    return pb.BayesianModel(
        nn.Linear(200, 100), prior=pb.NormalPrior(0.5), likelihood=pb.GaussianLikelihood(1.0), num_data=10
    )


def test_uniform_init_has_the_articles_ranges():
    guide = pb.MeanFieldGuide(big_model(), init=UniformInit())
    loc, rho = guide.loc.net.weight.detach(), guide.rho.net.weight.detach()
    for value, low, high in ((loc, -0.2, 0.2), (rho, -5.0, -4.0)):
        assert low <= float(value.min()) < low + 0.001
        assert high - 0.001 < float(value.max()) <= high


def test_normal_init_has_the_tutorials_moments():
    guide = pb.MeanFieldGuide(big_model(), init=pb.NormalInit(rho_scale=0.1))
    loc, rho = guide.loc.net.weight.detach().flatten(), guide.rho.net.weight.detach().flatten()
    assert agrees_in_mean(loc, 0.0)
    assert agrees_in_mean(loc.square(), 0.01)
    assert agrees_in_mean(rho, -3.0)
    assert agrees_in_mean((rho + 3).square(), 0.01)
    exact = pb.MeanFieldGuide(big_model(), init=pb.NormalInit())
    assert (exact.rho.net.weight == -3.0).all()


def test_network_init_is_centred_on_pretrained_weights():
    model = big_model()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02))
    assert_identical(guide.median()["net.weight"], model.initial_value("net.weight"))
    assert_identical(guide.scales()["net.weight"], torch.full((100, 200), 0.02))
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=0.1))
    assert_identical(guide.scales()["net.weight"], torch.full((100, 200), 0.05))


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 50.0])
def test_initial_scales_are_exact_from_tiny_to_huge(scale):
    guide = pb.MeanFieldGuide(big_model(), init=pb.NetworkInit(scale=scale))
    torch.testing.assert_close(guide.scales()["net.bias"], torch.full((100,), scale), rtol=1e-8, atol=0)


# --- other people's models --------------------------------------------------------------------------------------------


@pytest.mark.uses_param_store
def test_guides_a_users_own_pyro_model_with_plates_and_simplexes():
    def model(data):
        with pyro.plate("groups", 3):
            centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", len(data)):
            pyro.sample("obs", dist.Normal((weights * centre).sum(), 1.0), obs=data)

    data = torch.full((8,), 2.0)
    guide = pb.MeanFieldGuide(model, data)
    draw = draw_of(guide, data)
    assert draw["centre"].shape == (3,)
    assert_identical(draw["weights"].sum().detach(), 1.0)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step(data) for _ in range(300)]
    assert sum(losses[-50:]) < sum(losses[:50])
    assert dict(pyro.get_param_store()) == {}


def test_local_and_discrete_latents_are_refused_with_a_reason():
    def local(data):
        with pyro.plate("data", 100, subsample=torch.arange(len(data))):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Normal(z, 1.0), obs=data)

    def discrete(data):
        pyro.sample("k", dist.Categorical(torch.ones(2)))

    with pytest.raises(ValueError, match="`z` has one value per row of the subsampled plate `data`"):
        pb.MeanFieldGuide(local, torch.zeros(5))
    with pytest.raises(ValueError, match="latent variables must be continuous, but `k`"):
        pb.MeanFieldGuide(discrete, torch.zeros(5))
    with pytest.raises(ValueError, match="no latent variable"):
        pb.MeanFieldGuide(lambda: None)


# --- Pyro's autoguides built safely -----------------------------------------------------------------------------------


def low_rank(model, **kwargs):
    return pb.LowRankGuide(model, rank=2, **kwargs)


INITS = [
    UniformInit(),
    pb.NormalInit(rho_scale=0.1),
    pb.NetworkInit(scale=0.02),
    pb.NetworkInit(prior_fraction=0.1),
]


@pytest.mark.parametrize("likelihood", ["gaussian-latent", "gaussian-latent-vector"])
@pytest.mark.parametrize("init", INITS, ids=lambda init: type(init).__name__)
@pytest.mark.parametrize(
    "make",
    [pb.DeltaGuide, low_rank, *(functools.partial(pb.auto_guide, kind) for kind in KINDS)],
    ids=["point", "low rank", *(kind.__name__ for kind in KINDS)],
)
def test_other_guides_start_where_the_mean_field_guide_starts(make, init, likelihood):
    model, _, _ = small_model(likelihood=likelihood)
    torch.manual_seed(0)
    ours = pb.MeanFieldGuide(model, init=init)
    torch.manual_seed(0)
    theirs = make(model, init=init)
    for name in model.latent_names:
        assert_identical(pb.GuidePosterior(theirs).median()[name], ours.median()[name])
        if make is not pb.DeltaGuide:
            assert_identical(theirs.quantiles([0.2, 0.8])[name], ours.quantiles([0.2, 0.8])[name])


def test_the_low_rank_guide_has_the_rank_it_was_given():
    model, _, _ = small_model()  # 43 weights
    assert pb.auto_guide(AutoLowRankMultivariateNormal, model, rank=5).cov_factor.shape == (43, 5)
    assert pb.auto_guide(AutoLowRankMultivariateNormal, model).cov_factor.shape == (43, 7)  # about the square root
    for rank, message in ((44, "at most the number of latent numbers, 43, got 44"), (0, "at least 1, got 0")):
        with pytest.raises(ValueError, match=message):
            pb.auto_guide(AutoLowRankMultivariateNormal, model, rank=rank)
    with pytest.raises(ValueError, match="`init` must be an Init"):
        pb.DeltaGuide(model, init=0.1)


def test_posterior_median_needs_a_guide_that_has_one():
    with pytest.raises(ValueError, match=r"has no `median\(\)`"):
        pb.GuidePosterior(lambda: None).median()


# --- found by trying to break it --------------------------------------------------------------------------------------


def test_several_latents_may_share_a_plate():
    def model():
        with pyro.plate("a", 4):
            pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("s", dist.Gamma(2.0, 2.0))

    draw = draw_of(pb.MeanFieldGuide(model))
    assert draw["z"].shape == draw["s"].shape == (4,)


def test_site_names_that_no_parameter_can_have():
    def model():
        pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("w.bias", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"cannot name a parameter after the site `w.bias`.*rename the site"):
        pb.MeanFieldGuide(model)


@pytest.mark.parametrize("name", [name for name in GUIDES if name not in ("uniform", "normal")])
def test_building_a_guide_from_the_network_moves_no_generator(name):
    model, _, _ = small_model(likelihood="gaussian-latent")
    state = torch.get_rng_state()
    GUIDES[name](model)
    assert torch.equal(torch.get_rng_state(), state)
