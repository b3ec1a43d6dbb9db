"""A frozen part of a network is a fixed function: a fit does not change it, and runs it in eval mode."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def make(*, frozen):
    body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    body.requires_grad_(not frozen)
    return nn.Sequential(body, nn.Dropout(0.1), nn.Linear(5, 3))


def fitted(net, *, freeze_late=False):
    """The state of the body before and after a fit of the last layer, and the model."""
    x, y = 3 + torch.randn(20, 4), torch.arange(20) % 3
    options = {"prior": pb.NormalPrior(), "likelihood": pb.CategoricalLikelihood(), "num_data": 20}
    model = pb.BayesianModel(net, where="net.2.*", **options)
    if freeze_late:
        model.network[0].requires_grad_(False)
    before = {name: value.clone() for name, value in model.network[0].state_dict().items()}
    pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=3, batch_size=10, seed=0)
    return before, model.network[0].state_dict(), model


def differing(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("freeze_late", [False, True])
def test_a_fit_changes_nothing_of_a_frozen_body(freeze_late, path):
    net = make(frozen=not freeze_late)
    before, after, model = fitted(net, freeze_late=freeze_late)
    assert differing(before, after) == set()
    assert not any(module.training for module in model.network[0].modules())
    assert model.network[1].training  # dropout of no frozen part stays as it was
    assert net[0][1].training  # and so does the caller's network


def test_a_body_that_is_not_frozen_is_learned_and_its_statistics_follow_the_data():
    """The must-fail twin."""
    before, after, model = fitted(make(frozen=False))
    assert {"0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"} <= differing(before, after)
    assert model.network[0][1].training


def test_a_part_with_a_random_parameter_is_not_frozen():
    net = make(frozen=True)
    options = {"prior": pb.NormalPrior(), "likelihood": pb.CategoricalLikelihood(), "num_data": 20}
    model = pb.BayesianModel(net, where="net.0.0.*", **options)
    assert model.network[0].training
    assert model.network[0][0].training
    assert not model.network[0][1].training
