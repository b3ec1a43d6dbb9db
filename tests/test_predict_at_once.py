"""Draws that are run at once give the predictions of a loop over draws; small networks are run this way."""

import random
from contextlib import nullcontext

import numpy as np
import pyro
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import ChainStatistics

from .cases import LIKELIHOODS
from .tolerances import SINGLE, assert_identical

NUM_DRAWS = 70
"""More than two blocks of draws."""

CALLS = []
"""One entry for each run of a :class:`Counted`."""


class Counted(nn.Linear):
    def forward(self, x):
        CALLS.append(x.dtype)
        return super().forward(x)


def mlp(num_outputs=3, last=nn.Linear):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), last(5, num_outputs))


def conv(num_outputs):
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(4, num_outputs))


class Deciding(nn.Module):
    """Its branch depends on the drawn numbers, so draws cannot be run together."""

    def __init__(self, num_outputs):
        super().__init__()
        self.layer = nn.Linear(4, num_outputs)

    def forward(self, x):
        y = self.layer(x)
        return y if float(y.sum()) > 0 else -2 * y


class Noisy(nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.layer = nn.Linear(4, num_outputs)

    def forward(self, x):
        y = self.layer(x)
        return y + torch.rand_like(y)


def pair(net, likelihood, dtype=torch.float64):
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=20).to(dtype)
    return model, pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))


def both(model, posterior, x, **options):
    """The prediction, and the prediction by a loop over draws, which a hook on the network causes."""
    options = {"num_samples": NUM_DRAWS, "seed": 4, **options}
    ours = pb.predict(model, posterior, x, **options)
    hook = model.network.register_forward_hook(lambda *_: None)
    expected = pb.predict(model, posterior, x, **options)
    hook.remove()
    return ours, expected


def tensors_of(prediction):
    names = ("probs", "mean", "aleatoric", "epistemic", "total", "votes", "logit_variance", "log_density", "logits")
    return {name: value for name in names if isinstance(value := getattr(prediction, name, None), torch.Tensor)}


def assert_equal_up_to_rounding(ours, expected, **tolerance):
    assert tensors_of(ours).keys() == tensors_of(expected).keys()
    for name, value in tensors_of(ours).items():
        if tolerance:
            torch.testing.assert_close(value, tensors_of(expected)[name], **tolerance)
        else:
            assert_identical(value, tensors_of(expected)[name])


@pytest.mark.parametrize("make", [mlp, conv, Deciding, Noisy])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_draws_at_once_predict_what_one_after_the_other_does(name, make):
    likelihood, num_outputs, targets, _ = LIKELIHOODS[name]
    model, guide = pair(make(num_outputs), likelihood)
    x = torch.randn(3, 4)
    ours, expected = both(model, guide, x, y=targets(3))
    assert_equal_up_to_rounding(ours, expected)
    other = pb.predict(model, guide, x, y=targets(3), num_samples=NUM_DRAWS, seed=5)  # the must-fail twin
    with pytest.raises(AssertionError):
        assert_equal_up_to_rounding(ours, other)


def test_single_precision():
    model, guide = pair(mlp(), pb.CategoricalLikelihood(), torch.float32)
    ours, expected = both(model, guide, torch.randn(3, 4, dtype=torch.float32))
    assert_equal_up_to_rounding(ours, expected, **SINGLE)


def test_kept_draws():
    model, guide = pair(mlp(2), pb.GaussianLikelihood(pyro.distributions.Gamma(2.0, 2.0)))
    ours, expected = both(model, guide, torch.randn(3, 4), keep_draws=True)
    assert_equal_up_to_rounding(ours, expected)
    assert_identical(ours.quantile(0.3), expected.quantile(0.3))


def test_stored_draws_and_ensembles():
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    model = pb.BayesianModel(
        nn.Linear(4, 3), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=12
    )
    draws = {"net.weight": torch.randn(2, 40, 3, 4), "net.bias": torch.randn(2, 40, 3)}
    empty = ChainStatistics(*[None] * len(ChainStatistics.__dataclass_fields__))
    chains = pb.MCMCPosterior(draws, empty, pb.Status(True, ""), sampler="by hand")
    guides = [pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=s)) for s in (0.1, 0.5)]
    for posterior in (chains, pb.EnsemblePosterior([pb.GuidePosterior(guide) for guide in guides])):
        assert_equal_up_to_rounding(*both(model, posterior, x, y=y))


def test_a_small_network_is_run_a_few_times_for_all_draws_and_a_large_one_once_for_each():
    x, counts = torch.randn(1, 4), {}
    for width in (5, 20_000):
        net = nn.Sequential(nn.Linear(4, width), Counted(width, 3))
        model, guide = pair(net, pb.CategoricalLikelihood())
        del CALLS[:]
        pb.predict(model, guide, x, num_samples=100, seed=0)
        counts[width] = len(CALLS)
    assert counts[5] < 10
    assert counts[20_000] == 100


