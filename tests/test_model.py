import copy
import math
import pickle

import pyro
import pyro.distributions as dist
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
from pyro.nn import PyroModule
from torch import nn
from torch.func import functional_call

import pyro_bnn as pb

from .cases import LIKELIHOODS, PRIORS, small_model, small_net
from .tolerances import agrees_in_mean, assert_identical


def log_joint(model, *args):
    trace = poutine.trace(model).get_trace(*args)
    return trace, trace.log_prob_sum()


# --- what the model is ------------------------------------------------------------------------------------------------


def test_is_a_pyro_module_with_one_site_per_parameter_under_its_module_path():
    model, x, y = small_model()
    trace = poutine.trace(model).get_trace(x, y)
    assert isinstance(model, PyroModule)
    assert trace.stochastic_nodes == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias", "data"]
    assert trace.observation_nodes == ["obs"]
    assert model.site_names == ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    assert list(model.parameters()) == []


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_joint_density_is_prior_plus_scaled_likelihood(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood, num_data=30)
    trace, total = log_joint(model, x, y)
    draw = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes if name != "data"}
    weights = {name.removeprefix("net."): value for name, value in draw.items() if name.startswith("net.")}
    expected = sum(trace.nodes[name]["fn"].log_prob(value).sum() for name, value in draw.items())
    output = functional_call(small_net(LIKELIHOODS[likelihood][1]), weights, (x,))
    with poutine.condition(data=draw), poutine.block():
        observation = (
            model.likelihood(output)
            if "likelihood.scale" not in draw
            else dist.Normal(output, draw["likelihood.scale"])
        )
    expected = expected + 30 / 6 * observation.log_prob(y).sum()
    assert_identical(total, expected)


def test_likelihood_densities_are_those_of_the_textbook():
    output, y = torch.randn(5, 4), torch.randn(5, 2)
    two_heads = pb.HeteroscedasticGaussianLikelihood()(output)
    assert_identical(two_heads.log_prob(y), dist.Normal(output[:, :2], output[:, 2:].exp().sqrt()).log_prob(y))
    assert_identical(pb.GaussianLikelihood()(output).scale, torch.ones(5, 4))
    assert_identical(pb.GaussianLikelihood(0.5)(output).scale, torch.full((5, 4), 0.5))
    assert_identical(pb.PoissonLikelihood()(output).rate, output.exp())
    assert_identical(pb.BernoulliLikelihood()(output).mean, output.sigmoid())
    assert_identical(pb.CategoricalLikelihood()(output).probs, output.softmax(-1))


def test_minibatches_have_the_whole_data_sets_density_on_average():
    model, _, _ = small_model(num_data=12)
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    draw = {name: model.initial_value(name) for name in model.site_names}

    def observed(rows):
        trace = poutine.trace(poutine.condition(model, data=draw)).get_trace(x[rows], y[rows])
        trace.compute_log_prob()
        return trace.nodes["obs"]["log_prob_sum"]

    batches = torch.stack([observed(rows) for rows in torch.randperm(12).split(3)])
    assert_identical(batches.mean(), observed(torch.arange(12)))


def test_the_callers_network_and_likelihood_are_never_changed():
    net, likelihood = small_net(), pb.GaussianLikelihood()
    before = copy.deepcopy(net.state_dict())
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
    guide = pb.MeanFieldGuide(model)
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    pb.fit_svi(model, guide, (x, y), optimizer=lambda p: torch.optim.SGD(p, lr=1e-3), num_epochs=2)
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert float(likelihood.noise_scale().detach()) == pytest.approx(1.0)


# --- which parameters are random --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "random"),
    [
        ("**", {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}),
        ("net.*.weight", {"net.0.weight", "net.2.weight"}),
        (["net.2.*"], {"net.2.weight", "net.2.bias"}),
        (["net.0.weight", "**.bias"], {"net.0.weight", "net.0.bias", "net.2.bias"}),
    ],
)
def test_globs_choose_the_random_parameters_and_the_rest_learn(where, random):
    model, x, y = small_model(where=where)
    assert set(model.site_names) == random
    everything = {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    assert {name for name, _ in model.named_parameters()} == everything - random
    guide = pb.MeanFieldGuide(model)
    Trace_ELBO().differentiable_loss(model, guide, x, y).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in [*model.parameters(), *guide.parameters()])


def test_a_glob_without_a_match_lists_the_names():
    with pytest.raises(ValueError, match=r"glob 'net.\*.wieght' matches none .*net.0.weight"):
        small_model(where=["**.bias", "net.*.wieght"])


