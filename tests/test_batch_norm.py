"""Statistics of batch normalisation for each draw, and draws with values of the network's learned parameters."""

import pytest
import torch
from pyro.nn.module import to_pyro_module_
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import PinnedPosterior

from .tolerances import assert_identical

N, BATCH = 60, 20


def network(is_pyro=False):
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4), nn.BatchNorm1d(4))
    if is_pyro:
        to_pyro_module_(net)
    return net


def problem(where=("net.0.*", "net.3.weight"), is_pyro=False):
    likelihood = pb.CategoricalLikelihood()
    net = network(is_pyro)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=N, where=where)
    return model, pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5)), torch.randn(N, 3) + 2


def norms(model):
    return [layer for layer in model.network.modules() if isinstance(layer, nn.BatchNorm1d)]


def by_hand(model, draw, x, batch_size=BATCH):
    """For each layer in turn, the averages over batches of the batch means and of the batch variances."""
    _, norm, _, second, _ = model.network
    affine = (torch.nn.functional.linear(b, draw["net.0.weight"], draw["net.0.bias"]) for b in x.split(batch_size))
    found = {name: [] for name in ("mean1", "var1", "mean4", "var4")}
    for hidden in affine:
        found["mean1"].append(hidden.mean(0))
        found["var1"].append(hidden.var(0))
        scaled = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + norm.eps).sqrt() * norm.weight + norm.bias
        output = torch.tanh(scaled) @ draw["net.3.weight"].T + second.bias
        found["mean4"].append(output.mean(0))
        found["var4"].append(output.var(0))
    return {name: torch.stack(values).mean(0) for name, values in found.items()}


def values(found):
    return [found[name] for name in ("mean1", "var1", "mean4", "var4")]


def buffers_of(model):
    return [value for layer in norms(model) for value in (layer.running_mean, layer.running_var)]


CARRIED = ("net.1.running_mean", "net.1.running_var", "net.4.running_mean", "net.4.running_var")


@pytest.mark.parametrize("num_samples", [1, 3])
def test_refreshed_statistics_are_means_over_draws_and_batches(num_samples):
    model, guide, x = problem()
    draws = pb.GuidePosterior(guide).sample(num_samples, seed=5)
    expected = [values(by_hand(model, {k: v[s] for k, v in draws.items()}, x)) for s in range(num_samples)]
    pb.refresh_batch_norm(model, guide, x, num_samples=num_samples, batch_size=BATCH, seed=5)
    for found, parts in zip(buffers_of(model), zip(*expected, strict=True), strict=True):
        assert_identical(found, torch.stack(parts).mean(0))


def test_refreshed_statistics_at_one_value_are_those_of_that_value():
    model, guide, x = problem()
    median = pb.GuidePosterior(guide).median()
    before = model.network[0].weight.clone()
    pb.refresh_batch_norm(model, median, x, batch_size=BATCH)
    for found, expected in zip(buffers_of(model), values(by_hand(model, median, x)), strict=True):
        assert_identical(found, expected)
    assert_identical(model.network[0].weight, before)


@pytest.mark.parametrize("is_pyro", [False, True])
def test_each_draw_is_predicted_with_its_own_statistics(is_pyro):
    model, guide, x = problem(is_pyro=is_pyro)
    refreshed = pb.RefreshedPosterior(model, guide, x, batch_size=BATCH)
    assert refreshed.carried == CARRIED
    kept = pb.predict(model, refreshed, x[:7], num_samples=5, keep_draws=True, seed=1)
    draws = []
    plain = pb.predict(model, Recording(guide, draws), x[:7], num_samples=5, keep_draws=True, seed=1)
    expected = []
    for draw in draws:
        for buffer, value in zip(buffers_of(model), values(by_hand(model, draw, x)), strict=True):
            buffer.copy_(value)
        expected.append(pb.predict_point(model, draw, x[:7]).probs)
    assert_identical(kept.probs, torch.stack(expected).mean(0))
    assert float((plain.probs - kept.probs).abs().max()) > 0.01


class Recording(pb.GuidePosterior):
    """A posterior that keeps the draws it gave."""

    def __init__(self, guide, kept):
        super().__init__(guide)
        self.kept = kept

    def draws(self, num_samples, *args):
        for draw in super().draws(num_samples, *args):
            self.kept.append({name: value.clone() for name, value in draw.items()})
            yield draw


