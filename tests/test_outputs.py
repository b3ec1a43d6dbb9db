"""What a network's outputs must be for a likelihood."""

import warnings

import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .cases import small_model


def of_last(last, num_outputs=3):
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, num_outputs), *last), num_data=6)
    return model, x, y.clamp(max=num_outputs - 1)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_network_that_ends_in_a_softmax_is_warned_of(num_classes):
    model, x, y = of_last([nn.Softmax(1)], num_classes)
    with pytest.warns(UserWarning, match="Remove the softmax") as caught:
        model.check_targets(x, y)
    limit = torch.softmax(torch.eye(num_classes), -1).max()
    assert f"above {limit:.2f}" in str(caught[0].message)


@pytest.mark.parametrize(
    "last", [[], [nn.LogSoftmax(-1)], [nn.ReLU()], [nn.Sigmoid()]], ids=["logits", "log", "relu", "sigmoid"]
)
def test_other_outputs_are_not(last):
    model, x, y = of_last(last)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.check_targets(x, y)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_samplers_warn_too():
    model, x, y = of_last([nn.Softmax(-1)])
    with pytest.warns(UserWarning, match="Remove the softmax"):
        pb.fit_nuts(model, x, y, num_chains=1, num_warmup=4, num_samples=4)