def test_tied_weights_are_one_site():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(4, 4, bias=False)
            self.decoder = nn.Linear(4, 4, bias=False)
            self.decoder.weight = self.encoder.weight

        def forward(self, x):
            return self.decoder(self.encoder(x))

    model = pb.BayesianModel(Tied(), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=2)
    model = model.double()
    x = torch.randn(2, 4)
    trace = poutine.trace(model).get_trace(x, torch.randn(2, 4))
    assert model.site_names == ("net.encoder.weight",)
    weight = trace.nodes["net.encoder.weight"]["value"]
    assert_identical(trace.nodes["_RETURN"]["value"], x @ weight.T @ weight.T)


# --- any network ------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(3, 4, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True, dropout=0.0)

    def forward(self, x):
        return self.layer(x).mean(1)


NETS = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)), (5, 1, 5, 5)),
    "batch-norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (5, 4)),
    "layer-norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)), (5, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 7, 3)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 7, 3)),
    "transformer": (Attention, (5, 7, 4)),
    "weight-norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (5, 4)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 2), nn.Flatten(), nn.Linear(6, 3)), "tokens"),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_any_network_runs_with_the_weights_that_were_drawn(name, training):
    make, shape = NETS[name]
    net = make().train(training)
    x = torch.randint(6, (5, 3)) if shape == "tokens" else torch.randn(shape)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(0.3), likelihood=pb.GaussianLikelihood(1.0), num_data=5)
    model.train(training)
    with torch.no_grad():  # eval mode and no gradients: where attention takes its fast path
        trace = poutine.trace(model).get_trace(x)
    output = trace.nodes["_RETURN"]["value"]
    plain = copy.deepcopy(net)
    with torch.no_grad():
        for path, parameter in plain.named_parameters():
            parameter.copy_(trace.nodes[f"net.{path}"]["value"])
        torch.testing.assert_close(output, plain(x))
        assert not torch.allclose(output, copy.deepcopy(net)(x))  # the draw, not the caller's weights
    guide = pb.MeanFieldGuide(model)
    Trace_ELBO().differentiable_loss(model, guide, x, torch.zeros_like(output)).backward()
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters())


