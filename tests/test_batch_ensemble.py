"""Batch ensembles: members that share weights, their gradients and predictions, and what they are good for."""

import functools
import math

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn.inference.guides import Noise

from .cases import LIKELIHOODS, Recurrent, Tied, small_model
from .fits import FROZEN, MORE_PRIORS, assert_same, fit, fit_both, forbid_direct, problem, whole
from .tolerances import agrees_in_mean, assert_identical

SCALE = 0.7
"""Of the prior of the models below."""


class Convolutions(nn.Module):
    """Two convolutions, one of them in groups, for rows of four numbers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 2, padding=1)
        self.second = nn.Conv2d(4, 6, 2, groups=2, bias=False)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x.view(-1, 1, 2, 2)).tanh()).flatten(1))


class Embedded(nn.Module):
    """An embedding of four numbers per row, of which few are used, and a parameter with three axes."""

    def __init__(self, is_sparse=False):
        super().__init__()
        self.table = nn.Embedding(7, 3, sparse=is_sparse)
        self.place = nn.Parameter(torch.randn(1, 4, 3))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head((self.table((x > 0).long() + 3) * self.place).tanh().flatten(1))


class Large(nn.Module):
    """Weights, and a vector, that are large enough for gradients of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 2**16), nn.Linear(1, 1), nn.Linear(2**16, 3)

    def forward(self, x):
        return self.head(self.norm(self.first(x).tanh().unsqueeze(-1)).squeeze(-1))


NETS = {
    "dense": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)),
    "layer-norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)),
    "convolutions": Convolutions,
    "embedding": Embedded,
    "sparse-embedding": functools.partial(Embedded, is_sparse=True),
    "recurrent": Recurrent,
    "tied": Tied,
    "large": Large,
}


def ensemble(model, **kwargs):
    """Three members that differ in every parameter, whose shared weights are not those of the network."""
    guide = pb.BatchEnsembleGuide(model, **{"num_members": 3, "init": pb.NormalInit(0.5), **kwargs})
    with torch.no_grad():
        guide.members.add_(0.3 * torch.randn_like(guide.members))
    return guide


def by_hand(guide, model, loc, row):
    """The weights of a member, from the shared weights and its row, by the formula of the paper."""
    weights, start = {}, 0

    def part(*shape):
        nonlocal start
        found, start = row[start : start + math.prod(shape)].reshape(shape), start + math.prod(shape)
        return found

    for site in guide.sites:
        if site.name in loc:
            weight = loc[site.name]
            outputs, inputs = part(weight.shape[0]), part(weight.shape[1])
            weights[site.name] = torch.einsum("oi...,o,i->oi...", weight, outputs, inputs)
        else:
            weights[site.name] = part(*site.start.shape)
    assert start == len(row)
    return weights


def terms_of(model, weights, x, y):
    """The log-likelihood of all data, and minus the log-density of the prior."""
    given = {name.removeprefix("net."): weight for name, weight in weights.items()}
    if isinstance(model.network, Tied):
        given["second.weight"] = given["first.weight"]
    logits = functional_call(model.network, given, x)
    log_likelihood = -F.cross_entropy(logits, y) * model.num_data
    return log_likelihood, -sum(torch.distributions.Normal(0.0, SCALE).log_prob(w).sum() for w in weights.values())


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_the_written_out_objective(name):
    torch.manual_seed(1)
    model, x, y = small_model(net=NETS[name](), num_data=20)
    guide = ensemble(model)
    seen = set()
    with pb.svi_step(model, guide, FROZEN, kl_weight=0.3) as step:
        for _ in range(8 if name != "large" else 1):
            terms = step(x, y)
            assert step.path == "direct"
            given = guide.members.grad
            index = int(given.abs().sum(1).argmax())
            seen.add(index)
            loc = {site: value.detach().clone().requires_grad_() for site, value in guide.loc.named_parameters()}
            members = guide.members.detach().clone().requires_grad_()
            log_likelihood, kl = terms_of(model, by_hand(guide, model, loc, members[index]), x, y)
            expected = torch.autograd.grad(0.3 * kl - log_likelihood, [*loc.values(), members])
            for found, gradient in zip([*(p.grad for p in guide.loc.parameters()), given], expected, strict=True):
                torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-10)
            assert_identical(terms.log_likelihood, log_likelihood.detach())
            assert_identical(terms.kl, kl.detach())
    assert len(seen) > 1 or name == "large"