class Body(nn.Module):
    """Fixed layers, followed by in-place operations and branches that use their result.

    Args:
        num_outputs: Outputs of the head.
        changes: Whether the head changes the result of the fixed layers in place.
        decides: Whether later operations depend on the head's result.
    """

    def __init__(self, num_outputs, *, changes=False, decides=False):
        super().__init__()
        self.first, self.head = Counted(4, 5), nn.Linear(5, num_outputs)
        self._changes, self._decides = changes, decides

    def forward(self, x):
        features = self.first(x)
        features = features.add_(1) if self._changes else features.tanh()
        y = self.head(features)
        return -2 * y if self._decides and float(y.sum()) > 0 else y


def last_layer(net, likelihood, where="net.head.*"):
    options = {"prior": pb.NormalPrior(), "likelihood": likelihood, "num_data": 20}
    model = pb.BayesianModel(net, where=where, **options).double()
    return model, pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))


@pytest.mark.daily("*options0")
@pytest.mark.parametrize("options", [{}, {"changes": True}, {"decides": True}])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_last_layers_of_all_draws_at_once(name, options):
    likelihood, num_outputs, targets, _ = LIKELIHOODS[name]
    model, guide = last_layer(Body(num_outputs, **options), likelihood)
    x = torch.randn(30, 4)
    for batch_size in (30, 8):
        ours, expected = both(model, guide, x, y=targets(30), batch_size=batch_size)
        assert_equal_up_to_rounding(ours, expected)


def test_the_body_is_run_once_and_the_last_layer_a_few_times_for_all_draws():
    x = torch.randn(8, 4)
    for net in (nn.Sequential(Counted(4, 6), nn.Tanh(), Counted(6, 3)), nn.ModuleList):
        if net is nn.ModuleList:  # not a chain
            net = Body(3)
            net.head = Counted(5, 3)
            where = "net.head.*"
        else:
            where = "net.2.*"
        model, guide = last_layer(net, pb.CategoricalLikelihood(), where)
        del CALLS[:]
        pb.predict(model, guide, x, num_samples=100, seed=0)
        assert 2 <= len(CALLS) < 10


class Changing(pb.Posterior):
    """Draws of a guide; the body is changed before one of them, as another thread might.

    Args:
        guide: The guide.
        weight: A weight of the body.
        index: Before which draw.
    """

    status = pb.Status(True, "")

    def __init__(self, guide, weight, index):
        self._guide, self._weight, self._index = pb.GuidePosterior(guide), weight, index

    def draws(self, num_samples, x=None):
        for index, draw in enumerate(self._guide.draws(num_samples, x)):
            if index == self._index:
                with torch.no_grad():
                    self._weight.mul_(2)
            yield draw


def test_a_body_that_is_changed_between_two_blocks_is_run_again():
    x = torch.randn(8, 4)
    model, guide = last_layer(Body(3), pb.CategoricalLikelihood())
    weight, expected = model.network.first.weight, {}
    original = weight.detach().clone()
    for index in (66, None):  # 2 + 64 draws are two blocks
        with torch.no_grad():
            weight.copy_(original)
        ours = pb.predict(model, Changing(guide, weight, index), x, num_samples=NUM_DRAWS, seed=4, keep_draws=True)
        expected[index] = ours.logits
    assert_identical(expected[66][:66], expected[None][:66])
    with torch.no_grad():
        weight.mul_(2)
    changed = pb.predict(model, guide, x, num_samples=NUM_DRAWS, seed=4, keep_draws=True)
    assert_identical(expected[66][66:], changed.logits[66:])
    assert not torch.allclose(expected[66][66:], expected[None][66:])  # the must-fail twin


class Dropping(nn.Module):
    """Leaves out its head in some calls, by a generator that is not torch's; and masks a class.

    Args:
        draw: Function that draws a number from 0 to 1.
        where: ``body`` or ``head``: the part that has noise.
    """

    def __init__(self, draw, where):
        super().__init__()
        self.body, self.head, self._draw, self._where = nn.Linear(4, 6), nn.Linear(6, 3), draw, where

    def noisy(self, h, where):
        return h * (self._draw() < 0.7) if where == self._where else h

    def forward(self, x):
        h = self.noisy(self.body(x), "body")
        return self.noisy(self.head(h), "head").masked_fill(torch.tensor([False, False, True]), -1e9)


GENERATORS = {
    "python": lambda: random.random(),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002  # a network may still use it
    "own, python": random.Random(0).random,
    "own, numpy": np.random.default_rng(0).random,
    "own, legacy": np.random.RandomState(0).rand,
}


