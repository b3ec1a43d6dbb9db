"""Layers before the first random parameter run once in a prediction, which changes no number."""

from contextlib import nullcontext

import pyro
import pytest
import torch
import torchvision
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.reuse import Memory, Plan
from pyro_bnn.results.prediction import _batch

from .bodies import CALLS, NETWORKS, NUM_DRAWS, Through, conv_net, counting_body, with_body
from .tolerances import SINGLE, assert_identical


def model_of(net, where, likelihood=None):
    likelihood = likelihood or pb.CategoricalLikelihood()
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=20, where=where)


def wide(model):
    return pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.7))


def predicted(net, where, x, **options):
    """Prediction and the number of runs of the body."""
    model = model_of(net, where)
    del CALLS[:]
    prediction = pb.predict(model, wide(model), x, num_samples=NUM_DRAWS, seed=3, keep_draws=True, **options)
    return prediction, len(CALLS)


def without_memory():
    """A hook on all modules: it must run in every draw, so no module is skipped."""
    return nn.modules.module.register_module_forward_hook(lambda *_: None)


def assert_same_numbers(first, second):
    """Up to rounding, since with a memory several draws may run at once, by other operations."""
    assert_identical(first.logits, second.logits)
    assert_identical(first.probs, second.probs)
    assert_identical(first.epistemic, second.epistemic)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_prediction_that_leaves_out_what_it_knows_has_the_same_numbers(name):
    """Up to rounding, since several draws of the remaining layers are run at once."""
    make, where, _ = NETWORKS[name]
    x = torch.randn(7, 4)
    torch.manual_seed(0)
    ours, _ = predicted(make(), where, x, batch_size=4)
    torch.manual_seed(0)
    with without_memory():
        expected, _ = predicted(make(), where, x, batch_size=4)
    assert_identical(ours.logits, expected.logits)
    assert_identical(ours.epistemic, expected.epistemic)


@pytest.mark.parametrize("name", [name for name, row in NETWORKS.items() if row[2]])
def test_the_body_runs_once_or_as_often_as_it_takes_to_learn_what_must_run_in_every_draw(name):
    make, where, expected = NETWORKS[name]
    net, x = counting_body(make()), torch.randn(7, 4)
    _, count = predicted(net, where, x)
    assert count == expected
    with without_memory():
        _, everything = predicted(net, where, x)
    assert everything == NUM_DRAWS * (2 if name == "several calls" else 1)


# --- must-fail twins --------------------------------------------------------------------------------------------------


