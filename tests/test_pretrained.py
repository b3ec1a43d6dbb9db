"""Guides that start at a given network: scales by weight, priors around the weights, capped scales, frozen means."""

import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.distributions import kl_divergence

import pyro_bnn as pb
from pyro_bnn.inference.scale_maps import Capped, Softplus

from .cases import small_model, small_net
from .fits import assert_same, fit_both, problem
from .tolerances import SINGLE, agrees_in_mean, assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.05)
CAP = 0.1


def small(**kwargs):
    return small_model(num_data=6, **kwargs)


# --- the start and the prior of MOPED ---------------------------------------------------------------------------------


def test_scales_start_at_a_fraction_of_each_weight_and_zeros_at_the_smallest():
    net = small_net()
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([0.0, -0.0, 2.0, -3.0, 1e-9]))
    model, _, _ = small(net=net, likelihood="gaussian-latent")
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(weight_fraction=0.2, smallest=1e-3))
    assert_identical(guide.scales()["net.0.bias"], torch.tensor([1e-3, 1e-3, 0.4, 0.6, 1e-3]))
    for name in model.site_names:
        weight = dict(net.named_parameters())[name.removeprefix("net.")].detach()
        assert torch.equal(guide.locations()[name], weight)
        assert_identical(guide.scales()[name], (0.2 * weight.abs()).clamp(min=1e-3))
    assert_identical(guide.scales()["likelihood.scale"], torch.tensor(0.01))  # not a weight, and not a real variable


@pytest.mark.parametrize(
    "options", [{"weight_fraction": 0.0}, {"smallest": 0.0}, {"weight_fraction": 0.1, "prior_fraction": 0.1}], ids=str
)
def test_bad_fractions_are_refused(options):
    with pytest.raises(ValueError, match=r"must be .*above 0|must be positive|leave one of them out"):
        pb.NetworkInit(**options)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_the_divergence_from_a_prior_around_the_network_is_that_of_its_gaussians(elbo):
    net = small_net()
    model, x, y = small(net=net, prior=pb.NetworkNormalPrior(0.5))
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(weight_fraction=0.2))
    with torch.no_grad():
        for parameter in guide.loc.parameters():
            parameter.add_(torch.randn_like(parameter))
    exact = 0.0
    for name, weight in net.named_parameters():
        q = dist.Normal(guide.locations()[f"net.{name}"], guide.scales()[f"net.{name}"])
        exact += float(kl_divergence(q, dist.Normal(weight.detach(), 0.5)).sum())
    still = functools.partial(torch.optim.SGD, lr=0.0)
    with pb.svi_step(model, guide, still, elbo=elbo()) as step:
        kl = torch.tensor([step(x, y).kl for _ in range(1 if elbo is TraceMeanField_ELBO else 100)])
    if elbo is TraceMeanField_ELBO:
        assert_identical(kl[0], exact)
    else:
        assert agrees_in_mean(kl, exact)
        assert not agrees_in_mean(kl, 1.1 * exact)


def test_a_prior_around_the_network_keeps_the_means_that_it_was_built_with():
    net = small_net()
    weight = net[0].weight.detach().clone()
    model, _, _ = small(net=net, prior=pb.PriorByName({"**": pb.NetworkNormalPrior()}))
    with torch.no_grad():
        net[0].weight.zero_()  # the caller's own
    assert_identical(model.prior_of("net.0.weight").mean, weight)
    in_single = model.float().prior_of("net.0.weight").mean
    assert in_single.dtype == torch.float32
    torch.testing.assert_close(in_single.double(), weight, **SINGLE)


def test_a_prior_around_the_network_takes_no_memory_of_its_own():
    model, _, _ = small(prior=pb.NetworkNormalPrior())
    prior = model.prior_of("net.0.weight").base_dist
    assert prior.loc.data_ptr() == model.initial_value("net.0.weight").data_ptr()