@pytest.mark.daily("TraceMeanField_ELBO")
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_pyros_bound_is_in_expectation_the_mean_over_the_members(elbo):
    torch.manual_seed(1)
    model, x, y = whole()
    guide = ensemble(model)
    exact = []
    for row in guide.members.detach():
        log_likelihood, kl = terms_of(model, by_hand(guide, model, dict(guide.loc.named_parameters()), row), x, y)
        exact.append(float((kl - log_likelihood).detach()))
    with pb._core.scope.own_parameters(guide):
        losses = torch.tensor([elbo().loss(model, guide, x, y) for _ in range(150)])
    apart = (losses[:, None] - torch.tensor(exact)).abs() / losses[:, None]
    assert bool((apart.min(1).values < 1e-10).all())  # each draw is a member
    assert agrees_in_mean(losses, sum(exact) / 3)
    assert not agrees_in_mean(losses, (exact[0] + exact[1]) / 2)


@pytest.mark.daily("normal", "mixture", "joint", "positive")
@pytest.mark.parametrize("prior", MORE_PRIORS)
def test_every_prior_gives_the_same_fit_on_both_paths(monkeypatch, prior):
    make = problem(prior, make_guide=ensemble)
    assert_same(fit_both(monkeypatch, make, elbo=Trace_ELBO(num_particles=3), batch_size=4))


@pytest.mark.daily("categorical", "gaussian-latent", "own")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_gives_the_same_fit_on_both_paths(monkeypatch, likelihood):
    assert_same(fit_both(monkeypatch, problem("mixture", likelihood, make_guide=ensemble), kl_weight=0.3))


@pytest.mark.parametrize("name", [name for name in NETS if name not in ("large", "sparse-embedding")])
def test_every_network_gives_the_same_fit_on_both_paths(monkeypatch, name):
    def make():
        model, x, y = whole(net=NETS[name]())
        return model, ensemble(model), (x, y)

    assert_same(fit_both(monkeypatch, make))


def test_frozen_parameters_stay(monkeypatch):
    for frozen in ("members", "loc.net.0.weight"):

        def make(frozen=frozen):
            model, x, y = whole()
            guide = ensemble(model)
            guide.get_parameter(frozen).requires_grad_(False)
            return model, guide, (x, y)

        torch.manual_seed(3)
        start = make()[1].get_parameter(frozen).clone()
        found = fit_both(monkeypatch, make)
        assert_same(found)
        assert torch.equal(found[0][1][frozen], start)


@pytest.mark.parametrize("path", ["direct", "pyro"])
def test_one_member_with_unit_factors_is_the_point(monkeypatch, path):
    model, x, y = whole("gaussian-latent")
    found = []
    if path == "pyro":
        forbid_direct(monkeypatch)
    one = functools.partial(pb.BatchEnsembleGuide, num_members=1, factor_scale=0.0)
    for kind in (pb.DeltaGuide, one):
        torch.manual_seed(0)
        guide = kind(model, init=pb.NormalInit(0.5))
        posterior = fit(model, guide, x, y, optimizer=FROZEN, kl_weight=0.4, num_epochs=1)
        record = posterior.history.epochs[-1]
        gradients = {name: parameter.grad for name, parameter in guide.named_parameters()}
        found.append((record.elbo, record.kl, posterior.median(), gradients))
    (elbo, kl, point, of_point), (own_elbo, own_kl, own, of_members) = found
    assert_identical([elbo, kl], [own_elbo, own_kl])
    assert {name: value.tolist() for name, value in point.items()} == {n: v.tolist() for n, v in own.items()}
    row = by_hand_of_one(guide, of_members.pop("members")[0])
    assert set(row) | {name.removeprefix("loc.") for name in of_members} == set(model.latent_names)
    for name, gradient in of_point.items():
        site = name.removeprefix("loc.")
        assert_identical(of_members[name] if name in of_members else row[site], gradient)


