"""Ensembles by `fit`: members differ, processes do not matter, and what cannot work is refused."""

import copy
import functools
import os
import time

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.modelling.model import network_values, reset_network

from .test_workers import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short fits

NUM_DATA = 30


def problem(net=None, **options):
    """A model of numbers, and its data."""
    x = torch.linspace(-1, 1, NUM_DATA)[:, None]
    net = nets.mlp([1, 5, 1], activation=nn.Tanh).double() if net is None else net
    options = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(0.1), **options}
    return pb.BayesianModel(net, num_data=NUM_DATA, **options), (x, x.sin())


def fitted(model, data, **options):
    return pb.fit(model, data, method="ensemble", **{"num_members": 3, "num_epochs": 4, "seed": 1, **options})


def weights(posterior):
    return [next(iter(member.draws(1))) for member in posterior.members]


def assert_same(first, second):
    for one, two in zip(weights(first), weights(second), strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


def guide_in_turn(model, path):
    """A guide; this process waits until another one has made a guide."""
    if os.getpid() == int(path.name):
        wait_for(path / "met")
    (path / "met").touch()
    return pb.DeltaGuide(model)


@pytest.mark.slow
def test_the_members_do_not_depend_on_the_number_of_processes(tmp_path):
    path = tmp_path / str(os.getpid())
    path.mkdir()
    model, data = problem()
    together = fitted(model, data, batch_size=7, num_workers=2, guide=functools.partial(guide_in_turn, path=path))
    alone = fitted(model, data, batch_size=7, num_workers=1)
    assert_same(together, alone)
    assert [member.history.elbo for member in together.members] == [member.history.elbo for member in alone.members]
    assert "in up to 2 processes" in str(together.status)


def test_members_differ_and_a_seed_repeats_them_and_the_model_stays():
    model, data = problem()
    before = copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    first, second, other = (fitted(model, data, seed=seed) for seed in (1, 1, 2))
    assert_same(first, second)
    starts = [member.history.elbo[0] for ensemble in (first, other) for member in ensemble.members]
    assert len({*starts}) == 6
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    prediction = pb.predict(model, first, data[0], num_samples=3)
    assert prediction.epistemic.min() > 1e-6


def test_each_member_has_its_own_order_of_batches():
    """A linear model, whose posterior has one mode, and equal starts: with batches the paths differ."""

    def same_start(net):
        nn.init.constant_(net.weight, 0.5)

    model, data = problem(nn.Linear(1, 1).double(), exclude="**.bias")
    whole = fitted(model, data, reset=same_start)
    assert len({member.history.elbo[-1] for member in whole.members}) == 1
    batches = fitted(model, data, reset=same_start, batch_size=7)
    assert len({member.history.elbo[-1] for member in batches.members}) == 3


@pytest.mark.nightly  # the example of `fit` is such a fit
def test_the_status_tells_that_all_members_ended_well():
    posterior = fitted(*problem(), num_members=2, num_epochs=3000)
    assert posterior.status
    assert str(posterior.status).startswith("All 2 members ended well; the first: converged: the ELBO rose by less")
    assert str(posterior.status).endswith(f"Fitted in {posterior.seconds:.3g} s in this process.")


def test_the_default_is_five_points_and_the_status_tells_how_they_ended():
    short = fitted(*problem(), num_members=None, num_workers=1)
    assert [type(member.guide) for member in short.members] == [pb.DeltaGuide] * 5
    assert not short.status
    assert "5 of 5 members did not end well. member 0: not converged: stopped after 4 epochs" in str(short.status)
    assert "member 2" not in str(short.status)
    assert str(short.status).endswith("pass an `optimizer` with a higher learning rate.")


def test_a_guide_of_ones_own_makes_an_ensemble_of_gaussians(tmp_path):
    model, data = problem()
    gaussians = fitted(model, data, guide=lambda model: pb.LowRankGuide(model, rank=1), kl_weight=0.5)
    assert [type(member.guide) for member in gaussians.members] == [pb.LowRankGuide] * 3
    assert set(gaussians.members[1].history.kl_weight) == {0.5}
    natural = fitted(
        model,
        data,
        guide=functools.partial(pb.MeanFieldGuide, scale_map=pb.scale_maps.Precision()),
        optimizer=pb.optim.natural_gradient(0.1),
    )
    assert all(member.status for member in natural.members) or "lr 0.1" in str(natural.members[0].status)
    pb.save_posterior(gaussians, tmp_path / "file", model)
    loaded = pb.load_posterior(tmp_path / "file", problem()[0])
    assert (loaded.status, loaded.seconds) == (gaussians.status, gaussians.seconds)
    assert_equal_draws(loaded, gaussians)


def assert_equal_draws(first, second):
    draws = []
    for posterior in (first, second):
        torch.manual_seed(0)
        draws.append(posterior.sample(6))
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in draws[0])


