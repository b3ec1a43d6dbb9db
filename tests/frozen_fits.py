"""Fits of networks of a frozen body and a random head; the features of the body are computed once or in each step."""

import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.svi import _features

from .bodies import Counted
from .fits import ADAM

NUM_ROWS, BATCH_SIZE = 22, 8  # the last batch is smaller
ROUNDING = {"rtol": 1e-9, "atol": 1e-11}
ONCE, EVERY = "computed once for 22 rows", "frozen layers ran at every step: their features would take"


def data():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(NUM_ROWS, 4, generator=generator), torch.randint(3, (NUM_ROWS,), generator=generator)


def conv_body():
    layers = nn.Unflatten(1, (1, 2, 2)), Counted(nn.Conv2d(1, 6, 2)), nn.BatchNorm2d(6), nn.Dropout(0.5)
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten())


def frozen(body):
    body.requires_grad_(False)
    return body


def last_layer():
    return nn.Sequential(frozen(conv_body()), nn.Linear(6, 3))


def head_with_noise():
    """Batch normalisation and dropout after the frozen part stay in train mode."""
    return nn.Sequential(frozen(conv_body()), nn.BatchNorm1d(6, affine=False), nn.Dropout(0.3), nn.Linear(6, 3))


def fitted(make, where="net.1.**", *, optimizer=ADAM, num_epochs=3, scale_map=None, given=None, **options):
    """A posterior, and all parameters and buffers of guide and network."""
    torch.manual_seed(0)
    net = make()
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS, where=where)
    guide = pb.MeanFieldGuide(model, **({} if scale_map is None else {"scale_map": scale_map}))
    makers = options.pop("callbacks_of", ())
    options = {"batch_size": BATCH_SIZE, "seed": 3, "callbacks": [maker(model) for maker in makers]} | options
    posterior = pb.fit_svi(model, given or data(), guide, optimizer=optimizer, num_epochs=num_epochs, **options)
    return posterior, {**guide.state_dict(), **model.state_dict()}


def assert_close(first, second):
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **ROUNDING, msg=lambda text, name=name: f"{name}: {text}")


def both(monkeypatch, make, *args, **options):
    """A fit with stored features, and a fit without."""
    ours = fitted(make, *args, **options)
    with monkeypatch.context() as patch:
        patch.setattr(_features, "MOST_BYTES", -1)
        expected = fitted(make, *args, **options)
    return ours, expected