# --- frozen means -----------------------------------------------------------------------------------------------------

FROZEN = functools.partial(pb.MeanFieldGuide, learn_locations=False)


@pytest.mark.parametrize(
    ("path", "estimator"),
    [("direct", None), ("pyro", None), ("direct", pb.LocalReparameterization()), ("direct", pb.Flipout())],
    ids=["direct", "pyro", "lrt", "flipout"],
)
def test_frozen_means_do_not_move_and_scales_do(path, estimator):
    model, x, y = small()
    optimizer = functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1)
    for make, is_learned in ((FROZEN, False), (pb.MeanFieldGuide, True)):
        guide = make(model)
        if path == "pyro":
            guide.register_forward_hook(lambda *_: None)
        before = {name: value.clone() for name, value in guide.state_dict().items()}
        history = pb.fit_svi(model, (x, y), guide, optimizer=optimizer, num_epochs=5, estimator=estimator).history
        assert history.path.startswith(path)
        for name, value in guide.state_dict().items():
            assert torch.equal(value, before[name]) == (name.startswith("loc.") and not is_learned), name
    assert "43 locations frozen" in repr(FROZEN(model))


def test_natural_gradient_does_not_move_frozen_means_silently():
    model, x, y = small()
    guide = FROZEN(model, scale_map=pb.scale_maps.Precision())
    with pytest.raises(ValueError, match="updates all parameters of a guide, got a guide with frozen ones"):
        pb.fit_svi(model, (x, y), guide, optimizer=pb.optim.natural_gradient(lr=0.1), num_epochs=1)


@pytest.mark.uses_param_store
@pytest.mark.parametrize("is_learned", [False, True])
def test_frozen_means_stay_in_a_loop_of_pyro_with_weight_decay(is_learned):
    model, x, y = small()
    guide = pb.MeanFieldGuide(model, learn_locations=is_learned)
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    svi = SVI(model, guide, pyro.optim.AdamW({"lr": 0.05, "weight_decay": 0.1}), Trace_ELBO())
    for _ in range(3):
        svi.step(x, y)
    for name, value in guide.state_dict().items():
        assert torch.equal(value, before[name]) == (name.startswith("loc.") and not is_learned), name


def partly_frozen(model):
    guide = pb.MeanFieldGuide(model)
    guide.loc.get_submodule("net.0").requires_grad_(False)
    guide.rho.get_parameter("net.2.bias").requires_grad_(False)
    return guide


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("make", [FROZEN, partly_frozen], ids=["frozen", "partly"])
def test_both_paths_agree_on_frozen_parameters(monkeypatch, make, elbo):
    found = fit_both(monkeypatch, problem("mixture", "gaussian-latent", make_guide=make), elbo=elbo(num_particles=2))
    assert_same(found)
    for _, parameters in found:
        assert {p.grad is None for p in parameters.values() if not p.requires_grad} == {True}


def test_scales_have_the_gradients_that_they_have_beside_learned_means():
    model, x, y = small()
    gradients = []
    for make in (FROZEN, pb.MeanFieldGuide):
        guide = make(model, init=pb.NetworkInit(weight_fraction=0.3))
        torch.manual_seed(2)
        with pb.svi_step(model, guide, functools.partial(torch.optim.SGD, lr=0.0)) as step:
            step(x, y)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in guide.rho.parameters()]))
    assert_identical(*gradients)
    assert bool((gradients[0] != 0).all())