def test_validation_rows_end_the_fit_of_each_member():
    model, (x, y) = problem()
    posterior = fitted(model, (x, y), num_epochs=400, validation=(x, -y))
    assert all("stopped early" in str(member.status) for member in posterior.members)


# --- new networks -----------------------------------------------------------------------------------------------------


class Sequence(nn.Module):
    """Reads a sequence by a recurrent layer and attention."""

    def __init__(self):
        super().__init__()
        self.cells, self.attention = nn.LSTM(1, 4, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)
        self.end = nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.cells(x[:, None])[0]
        return self.end(self.attention(hidden, hidden, hidden)[0][:, 0])


NETWORKS = {
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Conv1d(1, 3, 1), nn.Flatten(), nn.Linear(3, 1)),
    "normalised": lambda: nn.Sequential(nn.Linear(1, 3), nn.LayerNorm(3), nn.Linear(3, 1)),
    "recurrent": Sequence,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_all_weight_matrices_of_new_networks_differ(name):
    model, (x, _) = problem(NETWORKS[name]().double())
    models = [copy.deepcopy(model) for _ in range(2)]
    outputs = []
    for index, one in enumerate(models):
        torch.manual_seed(index)
        reset_network(one)
        values = {site: one.initial_value(site) for site in one.site_names}
        outputs.append(one.output_given(values, x))
        assert list(one.state_dict()) == list(model.state_dict())
    for site in model.site_names:
        first, second, old = (one.initial_value(site) for one in (*models, model))
        assert first.dim() < 2 or not (torch.equal(first, second) or torch.equal(first, old))
    assert not torch.equal(*outputs)


def test_a_new_network_is_what_torch_makes():
    model, _ = problem(nn.Linear(4, 3).double())
    torch.manual_seed(5)
    expected = nn.Linear(4, 3)
    torch.manual_seed(5)
    reset_network(model)
    assert torch.equal(model.initial_value("net.weight"), expected.weight)
    assert torch.equal(model.initial_value("net.bias"), expected.bias)


def test_tied_weights_stay_tied():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    net[2].weight = net[0].weight
    model, _ = problem(net)
    reset_network(model)
    assert torch.equal(model.network[0].weight, model.network[2].weight)
    assert not torch.equal(model.network[0].weight, net[0].weight)


class Own(nn.Module):
    """A layer with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.factor * x


class Replacing(Own):
    """Its method makes new parameters, where torch's layers change theirs."""

    def reset_parameters(self):
        self.factor = nn.Parameter(torch.randn(1))


def test_a_layer_that_cannot_be_reset_is_refused_unless_it_is_frozen_or_a_function_is_given():
    net = nn.Sequential(nn.Linear(1, 1), Own()).double()
    model, data = problem(net)
    with pytest.raises(ValueError, match=r"the layer `net.1` of class Own has no method `reset_parameters`.*`reset=`"):
        fitted(model, data)
    model, data = problem(nn.Sequential(nn.Linear(1, 1), Replacing()).double())
    assert len({float(draw["net.1.factor"]) for draw in weights(fitted(model, data))}) == 3
    net[1].requires_grad_(False)
    net[0].bias.requires_grad_(False)
    model, data = problem(net, exclude=["net.0.bias", "net.1.factor"])
    posterior = fitted(model, data)
    assert len({float(draw["net.0.weight"]) for draw in weights(posterior)}) == 3
    assert [type(member) for member in posterior.members] == [pb.GuidePosterior] * 3  # nothing else was learned


class Forgetful(Own):
    """Its method does nothing."""

    def reset_parameters(self):
        pass


def test_a_method_that_leaves_a_weight_as_it_is_is_refused():
    net = nn.Sequential(nn.Linear(1, 1), Forgetful()).double()
    with pytest.raises(ValueError, match=r"does not set `net\.1\.factor`; pass `reset=`"):
        fitted(*problem(net))


def test_a_network_that_was_made_with_the_same_seed_may_be_used():
    torch.manual_seed(1)
    model, data = problem()
    posterior = fitted(model, data, seed=1, num_members=2, optimizer=functools.partial(torch.optim.SGD, lr=1e-12))
    assert (weights(posterior)[0]["net.0.weight"] - model.initial_value("net.0.weight")).abs().max() > 1e-3


def test_a_function_may_leave_a_part_pretrained():
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model, data = problem(net)
    sgd = functools.partial(torch.optim.SGD, lr=1e-12)
    draws = weights(fitted(model, data, reset=lambda net: net[2].reset_parameters(), optimizer=sgd))
    torch.testing.assert_close(draws[0]["net.0.weight"], net[0].weight.detach(), rtol=0, atol=1e-6)
    assert (draws[0]["net.2.weight"] - draws[1]["net.2.weight"]).abs().max() > 1e-3
    with pytest.raises(ValueError, match="`reset` must give the network new initial weights in place"):
        fitted(model, data, reset=lambda net: None)


