"""Several draws of a small convolutional network in one network of grouped convolutions, and ensembles fitted so."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core import functional
from pyro_bnn._core.grouped import can_be_grouped, grouped
from pyro_bnn.auto.fitting import _ensemble

from .fits import FUSED
from .test_one_step_ensemble import fitted, weights

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
    x, y = torch.randn(NUM_DATA, 2, 8, 8, dtype=dtype), torch.arange(NUM_DATA) % 2
    return pb.BayesianModel(net, **options), (x, y)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # a short fit
def test_on_a_cpu_members_in_one_step_are_those_that_are_fitted_one_after_the_other(monkeypatch):
    options = {"num_epochs": 20, "optimizer": FUSED, "num_members": 7}
    together = fitted(*problem(), **options)
    monkeypatch.setattr(_ensemble, "can_be_grouped", lambda net, random: False)
    apart = fitted(*problem(), **options)
    for count, members in ((2, together.members[:3]), (3, together.members[3:])):
        for member in members:
            assert f"Fitted with {count} other members in one step: " in str(member.status)
    assert "in one step" not in str(apart.status)
    torch.testing.assert_close(weights(together), weights(apart), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_members_in_groups_do_not_depend_on_the_number_of_processes():
    options = {"batch_size": 2, "num_members": 6}
    two, one = fitted(*problem(), num_workers=2, **options), fitted(*problem(), num_workers=1, **options)
    assert "in up to 2 processes." in str(two.status)
    torch.testing.assert_close(weights(two), weights(one), rtol=0, atol=0)


OTHER_FITS = {
    "wide": ({"channels": 17}, {}),
    "double precision": ({"dtype": torch.float64}, {}),
    "validation": ({}, {"validation": problem()[1]}),
    "hooks of the optimizer": ({}, {"optimizer": pb.optim.clipped(FUSED, 1.0)}),
    "a single member": ({}, {"num_members": 1}),
}


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
@pytest.mark.parametrize("name", OTHER_FITS)
def test_on_a_cpu_other_members_are_fitted_one_after_the_other(name):
    of_problem, options = OTHER_FITS[name]
    posterior = fitted(*problem(**of_problem), **options)
    assert "in this process." in str(posterior.status)
    assert "in one step" not in str(posterior.status)


def test_members_with_large_batches_are_fitted_one_after_the_other(monkeypatch):
    monkeypatch.setattr(_ensemble, "LARGEST_GROUPED", NUM_DATA - 1)
    with pytest.warns(pb.ConvergenceWarning, match="did not end well"):
        posterior = fitted(*problem())
    assert "in one step" not in str(posterior.status)