def test_beside_frozen_means_the_optimal_variance_is_that_of_the_conjugate_posterior():
    """Bayesian linear regression: the optimum is 1 / Lambda_ii wherever the means are."""
    x, noise, scale = torch.randn(30, 3), 0.5, 0.7
    y = torch.randn(30, 1)
    precision = x.square().sum(0) / noise**2 + 1 / scale**2
    net = nn.Linear(3, 1, bias=False)
    likelihood = pb.GaussianLikelihood(noise)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(scale), likelihood=likelihood, num_data=30)
    for factor, is_optimal in ((1.0, True), (2.0, False)):
        guide = FROZEN(model)
        with torch.no_grad():
            guide.rho.net.weight.copy_(Softplus().inverse(factor * precision.rsqrt()))
        still = functools.partial(torch.optim.SGD, lr=0.0)
        with pb.svi_step(model, guide, still, elbo=TraceMeanField_ELBO()) as step:
            gradients = []
            for _ in range(300):
                step(x, y)
                gradients.append(guide.rho.net.weight.grad.clone())
        assert agrees_in_mean(torch.stack(gradients), 0.0) == is_optimal


# --- capped scales ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cap", [1e-3, 0.1, 7.0])
def test_no_parameter_gives_a_scale_above_the_cap(cap, dtype):
    parameter = torch.cat([torch.linspace(-60, 60, 1001), torch.logspace(1, 12, 1001)]).to(dtype).requires_grad_()
    scale = Capped(cap)(parameter)
    assert bool((scale <= torch.tensor(cap, dtype=dtype)).all())
    assert bool((Softplus()(parameter) > cap).any())  # it would go beyond
    (gradient,) = torch.autograd.grad(scale.sum(), parameter)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[:500] > 0).all())
    out = torch.empty_like(parameter)
    Capped(cap).write(parameter.detach(), out, parameter.new_empty(2, len(parameter)))
    assert bool((out <= torch.tensor(cap, dtype=dtype)).all())
    torch.testing.assert_close(out, scale.detach(), rtol=1e-5 if dtype == torch.float32 else 1e-8, atol=0)


def test_the_slope_near_the_cap_is_that_of_autograd():
    parameter = torch.linspace(-8, 6, 501).requires_grad_()
    scale = Capped(CAP)(parameter)
    (expected,) = torch.autograd.grad(scale.sum(), parameter)
    for cap, is_right in ((CAP, True), (1.01 * CAP, False)):
        out = Capped(cap).slope(parameter.detach(), scale.detach(), torch.empty(501))
        assert torch.allclose(out, expected, rtol=1e-9, atol=0) == is_right


@pytest.mark.parametrize("make", [pb.MeanFieldGuide, functools.partial(pb.LowRankGuide, rank=2)], ids=["mean", "low"])
def test_first_scales_beyond_the_cap_start_below_it(make):
    model, _, _ = small()
    guide = make(model, init=pb.NetworkInit(scale=5.0), scale_map=Capped(CAP))
    own = torch.cat([Capped(CAP)(rho).flatten() for rho in guide.capped_rho.parameters()])
    assert_identical(own.detach(), torch.full_like(own, 0.9 * CAP).detach())
    with pytest.raises(ValueError, match=r"`scale` must be below `max_scale` 0.1, got 0.1"):
        Capped(CAP).inverse(torch.tensor(CAP))


@pytest.mark.filterwarnings("ignore::pyro_bnn.PosteriorWarning")  # a heavy KL weight leaves weights at the prior
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_scales_stay_below_the_cap_in_a_fit_by_either_path_and_come_down_from_it(monkeypatch, elbo):
    def make(model):
        return pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=5.0), scale_map=Capped(CAP))

    assert_same(fit_both(monkeypatch, problem(make_guide=make), elbo=elbo()))
    model, x, y = small(prior=pb.NormalPrior(1.0))
    for scale_map, is_below in ((Capped(CAP), True), (Softplus(), False)):
        guide = pb.MeanFieldGuide(model, scale_map=scale_map)
        options = {"optimizer": functools.partial(torch.optim.Adam, lr=0.5), "elbo": elbo(), "seed": 0}
        pb.fit_svi(model, (x, y), guide, num_epochs=40, kl_weight=30.0, **options)  # the prior's scale is above the cap
        assert (max(float(scale.max()) for scale in guide.scales().values()) <= CAP) == is_below
    narrow, x, y = small(prior=pb.NormalPrior(0.02))
    guide = make(narrow)
    pb.fit_svi(narrow, (x, y), guide, optimizer=ADAM, num_epochs=150, kl_weight=30.0, elbo=elbo(), seed=0)
    assert float(guide.scales()["net.0.weight"].mean()) < 0.4 * CAP


