"""Any network: it runs with the weights that were drawn."""

import copy
import pickle

import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import nn

import pyro_bnn as pb

from .cases import LIKELIHOODS, small_model
from .tolerances import assert_identical


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


def test_checking_targets_leaves_batch_norm_and_the_generator_alone():
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    before, state = model.net[1].running_mean.clone(), torch.get_rng_state()
    model.check_targets(x, y)
    assert torch.equal(model.net[1].running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


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


def test_tied_weights_answer_to_every_name():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = nn.Sequential(first, second)
    model = pb.BayesianModel(
        net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=2, where="net.1.weight"
    )
    assert model.site_names == ("net.0.weight",)


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.zeros(2) + "a"


@pytest.mark.parametrize(
    ("activation", "error", "message"),
    [
        (Broken, TypeError, "unsupported operand"),  # an error in the user's own code
        (nn.functional.relu, ValueError, "got function; pass torch.nn.ReLU.$"),
        (torch.tanh, ValueError, "pass torch.nn.Tanh.$"),
        ("leaky_relu", ValueError, "got 'leaky_relu'; pass torch.nn.LeakyReLU.$"),
        ("init", ValueError, "got 'init'.$"),  # a module of Python
        ("Parameter", ValueError, "got 'Parameter'.$"),
        ("linear", ValueError, "got 'linear'.$"),  # needs arguments
    ],
)
def test_an_activation_that_makes_no_module_is_refused(activation, error, message):
    with pytest.raises(error, match=message):
        pb.nets.mlp([1, 2, 1], activation=activation)
