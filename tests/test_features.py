"""Frozen layers before the first random or learned parameter run once for each row of a fit, which changes no number."""

import functools
import random

import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn.svi import _direct, _features

from .bodies import CALLS, Counted, Noisy, Through
from .fits import ADAM

NUM_ROWS, BATCH_SIZE = 22, 8  # the last batch is smaller
NUM_PARTS = 3
ROUNDING = {"rtol": 1e-9, "atol": 1e-11}
ONCE, EVERY = "computed once for 22 rows", "frozen layers ran at every step: their features would take"
NATURAL = pb.natural_gradient(0.05)


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


def learned_between():
    return nn.Sequential(frozen(conv_body()), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def head_with_noise():
    """Batch normalisation and dropout after the frozen part stay in train mode."""
    return nn.Sequential(frozen(conv_body()), nn.BatchNorm1d(6, affine=False), nn.Dropout(0.3), nn.Linear(6, 3))


def recurrent_head():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.lstm, self.out = frozen(Counted(nn.Linear(4, 6))), nn.LSTM(6, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.lstm(self.body(x)[None])[0][0])

    return Recurrent()


@pytest.fixture
def runs(monkeypatch):
    """Numbers of runs of the body in fits: while features are computed, and afterwards."""
    remember, found = _direct.DirectStep.remember, []

    def counted(self, *args, **options):
        del CALLS[:]
        result = remember(self, *args, **options)
        found.append(len(CALLS))
        del CALLS[:]
        return result

    monkeypatch.setattr(_direct.DirectStep, "remember", counted)
    return found


def fitted(make, where="net.1.**", *, optimizer=ADAM, num_epochs=3, scale_map=None, given=None, **options):
    """A posterior, and all parameters and buffers of guide and network."""
    torch.manual_seed(0)
    net = make()
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS, where=where)
    guide = pb.MeanFieldGuide(model, **({} if scale_map is None else {"scale_map": scale_map}))
    makers = options.pop("callbacks_of", ())
    options = {"batch_size": BATCH_SIZE, "seed": 3, "callbacks": [maker(model) for maker in makers]} | options
    posterior = pb.fit_svi(model, guide, given or data(), optimizer=optimizer, num_epochs=num_epochs, **options)
    return posterior, {**guide.state_dict(), **model.state_dict()}


def assert_close(first, second):
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **ROUNDING, msg=lambda text, name=name: f"{name}: {text}")


def both(monkeypatch, make, *args, **options):
    """A fit with features that are kept, and one without."""
    ours = fitted(make, *args, **options)
    with monkeypatch.context() as patch:
        patch.setattr(_features, "MOST_BYTES", -1)
        expected = fitted(make, *args, **options)
    return ours, expected


PRECISION = pb.scale_maps.Precision()

FITS = {
    "mean field": (last_layer, "net.1.**", {}),
    "all rows at once": (last_layer, "net.1.**", {"batch_size": None}),
    "local reparameterisation": (last_layer, "net.1.**", {"estimator": pb.LocalReparameterization()}),
    "natural gradient": (last_layer, "net.1.**", {"optimizer": NATURAL, "scale_map": PRECISION}),
    "two draws": (last_layer, "net.1.**", {"elbo": Trace_ELBO(num_particles=2)}),
    "learned layer between": (learned_between, "net.3.**", {}),
    "noise after the frozen part": (head_with_noise, "net.3.**", {}),
    "recurrent head": (recurrent_head, ["net.lstm.**", "net.out.**"], {}),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_runs_frozen_layers_once_gives_the_same_parameters(name, monkeypatch, runs):
    make, where, options = FITS[name]
    (ours, found), (plain, expected) = both(monkeypatch, make, where, **options)
    assert ONCE in ours.status.message
    assert EVERY in plain.status.message
    assert_close(found, expected)
    num_parts = 1 if options.get("batch_size", 1) is None else NUM_PARTS
    assert runs == [num_parts + 1, 1]  # one more to see that rows do not depend on each other


def test_the_body_does_not_run_in_the_steps(monkeypatch, runs):
    fitted(last_layer)
    assert (runs, len(CALLS)) == ([NUM_PARTS + 1], 0)
    monkeypatch.setattr(_features, "MOST_BYTES", -1)
    fitted(last_layer)
    assert len(CALLS) == 3 * NUM_PARTS