def test_the_divergence_of_a_capped_guide_is_that_of_its_gaussians():
    model, x, y = small()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=5.0), scale_map=Capped(CAP))
    exact = sum(
        float(kl_divergence(dist.Normal(guide.locations()[name], guide.scales()[name]), dist.Normal(0.0, 0.7)).sum())
        for name in model.site_names
    )
    still = functools.partial(torch.optim.SGD, lr=0.0)
    with pb.svi_step(model, guide, still, elbo=TraceMeanField_ELBO()) as step:
        assert_identical(step(x, y).kl, exact)
    assert_identical(TraceMeanField_ELBO().loss(lambda: model.sample_latents(), guide), exact)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_holds_the_cap_and_what_is_frozen(tmp_path):
    model, x, y = small(prior=pb.NetworkNormalPrior(0.5))
    guide = pb.MeanFieldGuide(model, scale_map=Capped(CAP), learn_locations=False)
    posterior = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=2, seed=0)
    pb.save_posterior(posterior, tmp_path / "fit.pt", model)
    loaded = pb.load_posterior(tmp_path / "fit.pt", model).guide
    assert loaded.scale_map == Capped(CAP)
    assert {name for name, p in loaded.named_parameters() if not p.requires_grad} == {
        f"loc.{name}" for name in model.site_names
    }
    for name, scale in guide.scales().items():
        assert torch.equal(loaded.scales()[name], scale)
    with pytest.raises(
        ValueError, match=r"its scale map is Capped\(max_scale=0.1\), but `guide` has Capped\(max_scale"
    ):
        pb.load_posterior(tmp_path / "fit.pt", model, guide=pb.MeanFieldGuide(model, scale_map=Capped(2 * CAP)))


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_file_holds_the_means_of_a_prior_around_the_network(tmp_path, is_pruned):
    model, x, y = small(prior=pb.NetworkNormalPrior(0.5))
    posterior = pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=2, seed=0)
    if is_pruned:
        posterior = pb.pruning.prune(posterior, fraction=0.4)
    pb.save_posterior(posterior, tmp_path / "fit", model)
    other, _, _ = small(prior=pb.NetworkNormalPrior(0.5))  # of a network with other weights
    loaded = pb.load_posterior(tmp_path / "fit", other)
    for name in model.site_names:
        assert torch.equal(other.prior_of(name).mean, model.prior_of(name).mean)
        assert torch.equal(loaded.median()[name], posterior.median()[name])
    narrower, _, _ = small(prior=pb.NetworkNormalPrior(0.4))
    with pytest.raises(ValueError, match=r"is Normal\(loc=the network's, scale=0.5\) in the file"):
        pb.load_posterior(tmp_path / "fit", narrower)


def test_a_start_at_a_pretrained_network_is_as_good_as_the_network():
    """The initial ELBO is far above that of a fit that starts at small random weights."""
    digits = pb.data.load_images("digits")
    x, y = digits.x_train[:300].double(), digits.y_train[:300]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(net, prior=pb.NetworkNormalPrior(1.0), likelihood=likelihood, num_data=300)
    scores = []
    for init in (pb.NetworkInit(weight_fraction=0.1), pb.NormalInit()):
        guide = pb.MeanFieldGuide(model, init=init)
        probs = pb.predict(model, guide, x, num_samples=20, seed=0).probs
        scores.append(float(pb.metrics.negative_log_likelihood(probs, y)))
    assert scores[0] < 0.3 < math.log(10) - 0.3 < scores[1]
