"""What a model is, and which parameters are random."""

import copy
import math
import pickle

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import nn
from torch.func import functional_call

import pyro_bnn as pb

from .cases import LIKELIHOODS, PRIORS, PRIORS_AND_LIKELIHOODS, log_joint, small_model, small_net
from .tolerances import assert_identical

# --- what the model is ------------------------------------------------------------------------------------------------


def test_is_a_pyro_module_with_one_site_per_parameter_under_its_module_path():
    model, x, y = small_model()
    trace = poutine.trace(model).get_trace(x, y)
    assert isinstance(model, PyroModule)
    assert trace.stochastic_nodes == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias", "data"]
    assert trace.observation_nodes == ["obs"]
    assert model.site_names == ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    assert list(model.parameters()) == []


@PRIORS_AND_LIKELIHOODS
def test_the_joint_density_is_prior_plus_scaled_likelihood(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood, num_data=30)
    trace, total = log_joint(model, x, y)
    draw = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes if name != "data"}
    weights = {name.removeprefix("net."): value for name, value in draw.items() if name.startswith("net.")}
    expected = sum(trace.nodes[name]["fn"].log_prob(value).sum() for name, value in draw.items())
    output = functional_call(small_net(LIKELIHOODS[likelihood][1]), weights, (x,))
    with poutine.block():
        noise = {name.partition(".")[2]: value for name, value in draw.items() if name.startswith("likelihood.")}
        is_gaussian = likelihood.startswith("gaussian-latent")
        observation = dist.Normal(output, noise["scale"]) if is_gaussian else model.likelihood.given(noise)(output)
    expected = expected + 30 / 6 * observation.log_prob(y).sum()
    assert_identical(total, expected)


def test_likelihood_densities_are_those_of_the_textbook():
    output, y = torch.randn(5, 4), torch.randn(5, 2)
    two_heads = pb.HeteroscedasticGaussianLikelihood()(output)
    assert_identical(two_heads.log_prob(y), dist.Normal(output[:, :2], output[:, 2:].exp().sqrt()).log_prob(y))
    assert_identical(pb.GaussianLikelihood(None)(output).scale, torch.ones(5, 4))
    assert_identical(pb.GaussianLikelihood(0.5)(output).scale, torch.full((5, 4), 0.5))
    assert_identical(pb.PoissonLikelihood()(output).rate, output.exp())
    assert_identical(pb.BernoulliLikelihood()(output).mean, output.sigmoid())
    assert_identical(pb.CategoricalLikelihood()(output).probs, output.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_only_outputs_that_add_up_to_one_are_taken_for_probabilities(dtype):
    logits = torch.randn(3, 1000, dtype=torch.float32) * 3
    for num_classes in (2, 1000):
        with pytest.warns(UserWarning, match="Remove the softmax"):
            pb.CategoricalLikelihood().check_output(logits[:, :num_classes].to(dtype).softmax(-1))
    near = torch.tensor([[0.2334, 0.4708, 0.3035]])  # add up to 1.0077, by chance
    pb.CategoricalLikelihood().check_output(near.to(torch.float64))


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
    net, likelihood = small_net(), pb.GaussianLikelihood(None)
    before = copy.deepcopy(net.state_dict())
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
    guide = pb.MeanFieldGuide(model)
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    pb.fit_svi(model, (x, y), guide, optimizer=lambda p: torch.optim.SGD(p, lr=1e-3), num_epochs=2)
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


# --- device, dtype, copies --------------------------------------------------------------------------------------------


@PRIORS_AND_LIKELIHOODS
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
@PRIORS_AND_LIKELIHOODS
def test_everything_follows_to_the_gpu(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood, num_data=6)
    guide = pb.MeanFieldGuide(model)
    model.cuda()
    guide.cuda()
    posterior = pb.fit_svi(
        model, (x.cuda(), y.cuda()), guide, optimizer=lambda p: torch.optim.Adam(p, lr=1e-3), num_epochs=2, seed=0
    )
    prediction = pb.predict(model, posterior, x.cuda(), y=y.cuda(), num_samples=3)
    assert math.isfinite(prediction.nll)
    with pytest.raises(ValueError, match="`x` is on cpu but the model is on cuda"):
        model(x)


def test_noise_scales_are_exact_in_double_precision():
    assert float(pb.GaussianLikelihood(0.1).double().noise_scale()) == 0.1
    assert float(pb.GaussianLikelihood(None).noise_scale().detach()) == pytest.approx(1.0, rel=1e-15)