def by_hand_of_one(guide, row):
    """The parts of a row that belong to variables without factors."""
    unit = {name: torch.zeros_like(value) for name, value in guide.loc.named_parameters()}
    return {name: value for name, value in by_hand(guide, None, unit, row).items() if name not in unit}


# --- draws and predictions --------------------------------------------------------------------------------------------


def test_draws_are_the_members_in_turn_and_may_be_changed():
    model, _, _ = whole("gaussian-latent")
    guide = ensemble(model)
    loc = dict(guide.loc.named_parameters())
    expected = [by_hand(guide, model, loc, row) for row in guide.members.detach()]
    for draws in (guide.draws(7), pb.GuidePosterior(guide).draws(7)):
        for index, draw in enumerate(draws):
            for name in model.site_names:
                assert_identical(draw[name], expected[index % 3][name].detach())
            for value in draw.values():
                value.zero_()
    with pytest.warns(UserWarning, match="2 draws do not use 1 of the guide's 3 members; draw a multiple of 3"):
        pb.GuidePosterior(guide).sample(2)


@pytest.mark.parametrize("net", [NETS["dense"], Convolutions, Recurrent])
def test_predictions_are_those_of_the_plain_networks(net):
    model, x, y = whole(net=net())
    posterior = fit(model, ensemble(model), x, y, num_epochs=5)
    prediction = pb.predict(model, posterior, x, num_samples=3, keep_draws=True)
    probs = []
    for draw in posterior.draws(3):
        plain = net()
        plain.load_state_dict({name.removeprefix("net."): value for name, value in draw.items()})
        with torch.no_grad():
            probs.append(plain.eval()(x).softmax(-1))
    assert_identical(prediction.probs, torch.stack(probs).mean(0))
    assert_identical(prediction.probs, pb.predict(model, posterior, x, num_samples=9).probs)
    assert float(torch.stack(probs).std(0).max()) > 0.01


def test_batch_normalisation_is_refreshed_for_each_member():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    model, x, y = whole(net=net)
    posterior = fit(model, ensemble(model), x, y, num_epochs=5)
    assert posterior.history.path == "direct"
    refreshed = pb.RefreshedPosterior(model, posterior, x, batch_size=3)
    parts = []
    for draw in posterior.draws(3):
        pb.refresh_batch_norm(model, draw, x, batch_size=3)
        parts.append(pb.predict_point(model, draw, x).probs)
    assert_identical(pb.predict(model, refreshed, x, num_samples=3).probs, torch.stack(parts).mean(0))


def test_only_weights_of_two_axes_are_shared():
    """Of a scale for each weight, which is positive, every member has its own copy."""
    model, x, y = whole(prior=pb.HorseshoePrior(0.5, local="weight"))
    guide = ensemble(model)
    assert [name for name, _ in guide.loc.named_parameters()] == ["net.0.weight", "net.2.weight"]
    num_copied = sum(math.prod(site.start.shape) for site in guide.sites if site.name not in guide.shared)
    assert guide.members.shape == (3, num_copied + (5 + 4) + (3 + 5))
    assert "3 members share the weights of 2 of" in repr(guide)
    posterior = fit(model, guide, x, y)
    assert all(value.shape[0] == 3 for value in posterior.sample(3).values())
    biases, x, y = whole(where="**.bias")
    posterior = fit(biases, ensemble(biases), x, y)
    assert posterior.history.path == "direct"
    assert [name for name, _ in posterior.guide.named_parameters()] == ["members"]


def test_many_members_cost_few_parameters():
    model = pb.BayesianModel(
        pb.nets.mlp([784, 400, 400, 10]),
        prior=pb.NormalPrior(),
        likelihood=pb.CategoricalLikelihood(),
        num_data=100,
    )
    counts = [sum(p.numel() for p in kind(model).parameters()) for kind in (pb.DeltaGuide, pb.BatchEnsembleGuide)]
    assert counts[0] < counts[1] < 1.03 * counts[0]


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_file_alone_makes_the_guide_again(tmp_path):
    model, x, y = whole()
    posterior = fit(model, ensemble(model, num_members=5), x, y)
    pb.save_posterior(posterior, tmp_path / "file", model)
    again = pb.load_posterior(tmp_path / "file", whole()[0])
    assert again.guide.num_members == 5
    assert torch.equal(again.guide.members, posterior.guide.members)
    found, expected = (pb.predict(model, p, x, num_samples=5).probs for p in (again, posterior))
    assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="shape"):
        pb.load_posterior(tmp_path / "file", whole()[0], guide=ensemble(model, num_members=4))