def test_members_keep_their_own_statistics_and_learned_parameters():
    net = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    model, data = problem(net, exclude=pb.layers(nn.BatchNorm1d))
    posterior = fitted(model, data)
    means, factors = ([draw[f"net.1.{name}"] for draw in weights(posterior)] for name in ("running_mean", "weight"))
    assert not torch.equal(means[0], means[1])
    assert not torch.equal(factors[0], factors[1])
    assert torch.equal(network_values(model)["net.1.running_mean"], torch.zeros(3))
    assert posterior.members[2].history.elbo
    assert pb.predict(model, posterior, data[0], num_samples=3).epistemic.max() > 0


@pytest.mark.nightly
def test_a_noise_scale_is_learned_by_each_member_and_averaged():
    x = torch.linspace(-1, 1, NUM_DATA)[:, None]
    y = x + 0.2 * torch.randn(NUM_DATA, 1)
    net = nn.Linear(1, 1).double()
    model, _ = problem(net, likelihood=pb.GaussianLikelihood(None))
    options = {"num_epochs": 150, "optimizer": functools.partial(torch.optim.Adam, lr=0.1), "seed": 1}
    posterior = fitted(model, (x, y), num_workers=1, **options)
    single, _ = problem(net, likelihood=pb.GaussianLikelihood(None))
    pb.fit(single, (x, y), method="svi", guide=pb.DeltaGuide(single), **options)
    scale = float(model.likelihood.noise_scale().detach())
    assert scale == pytest.approx(float(single.likelihood.noise_scale().detach()), rel=0.05)
    assert pb.predict(model, posterior, x).aleatoric.mean().sqrt() == pytest.approx(scale)


def test_members_may_have_a_latent_noise_scale_each():
    model, data = problem(likelihood=pb.GaussianLikelihood(dist.LogNormal(-1.0, 1.0)))
    assert len({float(draw["likelihood.scale"]) for draw in weights(fitted(model, data))}) == 3


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_members": 0}, "`num_members` must be a whole number of at least 1, got 0"),
        ({"num_workers": -1}, "`num_workers` must be a whole number of at least 0, got -1"),
        ({"reset": 3}, "`reset` must be a function that gives a network new weights in place, got int"),
        ({"guide": 3}, "`guide` must be a function of the model that makes a guide"),
        ({"guide": lambda model: 3}, "`guide` must be a function of the model that returns a guide, got int"),
        ({"callbacks": [print]}, r"`callbacks` are called with the history of one fit.*members\[0\].history"),
        ({"time_limit": 3}, '`time_limit` does not apply to method="ensemble"'),
        ({"method": "svi", "num_members": 3}, '`num_members` is for ensembles, got method="svi"; leave it out'),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    model, data = problem()
    with pytest.raises(ValueError, match=message):
        pb.fit(model, data, **{"method": "ensemble", **options})


def test_a_guide_that_is_made_already_is_refused():
    model, data = problem()
    with pytest.raises(ValueError, match=r"got a MeanFieldGuide; pass `guide=pb.MeanFieldGuide`"):
        fitted(model, data, guide=pb.MeanFieldGuide(model))


def test_a_loader_stays_in_this_process():
    model, data = problem()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=10, shuffle=True)
    posterior = fitted(model, loader)
    assert "in this process" in str(posterior.status)
    with pytest.raises(ValueError, match=r"`num_workers` must be 1, since the data are a loader.*, got 2; leave"):
        fitted(model, loader, num_workers=2)


# --- interruption -----------------------------------------------------------------------------------------------------


class Interrupting:
    """A guide function that is interrupted when it makes its second guide."""

    def __init__(self):
        self.count = 0

    def __call__(self, model):
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt
        return pb.DeltaGuide(model)


def test_an_interrupted_ensemble_continues_bit_for_bit(tmp_path):
    model, data = problem()
    path = tmp_path / "state"
    with pytest.raises(FileNotFoundError, match=r"`resume` must be the path .*state\.0-of-3"):
        fitted(model, data, resume=path)
    with pytest.raises(pb.Interrupted, match=r"in .*state\.\*-of-3\. To continue, .*`resume='.*state'`"):
        fitted(model, data, checkpoint=path, guide=Interrupting())
    assert [file.name for file in tmp_path.iterdir()] == ["state.0-of-3"]
    begin = time.time_ns()
    resumed = fitted(model, data, checkpoint=path, resume=path)
    assert_same(resumed, fitted(model, data))
    assert sum(file.stat().st_mtime_ns > begin for file in tmp_path.iterdir()) >= 2
    with pytest.raises(FileExistsError, match=r"state\.0-of-3 exists"):
        fitted(model, data, checkpoint=path)
