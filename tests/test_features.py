"""Frozen layers before the first random or learned parameter run once in a fit, which changes no number."""

from contextlib import contextmanager

import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn._reuse import Diverged, Memory
from pyro_bnn.svi import _direct, _features

from .bodies import CALLS, Counted, Counting, Noisy, Through
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
    tries = 2 if make is head_with_noise else 1  # of the first batch, in which is seen what must not be left out
    assert runs == [num_parts + tries, tries]  # and one run to see that rows do not depend on each other


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
    status = pb.fit(model, (x, y), max_epochs=2, seed=0).status
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
    """Batch normalisation that is in train mode whatever one says."""

    def __init__(self, size):
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, x):
        self.norm.training = True
        return self.norm(x)


class Table(nn.Module):
    """Gives something that belongs to no row."""

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
    """To the bit, so that neither random numbers nor running statistics show that it was tried."""
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


@pytest.mark.parametrize("name", ["rows that mix", "no rows"])
def test_to_compute_it_once_nevertheless_would_be_wrong(name, monkeypatch):
    """A twin that must fail."""
    make, where = REFUSED[name]
    monkeypatch.setattr(_features.Features, "_have_independent_rows", lambda _: True)
    posterior, found = fitted(make, where)
    assert (ONCE in posterior.status.message) == (name == "rows that mix")
    if ONCE in posterior.status.message:
        _, (_, expected) = both(monkeypatch, make, where)
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


# --- changes in between -----------------------------------------------------------------------------------------------


def conv_of(model):
    return model.network[0][1].inner


def weights(model):
    with torch.no_grad():
        conv_of(model).weight.mul_(1.1)


def weights_unseen(model):
    conv_of(model).weight.data.mul_(1.1)


def new_weights(model):
    conv_of(model).weight = nn.Parameter(conv_of(model).weight.detach() * 1.1, requires_grad=False)


def mode(model):
    model.network.train()


def statistics(model):
    model.network[0][2].running_mean.add_(0.1)


CHANGES = [weights, weights_unseen, new_weights, mode, statistics]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_callback_that_changes_the_frozen_layers_ends_it(change, monkeypatch):
    def after_two_epochs(model):
        return lambda history: change(model) if len(history.epochs) == 2 else None

    (ours, found), (_, expected) = both(monkeypatch, last_layer, num_epochs=4, callbacks_of=[after_two_epochs])
    assert "computed once, and at every step after a change" in ours.status.message
    assert_close(found, expected)
    unchanged = fitted(last_layer, num_epochs=4)[1]
    with pytest.raises(AssertionError):
        assert_close(found, unchanged)


def test_a_callback_that_changes_the_data_or_what_comes_before_the_frozen_layers_ends_it(monkeypatch):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.factor = frozen(nn.Linear(4, 6)), nn.Linear(6, 3), 1.0

        def forward(self, x):
            return self.head(self.body(self.factor * x))

    for is_data in (True, False):
        results = []
        for most in (10**9, -1):
            given = data()

            def change(model, x=given[0] if is_data else None):
                if x is None:
                    model.network.factor *= 1.1
                else:
                    x.mul_(1.1)

            monkeypatch.setattr(_features, "MOST_BYTES", most)
            makers = [lambda model, change=change: lambda history: change(model)]
            posterior, found = fitted(Scaled, "net.head.**", callbacks_of=makers, given=given)
            results.append(found)
            assert ("after a change" in posterior.status.message) == (most > 0)
        assert_close(*results)


def test_a_network_that_goes_another_way_runs_as_a_whole_with_the_same_noise(monkeypatch):
    def noisy():
        return nn.Sequential(frozen(conv_body()), nn.Dropout(0.3), nn.Linear(6, 3))

    during, used = Memory.during, []

    @contextmanager
    def diverging(memory, drawn):
        is_used = memory.is_used
        with during(memory, drawn):
            yield
        used.extend([1] * is_used)
        if len(used) == 4:
            raise Diverged

    monkeypatch.setattr(Memory, "during", diverging)
    (ours, found), (_, expected) = both(monkeypatch, noisy, "net.2.**")
    assert "after a change" in ours.status.message
    assert len(used) == 4
    assert_close(found, expected)


def test_a_callback_that_only_looks_ends_nothing():
    def looks(model):
        def look(history):
            pb.predict(model, pb.MeanFieldGuide(model), data()[0], num_samples=2, seed=1)

        return look

    posterior, _ = fitted(last_layer, callbacks_of=[looks])
    assert ONCE in posterior.status.message


class KilledError(Exception):
    """Stands in for the end of the process."""


class EndsAt:
    """A KL weight of 1 that ends the process before a step."""

    def __init__(self, step):
        self.step, self.count = step, 0

    def __call__(self, epoch, index, num_batches):
        self.count += 1
        if self.count > self.step:
            raise KilledError
        return 1.0


@pytest.mark.parametrize("num_steps", [2, 4, 7])
def test_a_fit_that_was_ended_goes_on_to_the_bit(num_steps, tmp_path):
    file, where = tmp_path / "fit.ckpt", "net.3.**"
    _, expected = fitted(head_with_noise, where, kl_weight=EndsAt(99))
    with pytest.raises(KilledError):
        fitted(head_with_noise, where, kl_weight=EndsAt(num_steps), checkpoint=pb.Checkpoint(file, minutes=0))
    posterior, found = fitted(head_with_noise, where, kl_weight=EndsAt(99), resume=file)
    assert ONCE in posterior.status.message
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