# --- what it is good for ----------------------------------------------------------------------------------------------


def labelled(num_rows=2300):
    """Inputs, and labels drawn from a random network."""
    teacher = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.normal_(0, 1.5 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.3)
        x = torch.randn(num_rows, 20)
        return x, torch.distributions.Categorical(logits=3 * teacher(x)).sample()


@pytest.mark.daily("0")
@pytest.mark.parametrize("seed", range(3))
def test_members_differ_after_a_fit_and_together_beat_one_network(seed):
    torch.manual_seed(seed)
    x, y = labelled()
    (x, x_test), (y, y_test) = (part.split([300, 2000]) for part in (x, y))
    nll = {}
    for name, kind in (
        ("one", pb.DeltaGuide),
        ("four", functools.partial(pb.BatchEnsembleGuide, factor_scale=None)),
    ):
        torch.manual_seed(seed)
        model = pb.BayesianModel(
            pb.nets.mlp([20, 50, 50, 3]),
            prior=pb.NormalPrior(),
            likelihood=pb.CategoricalLikelihood(),
            num_data=300,
        )
        posterior = pb.fit_svi(
            model,
            (x, y),
            kind(model),
            optimizer=functools.partial(torch.optim.Adam, lr=0.01),
            num_epochs=60,
            batch_size=50,
            kl_weight=0.0,
            seed=seed,
        )
        nll[name] = pb.predict(model, posterior, x_test, y=y_test, num_samples=4).nll
    members = [float(pb.predict_point(model, draw, x_test, y=y_test).nll) for draw in posterior.draws(4)]
    assert nll["four"] < 0.6 * nll["one"]
    assert nll["four"] < 0.9 * min(members)
    weights = posterior.sample(4)["net.2.weight"]
    assert float(weights.std(0).mean()) > 0.5 * float(weights.abs().mean())


def test_factors_start_as_in_the_paper():
    model, _, _ = small_model(net=nn.Linear(300, 200))
    signs, gaussian, same = (
        pb.BatchEnsembleGuide(model, num_members=2, factor_scale=scale).members.detach()[:, :500]
        for scale in (None, 0.1, 0.1)
    )
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(gaussian, same)
    for factors in (signs, gaussian):
        assert bool((factors[0] != factors[1]).any())
    for row, sign in zip(gaussian, signs, strict=True):
        assert agrees_in_mean(sign, 0.0)
        assert agrees_in_mean(row, 1.0)
        assert agrees_in_mean((row - 1).square(), 0.01)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_with_the_remedy():
    model, x, y = whole()
    for members, message in ((0, "whole number of at least 1, got 0"), (1.5, "got 1.5"), (10**12, "use fewer members")):
        with pytest.raises(ValueError, match=f"`num_members`.*{message}"):
            pb.BatchEnsembleGuide(model, num_members=members)
    with pytest.raises(ValueError, match="`factor_scale` must be a finite number of at least 0"):
        pb.BatchEnsembleGuide(model, factor_scale=-1.0)
    with pytest.raises(ValueError, match=r"`model` must be a BayesianModel.*take MeanFieldGuide"):
        pb.BatchEnsembleGuide(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Use MeanFieldGuide, or a fixed prior"):
        pb.BatchEnsembleGuide(whole(prior=pb.LearnedNormalPrior(1.0))[0])
    guide = ensemble(model)
    with pytest.raises(ValueError, match="`guide` must be a MeanFieldGuide"):
        fit(model, guide, x, y, estimator=pb.Flipout())
    with pytest.raises(ValueError, match="each member is a point; leave `estimator` out"):
        guide.flat(guide.joint(model), noise=Noise.DEVIATION, closed_form=False)
    with pytest.raises(ValueError, match="use `sample` instead, whose first 3 draws are the members"):
        pb.GuidePosterior(guide).median()
    with pytest.raises(ValueError, match="Gaussian marginals"):
        pb.GuidePosterior(guide).diagnose(model)
