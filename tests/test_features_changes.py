"""A fit has the right numbers if its frozen layers or data change in between, or if it is interrupted and resumed."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.reuse import Diverged, Memory
from pyro_bnn.inference.svi import _features

from .fits import EndsAt, KilledError
from .frozen_fits import ONCE, assert_close, both, conv_body, data, fitted, frozen, head_with_noise, last_layer


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
    assert "frozen layers ran only once until they changed, then in every step" in ours.status.message
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
            assert ("until they changed" in posterior.status.message) == (most > 0)
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
    assert "until they changed" in ours.status.message
    assert len(used) == 4
    assert_close(found, expected)


def test_a_callback_that_only_looks_ends_nothing():
    def looks(model):
        def look(history):
            pb.predict(model, pb.MeanFieldGuide(model), data()[0], num_samples=2, seed=1)

        return look

    posterior, _ = fitted(last_layer, callbacks_of=[looks])
    assert ONCE in posterior.status.message


@pytest.mark.parametrize("num_steps", [2, 4, 7])
def test_a_fit_that_was_ended_goes_on_to_the_bit(num_steps, tmp_path):
    file, where = tmp_path / "fit.ckpt", "net.3.**"
    _, expected = fitted(head_with_noise, where, kl_weight=EndsAt(99))
    with pytest.raises(KilledError):
        fitted(head_with_noise, where, kl_weight=EndsAt(num_steps), checkpoint=pb.Checkpoint(file, minutes=0))
    posterior, found = fitted(head_with_noise, where, kl_weight=EndsAt(99), resume=file)
    assert ONCE in posterior.status.message
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
