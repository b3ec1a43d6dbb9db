"""Frozen layers before the first random or learned parameter run once in a fit, which changes no number."""

import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.reuse import Memory
from pyro_bnn.inference.svi import _direct, _features

from .bodies import CALLS, Counted, Counting, Noisy, Through
from .chains import quietly
from .frozen_fits import (
    EVERY,
    NUM_ROWS,
    ONCE,
    assert_close,
    both,
    conv_body,
    data,
    fitted,
    frozen,
    head_with_noise,
    last_layer,
)

NUM_PARTS = 3
NATURAL = pb.optim.natural_gradient(0.05)


def learned_between():
    return nn.Sequential(frozen(conv_body()), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


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
    """How often the body runs in a fit: while features are computed, and afterwards."""
    remember, found = _direct.DirectStep.remember, []

    def counted(self, *args, **options):
        del CALLS[:]
        result = remember(self, *args, **options)
        found.append(len(CALLS))
        del CALLS[:]
        return result

    monkeypatch.setattr(_direct.DirectStep, "remember", counted)
    return found


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
    tries = 2 if make is head_with_noise else 1  # for the first batch, which shows what must run in every step
    assert runs == [num_parts + tries, tries]  # and one run that checks that rows do not depend on each other


def test_the_body_does_not_run_in_the_steps(monkeypatch, runs):
    fitted(last_layer)
    assert (runs, len(CALLS)) == ([NUM_PARTS + 1], 0)
    monkeypatch.setattr(_features, "MOST_BYTES", -1)
    fitted(last_layer)
    assert len(CALLS) == 3 * NUM_PARTS


def test_several_inputs(monkeypatch):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = frozen(nn.Linear(4, 6)), frozen(nn.Linear(4, 6)), nn.Linear(6, 3)

        def forward(self, a, b):
            return self.head(self.first(a) * self.second(b))

    x, y = data()
    (ours, found), (_, expected) = both(monkeypatch, Two, "net.head.**", given=({"a": x, "b": x.flip(0)}, y))
    assert ONCE in ours.status.message
    assert_close(found, expected)


def test_with_autocast_features_have_the_lower_precision(monkeypatch):
    def single():
        return last_layer().float()

    x, y = data()
    options = {"given": (x.float(), y), "execution": pb.Execution(autocast=torch.bfloat16)}
    (ours, found), (_, expected) = both(monkeypatch, single, **options)
    assert "for 22 rows (0.3 kB)" in ours.status.message  # six numbers of two bytes
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0.01, atol=0.01)


def test_rows_of_other_data_would_be_noticed(monkeypatch):
    """A twin that must fail: each row gets the features of another row of its batch."""
    refill = Memory.refill
    monkeypatch.setattr(Memory, "refill", lambda memory, values: refill(memory, [v.roll(1, 0) for v in values]))
    (_, found), (_, expected) = both(monkeypatch, last_layer)
    with pytest.raises(AssertionError):
        assert_close(found, expected)


def test_the_status_of_a_fit_with_defaults_says_it():
    model = pb.BayesianModel(
        last_layer(), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=NUM_ROWS, where="net.1.**"
    )
    x, y = data()
    status = quietly(pb.fit, model, (x, y), num_epochs=2, seed=0).status
    assert "; features of the frozen layers were computed once for 22 rows (1.1 kB)" in status.message


# --- what is not computed once ----------------------------------------------------------------------------------------


class Mixing(nn.Module):
    """Rows of a batch attend to each other."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)

    def forward(self, x):
        features = self.inner(x)
        return torch.softmax(features @ features.mT, -1) @ features


class Training(nn.Module):
    """Batch normalisation that is always in train mode."""

    def __init__(self, size):
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, x):
        self.norm.training = True
        return self.norm(x)


class Table(nn.Module):
    """Returns a tensor that has no rows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Linear(4, 6)

    def forward(self, x):
        return self.table(torch.ones(1, 4))


def body(*layers):
    return lambda: nn.Sequential(frozen(nn.Sequential(*(layer() for layer in layers))), nn.Linear(6, 3))


def linear():
    return nn.Linear(4, 6)


def with_table():
    net = Through(lambda self, x: self.head(self.body(x) + x.sum(-1, keepdim=True)), frozen(Table()))
    return nn.Sequential(net)


REFUSED = {
    "not frozen": (lambda: nn.Sequential(conv_body(), nn.Linear(6, 3)), "net.1.**"),
    "nothing before": (lambda: nn.Sequential(nn.Linear(4, 6), frozen(nn.Linear(6, 3))), "net.0.**"),
    "learned first": (lambda: nn.Sequential(nn.Linear(4, 4), *body(linear)()), "net.2.**"),
    "no parameters": (lambda: nn.Sequential(pb.nets.Standardize.of(data()[0]), nn.Linear(4, 3)), "net.1.**"),
    "noise": (body(Noisy, linear), "net.1.**"),
    "dropout first": (lambda: nn.Sequential(nn.Dropout(0.5), *body(linear)()), "net.2.**"),
    "rows that mix": (body(Mixing), "net.1.**"),
    "batch normalisation": (body(lambda: Training(4), linear), "net.1.**"),
    "no rows": (with_table, "net.0.head.**"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_of_which_nothing_can_be_computed_once_is_fitted_as_it_is(name, monkeypatch):
    """Bit for bit: the attempt to compute features changes neither random numbers nor running statistics."""
    make, where = REFUSED[name]
    posterior, found = fitted(make, where)
    assert "frozen" not in posterior.status.message
    with monkeypatch.context() as patch:
        patch.setattr(_direct.DirectStep, "remember", lambda *_, **__: None)
        _, expected = fitted(make, where)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("after", [Noisy, lambda: Training(6), Counting], ids=["noise", "normalisation", "counter"])
def test_what_cannot_be_computed_once_runs_in_each_step_after_what_can(after, monkeypatch):
    (ours, found), (_, expected) = both(monkeypatch, body(linear, after), num_epochs=2)
    assert ONCE in ours.status.message
    if after is not Counting:  # which counts the runs before the first step, too
        assert_close(found, expected)


def test_to_compute_it_once_nevertheless_would_be_wrong(monkeypatch):
    """A twin that must fail."""
    monkeypatch.setattr(_features.Features, "_have_independent_rows", lambda _: True)
    (ours, found), (_, expected) = both(monkeypatch, *REFUSED["rows that mix"])
    assert ONCE in ours.status.message
    with pytest.raises(AssertionError):
        assert_close(found, expected)


def test_batches_of_a_loader_may_be_augmented_and_run_as_a_whole(runs):
    x, y = data()
    posterior, _ = fitted(last_layer, given=list(zip(x.split(11), y.split(11), strict=True)), batch_size=None)
    assert "frozen" not in posterior.status.message
    assert (runs, len(CALLS)) == ([0], 3 * 2)


def test_parts_of_batches_run_as_a_whole(runs):
    fitted(last_layer, execution=pb.Execution(num_parts=2))
    assert (runs, len(CALLS)) == ([0], 3 * NUM_PARTS * 2)