class Naive(nn.Module):
    """Always returns its first result."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.first = inner, {}

    def forward(self, *args):
        return self.first.setdefault("result", self.inner(*args))


NAIVE = {"integers": "table", "one of two ways": "body", "noise": "1", "counter": "1", "borrowed weight": "body"}
"""For some networks, a part without random parameters."""


@pytest.mark.parametrize("name", NAIVE)
def test_to_remember_every_module_without_random_parameters_would_be_wrong(name):
    make, where, _ = NETWORKS[name]
    x = torch.randn(7, 4)
    results = []
    for is_naive in (False, True):
        torch.manual_seed(0)
        net = make()
        if is_naive:
            setattr(net, NAIVE[name], Naive(getattr(net, NAIVE[name])))
        with without_memory():
            results.append(predicted(net, where, x)[0].logits)
    assert not torch.equal(*results)


# --- what is kept, and for how long -----------------------------------------------------------------------------------


def recorded(net, where, x):
    """A memory after one call of a model."""
    model = model_of(net, where).eval()
    memory = Memory(Plan(model.network, {path for paths in model.parameter_paths.values() for path in paths}))
    draw = next(wide(model).draws(1))
    with torch.no_grad(), model.interception.remembering(memory):
        model.observation_given(draw, x)
    return memory


def test_only_the_features_before_the_random_layer_are_kept():
    resnet = torchvision.models.resnet18(weights=None, num_classes=3)
    memory = recorded(resnet, "net.fc.*", torch.randn(2, 3, 32, 32))
    assert [tuple(value.shape) for value in memory.kept] == [(2, 512, 1, 1)]
    assert memory.num_bytes == 2 * 512 * 8
    assert recorded(conv_net(), "net.6.**", torch.randn(5, 4)).num_bytes == 5 * 3 * 8
    assert recorded(conv_net(), "**", torch.randn(5, 4)).num_bytes == 0


def test_a_resnet_with_a_random_last_layer_predicts_the_same():
    resnet = torchvision.models.resnet18(weights=None, num_classes=3).float()
    x = torch.randn(3, 3, 32, 32, dtype=torch.float32)
    ours, _ = predicted(resnet, "net.fc.*", x, batch_size=2)
    with without_memory():
        expected, _ = predicted(resnet, "net.fc.*", x, batch_size=2)
    torch.testing.assert_close(ours.logits, expected.logits, **SINGLE)


def test_if_features_take_much_memory_the_batches_are_predicted_one_after_the_other(monkeypatch):
    """With the same numbers, since each draw has a seed of its own."""
    net, x = counting_body(with_body(nn.Tanh())()), torch.randn(7, 4)
    memories, most, during = [], [], Memory.during

    def watched(memory, drawn):
        memories.append(memory)
        most.append(sum(other.num_bytes > 0 for other in {*memories}))
        return during(memory, drawn)

    monkeypatch.setattr(Memory, "during", watched)
    expected, count = predicted(net, "net.2.**", x, batch_size=2)
    assert (count, max(most)) == (4, 4)
    del memories[:], most[:]
    monkeypatch.setattr(_batch, "MOST_BYTES", 1)
    ours, count = predicted(net, "net.2.**", x, batch_size=2)
    assert_same_numbers(ours, expected)
    assert (count, max(most)) == (4, 1)


def test_parameters_that_change_between_two_draws_are_noticed():
    """A fit of the same model in another thread may change them, for example."""
    net, x = with_body(nn.Tanh())(), torch.randn(5, 4)
    model = model_of(net, "net.2.**")
    guide = wide(model)

    class Disturbed(pb.Posterior):
        status = pb.Status(True, "")

        def draws(self, num_samples, *args):
            for index, draw in enumerate(pb.GuidePosterior(guide).draws(num_samples, *args)):
                with torch.no_grad():
                    model.network[0].weight.add_(index)
                yield draw

    start = model.network[0].weight.detach().clone()
    ours = pb.predict(model, Disturbed(), x, num_samples=3, seed=1, keep_draws=True)
    with torch.no_grad():
        model.network[0].weight.copy_(start)
    with without_memory():
        expected = pb.predict(model, Disturbed(), x, num_samples=3, seed=1, keep_draws=True)
    assert_same_numbers(ours, expected)
    assert not torch.equal(ours.logits[0], ours.logits[2])


def test_a_value_that_was_not_kept_and_is_asked_for_after_all_costs_a_full_run():
    turns = []

    def on_turns(self, x):
        features = self.body(x)
        turns.append(1)
        return self.head(features if len(turns) > 2 else torch.tanh(self.more(features)))

    def make():
        net = Through(on_turns, nn.Linear(4, 6))
        net.more = nn.Linear(6, 6)
        return net

    x, results = torch.randn(5, 4), []
    for is_plain in (False, True):
        del turns[:]
        torch.manual_seed(0)
        hook = without_memory() if is_plain else nullcontext()
        with hook:
            results.append(predicted(make(), "net.head.**", x)[0])
    assert_same_numbers(*results)


def test_several_inputs_and_latent_noise():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(2, 6), nn.Linear(6, 2)

        def forward(self, a, b):
            return self.head(self.first(a) * self.second(b))

    x, y = (torch.randn(5, 4), torch.randn(5, 2)), torch.randn(5, 2)
    model = model_of(Two(), "net.head.**", pb.GaussianLikelihood(pyro.distributions.Gamma(2.0, 2.0)))
    options = {"y": y, "num_samples": 5, "seed": 2, "batch_size": 3}
    ours = pb.predict(model, wide(model), x, **options)
    with without_memory():
        expected = pb.predict(model, wide(model), x, **options)
    for name in ("mean", "epistemic", "aleatoric", "log_density"):
        assert_identical(getattr(ours, name), getattr(expected, name))
