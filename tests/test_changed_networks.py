"""Networks that change after the model was built, and impossible rules and numbers of data points."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.modelling.model import Selection

ADAM = functools.partial(torch.optim.Adam, lr=0.05)


def model_of(**options):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    options = {"num_data": 20, **options}
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.3), **options)


def replaced(model):
    model.net[2] = nn.Linear(4, 1)


def removed(model):
    del model.net[2]


def another(model):
    model.net = nn.Linear(3, 1)


def assigned(model):
    model.network[0].weight = nn.Parameter(torch.zeros(4, 3))


USES = {
    "predict": lambda model, guide, x, y: pb.predict(model, guide, x, num_samples=2),
    "fit_svi": lambda model, guide, x, y: pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=1),
    "fit_nuts": lambda model, guide, x, y: pb.fit_nuts(model, (x, y), num_samples=4, num_warmup=0, num_chains=1),
    "call": lambda model, guide, x, y: model(x, y),
    "guide": lambda model, guide, x, y: pb.MeanFieldGuide(model),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("change", [replaced, removed, another, assigned])
def test_a_layer_that_is_no_longer_the_models_is_named(change, use):
    """This was torch's AttributeError, such as "'BayesianModel' object has no attribute 'like'"."""
    model = model_of()
    guide = pb.MeanFieldGuide(model)
    change(model)
    with pytest.raises(ValueError, match=r"`net.[02].weight` must be in the network .* build a new model"):
        USES[use](model, guide, torch.randn(20, 3), torch.randn(20, 1))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Selection, r"got the class Selection; call `layers\(...\)`"),
        (lambda: True, r"got function that cannot be called with these three \(too many positional arguments\)"),
        (lambda name, parameter: True, "cannot be called with these three"),
        (lambda name, parameter, layer: parameter > 0, r"got a tensor of shape \(4, 3\) for `net.0.weight`"),
    ],
    ids=["a class", "no arguments", "two arguments", "many answers"],
)
@pytest.mark.parametrize("argument", ["where", "exclude"])
def test_a_rule_that_is_none_is_refused(argument, rule, message):
    with pytest.raises(ValueError, match=f"`{argument}`.*{message}"):
        model_of(**{argument: rule})


def test_a_number_of_data_that_is_not_that_of_the_rows_is_refused_before_batches_are_counted():
    """Before, `fit` made a list of 2**52 batches: a MemoryError."""
    with pytest.raises(ValueError, match="but the data has 20 rows"):
        pb.fit(model_of(num_data=2**62), (torch.randn(20, 3), torch.randn(20, 1)))