@pytest.fixture
def seeded_generators():
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


@pytest.mark.parametrize("where", ["body", "head"])
@pytest.mark.parametrize("is_all_random", [False, True])
@pytest.mark.parametrize("name", GENERATORS)
def test_each_draw_has_noise_of_its_own_by_generators_of_others(name, is_all_random, where, seeded_generators):
    net = Dropping(GENERATORS[name], where)
    model, guide = last_layer(net, pb.CategoricalLikelihood(), "**" if is_all_random else "net.head.*")
    found = pb.predict(model, guide, torch.randn(5, 4), num_samples=200, seed=0, keep_draws=True).logits
    logits = found[:, :, :2]  # (S, N, 2)
    if where == "body":
        is_left_out = (logits - logits[:, :1]).abs().flatten(1).amax(1) < 1e-9  # the same for all rows
    else:
        is_left_out = (logits[..., 0] - logits[..., 1]).abs().amax(1) < 1e-9
    share = float(is_left_out.double().mean())
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 200) ** 0.5
    changes = int((is_left_out[1:] != is_left_out[:-1]).sum())
    assert abs(changes / 199 - 2 * 0.3 * 0.7) < 5 * (0.42 * 0.58 / 199) ** 0.5


def test_a_mask_does_not_hide_that_draws_differ():
    from pyro_bnn.results.prediction._batch import faster

    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    draws = {"weight": torch.randn(2, 3, 4), "bias": torch.zeros(2, 3)}
    expected = torch.stack([nn.functional.linear(x, weight) for weight in draws["weight"]])
    assert faster(net, draws, x, expected, nullcontext) is not None
    expected[..., 2] = -1e9
    masked = nn.Sequential(net, Masking())
    draws = {f"0.{name}": value for name, value in draws.items()}
    assert faster(masked, draws, x, expected, nullcontext) is not None
    expected[0, 0, 0] += 1e-3
    assert faster(masked, draws, x, expected, nullcontext) is None


class Masking(nn.Module):
    def forward(self, y):
        return y.masked_fill(torch.tensor([False, False, True]), -1e9)


def test_a_network_with_large_tensors_inside_is_run_once_for_each_draw():
    """A small layer for each of many elements: few weights and outputs, but large tensors in between."""
    counts = {}
    for num_elements in (10, 20_000):
        net = nn.Sequential(Counted(1, 30), nn.Tanh(), nn.Flatten(), Sum())
        model, guide = pair(net, pb.GaussianLikelihood(1.0))
        del CALLS[:]
        pb.predict(model, guide, torch.randn(4, num_elements, 1), num_samples=20, seed=0)
        counts[num_elements] = len(CALLS)
    assert counts[10] < 10
    assert counts[20_000] >= 20


class Sum(nn.Module):
    def forward(self, x):
        return x.sum(-1, keepdim=True)


def test_the_same_memory_is_held_for_many_draws():
    """Weights of a large network are not collected, and only few draws of a small network are."""
    import gc

    model, guide = pair(nn.Sequential(nn.Linear(4, 9000), nn.Linear(9000, 3)), pb.CategoricalLikelihood())
    held = []

    def count(*_):
        held.append(sum(1 for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == (9000, 4)))

    pb.predict(model, guide, torch.randn(1, 4), num_samples=4, seed=0)
    handle = model.network.register_forward_hook(count)
    pb.predict(model, guide, torch.randn(1, 4), num_samples=6, seed=0)
    handle.remove()
    assert max(held) <= min(held) + 3


@pytest.mark.parametrize("parts", [(30,), (2, 28), (1, 4, 25)])
def test_blocks_of_draws_add_up_even_if_they_hardly_disagree(parts):
    scale = torch.logspace(-6, 1.5, 12)[:, None]
    logits = 3 * torch.randn(12, 4) + scale * torch.randn(30, 12, 4)
    one, blocks = pb.uncertainty.ClassAccumulator(), pb.uncertainty.ClassAccumulator()
    for draw in logits:
        one.add(pyro.distributions.Categorical(logits=draw), keep=False)
    for block in logits.split(parts):
        blocks.add_draws(pyro.distributions.Categorical(logits=block), keep=False)
    ours, expected = blocks.prediction(None), one.prediction(None)
    torch.testing.assert_close(ours.epistemic, expected.epistemic, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(ours.logit_variance, expected.logit_variance, rtol=1e-6, atol=0.0)
    assert torch.equal(ours.votes, expected.votes)
    entropies = [torch.special.entr(p).sum(-1) for p in (logits.softmax(-1).mean(0), logits.softmax(-1))]
    by_difference = entropies[0] - entropies[1].mean(0)  # the must-fail twin
    assert not ((by_difference / expected.epistemic) - 1).abs().lt(1e-6).all()