def test_the_model_is_left_as_it_was():
    model, guide, x = problem()
    model.network[4].momentum = 0.3
    model.network[4].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    refreshed = pb.RefreshedPosterior(model, guide, x, batch_size=BATCH)
    pb.predict(model, refreshed, x, num_samples=3, seed=0)
    with pytest.raises(ValueError, match="the network cannot take `x`"):
        next(pb.RefreshedPosterior(model, guide, torch.zeros(9, 5)).draws(1))
    for name, value in model.state_dict().items():
        assert_identical(value, before[name])
    assert [(layer.momentum, layer.training) for layer in norms(model)] == [(0.1, True), (0.3, False)]


def test_frozen_layers_below_do_not_stop_the_refresh():
    """Layers before the first random parameter run once in a prediction, except layers with statistics."""
    model, guide, x = problem(where="net.3.*")
    for parameter in model.network[0].parameters():
        parameter.requires_grad_(False)
    refreshed = pb.RefreshedPosterior(model, guide, x, batch_size=N)
    found = pb.predict(model, refreshed, x, num_samples=4, seed=0)
    pb.refresh_batch_norm(model, pb.GuidePosterior(guide).median(), x, batch_size=N)
    first = buffers_of(model)[:2]
    again = pb.predict(model, refreshed, x, num_samples=4, seed=0)
    assert_identical(again.probs, found.probs)
    draw = next(refreshed.draws(1))
    for name, value in zip(CARRIED[:2], first, strict=True):  # the same for all draws
        assert_identical(draw[name], value)


def fitted(seed):
    torch.manual_seed(seed)
    model, guide, x = problem()
    for layer in norms(model):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        layer.weight.data.normal_()
    return model, guide, x


def test_members_of_an_ensemble_keep_their_own_networks():
    members = [fitted(seed) for seed in range(3)]
    x = members[0][2]
    own, pinned = [], []
    for model, guide, _ in members:
        median = pb.GuidePosterior(guide).median()
        point = pb.DeltaGuide(model)
        point.load_state_dict({f"loc.{name}": value for name, value in median.items()})
        own.append(pb.predict(model, point, x, num_samples=1).probs)
        pinned.append((PinnedPosterior(model, point), point))
    expected = torch.stack(own).mean(0)
    first = members[0][0]
    found = pb.predict(first, pb.EnsemblePosterior([member for member, _ in pinned]), x, num_samples=3)
    assert_identical(found.probs, expected)
    plain = pb.EnsemblePosterior([pb.GuidePosterior(point) for _, point in pinned])
    with pytest.warns(
        UserWarning, match="all members of the ensemble predict with this model's values of the parameters.*PinnedPost"
    ):
        without = pb.predict(first, plain, x, num_samples=3)
    assert float((without.probs - expected).abs().max()) > 0.05


def test_members_that_share_a_frozen_body_are_no_cause_for_a_warning():
    members = [fitted(seed) for seed in range(2)]
    model, _, x = members[0]
    model.network.requires_grad_(False)
    pb.predict(model, pb.EnsemblePosterior([pb.GuidePosterior(guide) for _, guide, _ in members]), x, num_samples=2)


def test_later_changes_of_the_model_do_not_reach_a_pinned_posterior():
    model, guide, x = fitted(0)
    pinned = PinnedPosterior(model, guide)
    before = pb.predict(model, pinned, x, num_samples=4, seed=0).probs
    with torch.no_grad():
        model.network[1].weight.mul_(3)
        model.network[4].running_mean.add_(1)
    assert_identical(pb.predict(model, pinned, x, num_samples=4, seed=0).probs, before)
    changed = pb.predict(model, guide, x, num_samples=4, seed=0).probs
    assert float((changed - before).abs().max()) > 0.05