def test_batch_norm_statistics_follow_the_data_in_train_mode_only():
    model, x, y = small_model(net=nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    before = model.net[0].running_mean.clone()
    model.eval()
    model(x, y)
    assert torch.equal(model.net[0].running_mean, before)
    model.train()
    model(x, y)
    assert not torch.equal(model.net[0].running_mean, before)


# --- Pyro's own tools, unchanged --------------------------------------------------------------------------------------


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


@pytest.mark.uses_param_store
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian-fixed", "poisson"])
def test_pyros_laplace_approximation_runs_at_the_mode(likelihood):
    model, x, y = small_model(likelihood=likelihood, num_data=6, prior=pb.NormalPrior(0.3))  # one mode
    guide = AutoLaplaceApproximation(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(500):
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


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_vectorised_particles_estimate_the_same_elbo(likelihood, elbo):
    model, x, y = small_model(likelihood=likelihood)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    one = torch.tensor([elbo().loss(model, guide, x, y) for _ in range(400)])
    vectorised = elbo(num_particles=400, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
    pair_error = one.std() * math.sqrt(2 / 400)
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


# --- device, dtype, copies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_everything_follows_a_change_of_dtype(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood)
    guide = pb.MeanFieldGuide(model)
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        guide.to(dtype)
        targets = y.to(dtype) if y.is_floating_point() else y
        trace = poutine.trace(model).get_trace(x.to(dtype), targets)
        assert trace.nodes["_RETURN"]["value"].dtype == dtype
        values = [trace.nodes[n]["value"] for n in trace.stochastic_nodes if n != "data"]
        assert {value.dtype for value in values} == {dtype}
        assert math.isfinite(Trace_ELBO().loss(model, guide, x.to(dtype), targets))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("prior", PRIORS)
def test_copies_behave_the_same_and_are_independent(prior, duplicate):
    model, x, y = small_model(prior=PRIORS[prior], likelihood="gaussian-learned")
    twin = duplicate(model)
    results = []
    for m in (model, twin):
        torch.manual_seed(3)
        results.append(m(x, y))
    assert torch.equal(*results)
    with torch.no_grad():
        twin.likelihood.rho += 1
    assert not torch.equal(model.likelihood.noise_scale(), twin.likelihood.noise_scale())


@pytest.mark.gpu
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_everything_follows_to_the_gpu(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood, num_data=6)
    guide = pb.MeanFieldGuide(model)
    model.cuda()
    guide.cuda()
    posterior = pb.fit_svi(
        model, guide, (x.cuda(), y.cuda()), optimizer=lambda p: torch.optim.Adam(p, lr=1e-3), num_epochs=2, seed=0
    )
    prediction = pb.predict(model, posterior, x.cuda(), y=y.cuda(), num_samples=3)
    assert math.isfinite(prediction.nll)
    with pytest.raises(ValueError, match="`x` is on cpu but the model is on cuda"):
        model(x)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_wrong_shape_of_x_names_what_the_first_layer_takes():
    model, _, y = small_model()
    with pytest.raises(ValueError, match=r"cannot take `x` of shape \(6, 5\).*Linear `0`, takes 4 features"):
        model(torch.randn(6, 5), y)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (
            "categorical",
            lambda: torch.zeros(6, 1, dtype=torch.long),
            r"expects `y` of shape \(6,\), got \(6, 1\).*squeeze",
        ),
        (
            "categorical",
            lambda: torch.zeros(5, dtype=torch.long),
            r"same number of rows, got shapes \(6, 4\) and \(5,\)",
        ),
        ("categorical", lambda: torch.tensor([0, 1, 2, 3, 0, 1]), r"lie in 0, ..., 2 .*got 0 to 3"),
        ("categorical", lambda: torch.tensor([0, 1, 2, -1, 0, 1]), r"got -1 to 2"),
        ("categorical", lambda: torch.zeros(6), r"must be integers, got torch.float64.*y.long"),
        ("gaussian-learned", lambda: torch.zeros(6), r"expects `y` of shape \(6, 1\), got \(6,\).*unsqueeze"),
        ("gaussian-learned", lambda: torch.full((6, 1), math.nan), r"`y` must be finite, got 6 NaN"),
        ("gaussian-learned", lambda: torch.zeros(6, 1, dtype=torch.long), r"must be floating point"),
        ("bernoulli", lambda: torch.full((6, 2), 0.5), r"must be 0 or 1, got 0.5 to 0.5"),
        ("poisson", lambda: torch.full((6, 1), -1.0), r"whole numbers of at least 0"),
        ("poisson", lambda: torch.full((6, 1), 1.5), r"whole numbers of at least 0"),
    ],
)
def test_wrong_targets_are_named_with_their_remedy(likelihood, y, message):
    model, x, _ = small_model(likelihood=likelihood)
    with pytest.raises(ValueError, match=message):
        model(x, y())
    with pytest.raises(ValueError, match=message):
        pb.predict(model, pb.MeanFieldGuide(model), x, y=y(), num_samples=2)


def test_a_vector_of_outputs_refuses_a_column_of_targets():
    """Broadcasting (N,) against (N, 1) would silently learn an N x N table."""
    model, x, _ = small_model(net=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), likelihood="gaussian-fixed")
    assert model(x, torch.zeros(6)).shape == (6,)
    with pytest.raises(ValueError, match=r"expects `y` of shape \(6,\), got \(6, 1\); call `y.squeeze\(-1\)`"):
        model(x, torch.zeros(6, 1))


def test_more_rows_than_num_data():
    model, x, y = small_model(num_data=5)
    with pytest.raises(ValueError, match="`num_data` is 5 but the batch has 6 rows"):
        model(x, y)


def test_dtype_mismatch_has_a_remedy():
    model, x, y = small_model()
    with pytest.raises(ValueError, match=r"`x` is torch.float32 but the network is torch.float64; call `x.to"):
        model(x.float(), y)


@pytest.mark.parametrize("num_data", [0, -3, 1.5])
def test_num_data_must_be_a_positive_whole_number(num_data):
    with pytest.raises(ValueError, match="`num_data` must be a whole number of at least 1"):
        small_model(num_data=num_data)


def test_a_prior_of_the_wrong_shape_is_refused():
    class Scalar(pb.Prior):
        def elementwise(self, name, parameter, module):
            return dist.Normal(0.0, 1.0)

        def __call__(self, name, parameter, module):
            return dist.Normal(0.0, 1.0)

    with pytest.raises(ValueError, match=r"prior of `net.0.weight` must have no batch shape and event shape \(5, 4\)"):
        small_model(prior=Scalar())


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (0.0, "`scale` must be a finite number above 0"),
        (lambda: dist.Normal(0.0, 1.0), "must live on positive numbers"),
        (lambda: dist.Gamma(torch.ones(2), 1.0), "must have no batch shape"),
        (lambda: torch.distributions.Gamma(1.0, 1.0), "one of `pyro.distributions`"),
    ],
)
def test_impossible_noise_scales(scale, message):
    with pytest.raises(ValueError, match=message):
        pb.GaussianLikelihood(scale() if callable(scale) else scale)


def test_a_network_that_changes_the_number_of_rows():
    model, x, _ = small_model(net=nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)))
    with pytest.raises(ValueError, match=r"one row per input, got output \(18,\) for x \(6, 4\)"):
        model(x)


