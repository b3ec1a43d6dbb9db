"""Several draws of a small convolutional network in one network of grouped convolutions, and ensembles fitted so."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core import functional
from pyro_bnn._core.grouped import can_be_grouped, grouped

from .fits import FUSED
from .test_one_step_ensemble import fitted, in_one_step, weights

NUM_DRAWS, NUM_DATA = 3, 5


def net_of(*layers, num_features):
    """A network for images of 8 x 8 with two channels."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(num_features, 4), nn.Tanh(), nn.Linear(4, 2))


def frozen_first():
    net = net_of(nn.Conv2d(2, 20, 3), nn.BatchNorm2d(20), nn.Conv2d(20, 4, 3), num_features=64).eval()
    net[:2].requires_grad_(False)
    return net


GROUPED = {
    "strides": lambda: net_of(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), num_features=64),
    "one row of pixels": lambda: net_of(nn.Conv2d(2, 16, (3, 8), padding=(1, 0), bias=False), num_features=128),
    "groups": lambda: net_of(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 6, 3, groups=2, dilation=2), num_features=24),
    "max pooling": lambda: net_of(nn.Conv2d(2, 3, 1), nn.MaxPool2d(3, 2, padding=1), num_features=48),
    "own pooling": lambda: net_of(nn.Conv2d(2, 3, 3), type("Own", (nn.MaxPool2d,), {})(2), num_features=27),
    "mean pooling": lambda: net_of(nn.AvgPool2d(2), nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), num_features=3),
    "sequences": lambda: nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.Sequential(nn.GELU(), nn.AdaptiveMaxPool2d(2))),
        nn.Flatten(),
        nn.Sequential(nn.Linear(12, 2), nn.Softplus()),
    ),
    "frozen first layers": frozen_first,
    "no linear layer": lambda: nn.Sequential(nn.Conv2d(2, 3, 8), nn.Flatten()),
}


def draws_of(net):
    torch.manual_seed(0)
    return {
        name: torch.randn(NUM_DRAWS, *value.shape, requires_grad=True)
        for name, value in net.named_parameters()
        if value.requires_grad
    }


@pytest.mark.parametrize("name", GROUPED)
def test_outputs_and_gradients_are_those_of_each_draw(name):
    net = GROUPED[name]()
    draws, x = draws_of(net), torch.randn(NUM_DATA, 2, 8, 8)
    assert can_be_grouped(net, draws.keys())
    found = grouped(net, draws, x)
    expected = functional.call_batched(net, draws, x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    scale = torch.randn_like(found)
    gradients = [torch.autograd.grad((scale * output).sum(), list(draws.values())) for output in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def frozen_between():
    net = net_of(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3), num_features=48)
    net[1].requires_grad_(False)
    return net


OTHERS = {
    "wide": lambda: net_of(nn.Conv2d(2, 17, 8), num_features=17),
    "circular padding": lambda: net_of(nn.Conv2d(2, 1, 3, padding=1, padding_mode="circular"), num_features=64),
    "normalised": lambda: net_of(nn.Conv2d(2, 1, 1), nn.BatchNorm2d(1), num_features=64),
    "dropout": lambda: net_of(nn.Conv2d(2, 1, 1), nn.Dropout(), num_features=64),
    "frozen between": frozen_between,
    "no convolution": lambda: net_of(num_features=128),
    "no flat values": lambda: nn.Sequential(nn.Conv2d(2, 3, 8)),
    "flat channels and rows": lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(1, 2), nn.Linear(8, 1)),
    "linear in columns": lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Linear(8, 1), nn.Flatten()),
    "a layer alone": lambda: nn.Conv2d(2, 3, 8),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_not_grouped(name):
    net = OTHERS[name]()
    net(torch.randn(NUM_DATA, 2, 8, 8))
    assert not can_be_grouped(net, draws_of(net).keys())


# --- ensembles on a CPU -----------------------------------------------------------------------------------------------


def problem(dtype=torch.float32, channels=4):
    torch.manual_seed(0)
    net = net_of(nn.Conv2d(2, channels, 3), nn.MaxPool2d(2), nn.ReLU(), num_features=9 * channels).to(dtype)
    options = {"prior": pb.NormalPrior(0.5), "likelihood": pb.CategoricalLikelihood(), "num_data": NUM_DATA}
    return pb.BayesianModel(net, **options), (torch.randn(NUM_DATA, 2, 8, 8, dtype=dtype), torch.arange(NUM_DATA) % 2)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # a short fit
def test_on_a_cpu_members_in_one_step_are_those_that_are_fitted_one_after_the_other():
    options = {"max_epochs": 20, "optimizer": FUSED}
    together, apart = fitted(*problem(), **options), fitted(*problem(), num_workers=1, **options)
    assert in_one_step(together)
    assert not in_one_step(apart)
    torch.testing.assert_close(weights(together), weights(apart), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
@pytest.mark.parametrize(
    ("problem_options", "options"),
    [
        ({"channels": 17}, {}),
        ({"dtype": torch.float64}, {}),
        ({}, {"batch_size": 7000}),
        ({}, {"validation": problem()[1]}),
    ],
    ids=str,
)
def test_on_a_cpu_other_members_are_fitted_one_after_the_other(problem_options, options):
    posterior = fitted(*problem(**problem_options), **options)
    assert str(posterior.status).startswith(
        f"ensemble of 3 members, fitted in {posterior.seconds:.3g} s in this process: "
    )