def test_a_plain_network_gets_what_a_pinned_posterior_carries():
    model, guide, x = fitted(0)
    values = PinnedPosterior(model, guide).median()
    with torch.no_grad():
        model.network[1].weight.mul_(3)
        model.network[4].running_mean.add_(1)
    net = pb.pruning.sparse_network(model, values, max_density=1.0)
    probs = pb.predict_point(model, values, x).probs
    torch.testing.assert_close(net(x).softmax(-1), probs)
    own = pb.pruning.sparse_network(model, guide.median(), max_density=1.0)
    assert not torch.allclose(own(x).softmax(-1), probs, atol=0.05)
    with pytest.raises(ValueError, match=r"`values` has \['net.7.weight'\], which are neither"):
        pb.pruning.sparse_network(model, values | {"net.7.weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"`net.1.weight` must have shape \(6,\), got \(\)"):
        pb.pruning.sparse_network(model, values | {"net.1.weight": torch.tensor(1.0)})


def test_what_draws_carry_is_no_latent_variable():
    model, guide, x = fitted(0)
    pinned = PinnedPosterior(model, guide)
    assert {*pinned.sample(2)} == {*model.site_names, *pinned.carried}
    assert set(pinned.shapes) == set(model.site_names)
    assert set(pinned.median()) == {*model.site_names, *pinned.carried}
    prior = pinned.as_prior(num_samples=3, seed=0)
    assert set(prior.locations) == set(model.site_names)
    with pytest.raises(ValueError, match="`model` must be left out, since each draw has its own values"):
        pinned.to_arviz(model=model, x=x)


@pytest.mark.parametrize(("batch_size", "sizes"), [(20, [20, 20, 20]), (35, [30, 30]), (50, [60]), (7, [7, 6, 7] * 3)])
def test_batches_have_nearly_the_size_that_is_asked_for(batch_size, sizes):
    """The number of batches is rounded: 60 rows are two batches of 30 if 35 is asked for, and one if 50 is."""
    model, guide, x = problem()
    seen = []
    with model.network[0].register_forward_hook(lambda layer, args, output: seen.append(len(output))):
        pb.refresh_batch_norm(model, guide, x, num_samples=1, batch_size=batch_size, seed=0)
    assert sum(seen) == N
    assert sorted(seen) == sorted(sizes)


def test_mistakes_are_told():
    model, guide, x = problem()
    with pytest.raises(ValueError, match="must have draws of latent variables only, got a PinnedPosterior"):
        pb.RefreshedPosterior(model, PinnedPosterior(model, guide), x)
    with pytest.raises(ValueError, match="`batch_size` must be a whole number of at least 2"):
        pb.refresh_batch_norm(model, guide, x, batch_size=1)
    likelihood = pb.CategoricalLikelihood()
    plain = pb.BayesianModel(nn.Linear(3, 4), prior=pb.NormalPrior(), likelihood=likelihood, num_data=N)
    with pytest.raises(ValueError, match="batch normalisation that stores running statistics, got one without"):
        pb.refresh_batch_norm(plain, pb.MeanFieldGuide(plain), x)
    other, _, _ = problem()
    other.network[4] = nn.Identity()
    with pytest.raises(ValueError, match=r"the draws have \['net\.4\.running_mean'"):
        pb.predict(other, pb.RefreshedPosterior(model, guide, x), x, num_samples=2)


def test_a_median_and_a_draw_predict_with_what_they_carry():
    model, guide, x = fitted(0)
    refreshed, pinned = pb.RefreshedPosterior(model, guide, x, batch_size=BATCH), PinnedPosterior(model, guide)
    draw = next(refreshed.draws(1))
    own = [buffer.clone() for buffer in buffers_of(model)]
    found = pb.predict_point(model, draw, x).probs
    at_median = pb.predict_point(model, pinned.median(), x).probs
    for buffer, value in zip(buffers_of(model), own, strict=True):
        assert_identical(buffer, value)
    latent = {name: value for name, value in draw.items() if name not in CARRIED}
    assert not torch.allclose(pb.predict_point(model, latent, x).probs, found)  # the must-fail twin
    assert_identical(pb.predict_point(model, pb.GuidePosterior(guide).median(), x).probs, at_median)
    for buffer, name in zip(buffers_of(model), CARRIED, strict=True):
        buffer.copy_(draw[name])
    assert_identical(pb.predict_point(model, latent, x).probs, found)
    assert_identical(pb.predict_point(model, pinned.median(), x).probs, at_median)


def test_linearised_posteriors_are_not_refreshed():
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(network(), prior=pb.NormalPrior(), likelihood=likelihood, num_data=N)
    x, y = torch.randn(N, 3), torch.arange(N) % 4
    posterior = pb.fit_gauss_newton(model, (x, y), structure="diagonal")
    with pytest.raises(ValueError, match=r"linearised around its median.*refresh_batch_norm"):
        pb.RefreshedPosterior(model, posterior, x)
