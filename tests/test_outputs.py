"""Requirements of likelihoods on the outputs of a network."""

import functools
import warnings

import pyro
import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .cases import small_model

OPTIONS = {"optimizer": functools.partial(torch.optim.Adam, lr=0.01), "num_epochs": 3, "batch_size": 2}


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
        pb.fit_nuts(model, (x, y), num_chains=1, num_warmup=4, num_samples=4)


@pytest.mark.parametrize("num_particles", [1, 3])
def test_fits_warn_once(num_particles):
    model, x, y = of_last([nn.Softmax(-1)])
    elbo = pyro.infer.Trace_ELBO(num_particles=num_particles)
    with pytest.warns(UserWarning, match="Remove the softmax") as caught:
        pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), elbo=elbo, **OPTIONS)
    assert len([w for w in caught if "softmax" in str(w.message)]) == 1
    model, x, y = of_last([nn.LogSoftmax(-1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), elbo=elbo, **OPTIONS)