def test_prior_draws_have_the_priors_variance():
    model, x, _ = small_model(prior=pb.NormalPrior(0.7), net=nn.Linear(4, 3, bias=False))
    outputs = torch.stack([model(x) for _ in range(3000)])
    assert agrees_in_mean(outputs.square(), 0.49 * x.square().sum(-1, keepdim=True))
    assert not agrees_in_mean(outputs.square(), 0.36 * x.square().sum(-1, keepdim=True))


# --- found by trying to break it --------------------------------------------------------------------------------------


def test_a_partly_random_model_leaves_the_parameter_store_alone():
    model, x, y = small_model(where="**.weight")
    model(x, y)
    pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=2)
    assert dict(pyro.get_param_store()) == {}


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.bool, torch.float32])
def test_yes_or_no_targets_of_any_type(dtype):
    model, x, y = small_model(likelihood="bernoulli")
    reference = log_joint(poutine.condition(model, data={n: model.initial_value(n) for n in model.site_names}), x, y)[1]
    same = log_joint(
        poutine.condition(model, data={n: model.initial_value(n) for n in model.site_names}), x, y.to(dtype)
    )[1]
    assert_identical(same, reference)
    guide = pb.MeanFieldGuide(model)
    assert pb.predict(model, guide, x, y=y.to(dtype), num_samples=3, seed=0).nll == pytest.approx(
        pb.predict(model, guide, x, y=y, num_samples=3, seed=0).nll
    )


def test_checking_targets_leaves_batch_norm_and_the_generator_alone():
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    before, state = model.net[1].running_mean.clone(), torch.get_rng_state()
    model.check_targets(x, y)
    assert torch.equal(model.net[1].running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


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


@pytest.mark.parametrize("name", NETS)
def test_vectorised_particles_run_on_any_network(name):
    make, shape = NETS[name]
    x = torch.randint(6, (5, 3)) if shape == "tokens" else torch.randn(shape)
    model = pb.BayesianModel(
        make(), prior=pb.NormalPrior(0.3), likelihood=pb.GaussianLikelihood(1.0), num_data=5
    ).eval()
    y = torch.zeros_like(model(x))
    elbo = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    guide = pb.MeanFieldGuide(model)
    elbo.differentiable_loss(model, guide, x, y).backward()
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")
def test_nuts_can_compile_the_model():
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    kernel = NUTS(model, max_tree_depth=3, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(kernel, num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run(x, y)
    assert mcmc.get_samples()["net.0.weight"].shape == (3, 5, 4)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ["lstm", "conv"])
def test_models_of_every_likelihood_can_be_pickled(name, likelihood):
    model, x, y = small_model(likelihood=likelihood)
    twin = pickle.loads(pickle.dumps(model))
    draw = {n: model.initial_value(n) for n in model.site_names}
    assert_identical(*(poutine.condition(m, data=draw)(x, y) for m in (model, twin)))
    pickle.loads(
        pickle.dumps(
            pb.BayesianModel(NETS[name][0](), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=5)
        )
    )


def test_noise_scales_are_exact_in_double_precision():
    assert float(pb.GaussianLikelihood(0.1).double().noise_scale()) == 0.1
    assert float(pb.GaussianLikelihood().noise_scale().detach()) == pytest.approx(1.0, rel=1e-15)


def test_tied_weights_answer_to_every_name():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = nn.Sequential(first, second)
    model = pb.BayesianModel(
        net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=2, where="net.1.weight"
    )
    assert model.site_names == ("net.0.weight",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": []}, "`where` is empty"),
        ({"net": lambda x: x}, "`net` must be a torch.nn.Module, got function"),
        ({"prior": 1.0}, "`prior` must be a Prior, such as NormalPrior"),
        ({"likelihood": pb.CategoricalLikelihood}, "`likelihood` must be a Likelihood.* got the class CategoricalLike"),
    ],
)
def test_arguments_of_the_wrong_kind(change, message):
    arguments = {
        "net": small_net(),
        "prior": pb.NormalPrior(),
        "likelihood": pb.CategoricalLikelihood(),
        "num_data": 6,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        pb.BayesianModel(arguments.pop("net"), **arguments)


def test_inputs_and_outputs_of_the_wrong_kind():
    model, x, _ = small_model()
    with pytest.raises(ValueError, match="`x` must be a tensor, got ndarray"):
        model(x.numpy())
    recurrent = pb.BayesianModel(
        nn.LSTM(3, 4, batch_first=True), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=5
    )
    with pytest.raises(ValueError, match="must return one tensor, got tuple"):
        recurrent(torch.randn(5, 7, 3))
