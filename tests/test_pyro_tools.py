"""Pyro's own tools run on a model unchanged."""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch.func import functional_call

import pyro_bnn as pb

from .cases import LIKELIHOODS, PRIORS, small_model, small_net
from .tolerances import assert_identical


@pytest.mark.daily("AutoNormal-*", "*-categorical")
@pytest.mark.uses_param_store
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("autoguide", [AutoNormal, AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal])
def test_pyros_autoguides_and_svi_run_on_the_model(autoguide, likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = autoguide(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert all(math.isfinite(svi.step(x, y)) for _ in range(3))
    samples = Predictive(model, guide=guide, num_samples=3)(x)
    assert samples["obs"].squeeze().shape == torch.Size([3, *y.squeeze().shape])


@pytest.mark.daily("categorical")
@pytest.mark.uses_param_store
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian-fixed", "poisson"])
def test_pyros_laplace_approximation_runs_at_the_mode(likelihood):
    model, x, y = small_model(likelihood=likelihood, num_data=6, prior=pb.NormalPrior(0.3))  # one mode
    guide = AutoLaplaceApproximation(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(200):
        svi.step(x, y)
    prediction = pb.predict(model, guide.laplace_approximation(x, y), x, y=y, num_samples=10)
    assert math.isfinite(prediction.nll)


@pytest.mark.uses_param_store
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive_gives_one_network_per_draw_in_parallel_too(likelihood, parallel):
    model, x, y = small_model(likelihood=likelihood)
    guide = pb.MeanFieldGuide(model)
    samples = Predictive(model, guide=guide, num_samples=7, parallel=parallel)(x)
    assert samples["obs"].shape == (7, *y.shape)
    assert samples["net.0.weight"].squeeze(1).shape == (7, 5, 4)
    prior = Predictive(model, num_samples=7, parallel=parallel)(x)
    assert prior["obs"].shape == (7, *y.shape)


@pytest.mark.daily("Trace_ELBO-gaussian-latent")  # the other one in `test_hierarchical.py`
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_vectorised_particles_estimate_the_same_elbo(likelihood, elbo):
    model, x, y = small_model(likelihood=likelihood)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    one = torch.tensor([elbo().loss(model, guide, x, y) for _ in range(150)])
    vectorised = elbo(num_particles=150, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    pair_error = one.std() * math.sqrt(2 / 150)
    assert abs(float(vectorised) - float(one.mean())) < 5 * float(pair_error) + 1e-9


def test_every_row_of_a_vectorised_draw_uses_its_own_weights():
    model, x, _ = small_model()
    draws = Predictive(model, num_samples=4, parallel=True)(x)
    weights = {name: draws[name].squeeze(1) if draws[name].dim() > 3 else draws[name] for name in model.site_names}
    lead = {name: value.reshape(4, *model.initial_value(name).shape) for name, value in weights.items()}
    with pyro.plate("particles", 4, dim=-2), poutine.condition(data={n: v.unsqueeze(1) for n, v in lead.items()}):
        outputs = model(x)
    for index in range(4):
        single = {name.removeprefix("net."): value[index] for name, value in lead.items()}
        assert_identical(outputs[index], functional_call(small_net(), single, (x,)))


@pytest.mark.parametrize("prior", ["normal", "mixture"])
def test_nuts_runs_on_the_same_model_with_a_latent_noise_scale(prior):
    model, x, y = small_model(prior=PRIORS[prior], likelihood="gaussian-latent", num_data=6)
    mcmc = MCMC(NUTS(model, max_tree_depth=4), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(x, y)
    samples = mcmc.get_samples()
    assert set(samples) == {*model.site_names, "likelihood.scale"}
    assert (samples["likelihood.scale"] > 0).all()


def test_the_weights_are_drawn_once_and_not_per_data_point():
    model, x, y = small_model()
    trace = poutine.trace(model).get_trace(x, y)
    for name in model.site_names:
        assert trace.nodes[name]["cond_indep_stack"] == ()
        assert trace.nodes[name]["value"].shape == model.initial_value(name).shape


def test_no_indices_of_the_data_set_are_drawn():
    """A plate with `subsample_size` would permute all of `num_data` and move the generator with it."""
    states = []
    for num_data in (6, 60_000_000):
        model, x, y = small_model(num_data=num_data)
        torch.manual_seed(1)
        model(x, y)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_partly_random_model_leaves_the_parameter_store_alone():
    model, x, y = small_model(where="**.weight")
    model(x, y)
    pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=2)
    assert dict(pyro.get_param_store()) == {}


@pytest.mark.parametrize("likelihood", ["gaussian-latent", "gaussian-latent-vector"])
def test_vectorised_noise_with_fixed_weights_belongs_to_draws_not_to_rows(likelihood):
    model, x, _ = small_model(likelihood=likelihood)
    weights = {name: model.initial_value(name) for name in model.site_names}
    scales = torch.tensor([1e-6, 1.0, 1e3])
    shape = (3, 1) if likelihood == "gaussian-latent" else (3, 1, 2)
    noise = scales.reshape(3, *[1] * (len(shape) - 1)).expand(shape)
    with pyro.plate("particles", 3, dim=-2):
        trace = poutine.trace(poutine.condition(model, data={**weights, "likelihood.scale": noise})).get_trace(x)
    assert_identical(trace.nodes["obs"]["fn"].base_dist.scale, scales.reshape(3, 1, 1).expand(3, 6, 2))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")
def test_nuts_can_compile_the_model():
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    kernel = NUTS(model, max_tree_depth=3, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(kernel, num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run(x, y)
    assert mcmc.get_samples()["net.0.weight"].shape == (3, 5, 4)
