"""The direct path of a fit gives Pyro's draws, ELBO and gradients, without effect handlers."""

import functools
import math

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroSample
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.guides import FlatGuide
from pyro_bnn.inference.joint import _densities, density_of, find_sites
from pyro_bnn.inference.svi import NonFiniteError

from .cases import GUIDES, LIKELIHOODS, small_model
from .fits import (
    ELBOS,
    FUSED,
    MORE_PRIORS,
    PLAIN_OR_ESTIMATOR,
    PositivePrior,
    assert_same,
    fit_both,
    forbid_direct,
    linear,
    problem,
    six_rows,
)
from .tolerances import assert_identical

SLOW = functools.partial(torch.optim.Adam, lr=0.02)


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", MORE_PRIORS)
def test_every_prior_gives_the_same_fit(monkeypatch, prior, elbo):
    assert_same(fit_both(monkeypatch, problem(prior), elbo=elbo(), batch_size=4))


@pytest.mark.daily("*-Trace_ELBO", "categorical-*")
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_gives_the_same_fit(monkeypatch, likelihood, elbo):
    assert_same(fit_both(monkeypatch, problem(likelihood=likelihood), elbo=elbo(num_particles=2)))


@pytest.mark.parametrize("guide", [name for name in GUIDES if not name.startswith("auto") or name == "auto-delta"])
def test_every_guide_of_ours_gives_the_same_fit(monkeypatch, guide):
    assert_same(fit_both(monkeypatch, problem("mixture", "gaussian-latent", make_guide=GUIDES[guide])))


@pytest.mark.daily("*-Trace_ELBO-1", "*-normal-TraceMeanField_ELBO-3", "*-mixture-TraceMeanField_ELBO-3")
@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", ["normal", "mixture", "joint", "positive"])
@pytest.mark.parametrize("estimator", PLAIN_OR_ESTIMATOR)
def test_every_estimator_gives_the_same_fit(monkeypatch, estimator, prior, elbo, num_particles):
    options = {"elbo": elbo(num_particles=num_particles), "estimator": PLAIN_OR_ESTIMATOR[estimator]}
    if (estimator, prior) == ("plain", "joint"):
        options["kl_weight"] = 0.3
    assert_same(fit_both(monkeypatch, problem(prior), **options))


@pytest.mark.daily("*-Trace_ELBO", "normal-*", "low-rank-*", "auto-*-rank-*")
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("guide", GUIDES)
def test_every_guide_gives_the_same_fit(monkeypatch, guide, elbo):
    make = problem(likelihood="gaussian-latent", make_guide=GUIDES[guide])
    options = {"elbo": elbo(num_particles=2), "kl_weight": 0.3}
    model, made, data = make()
    if not isinstance(made, FlatGuide):
        assert pb.fit_svi(model, data, made, optimizer=SLOW, num_epochs=1).history.path.startswith("pyro: ")
    elif elbo is TraceMeanField_ELBO and draws_auxiliary_sites(made):
        with pytest.raises(ValueError, match="for which TraceMeanField_ELBO has no closed form"):
            fit_both(monkeypatch, make, **options)  # Pyro, that is: there is nothing to compare with
    else:
        assert_same(fit_both(monkeypatch, make, **options))


def draws_auxiliary_sites(guide):
    nodes = poutine.trace(guide).get_trace().nodes.values()
    return any(node["type"] == "sample" and node["infer"].get("is_auxiliary") for node in nodes)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("prior", ["normal", "mixture", "fan-in", "per-weight"])
def test_chunks_make_no_difference(monkeypatch, prior, chunk):
    monkeypatch.setattr(_densities, "CHUNK", chunk)
    assert_same(fit_both(monkeypatch, problem(prior)))


@pytest.mark.parametrize(
    "options",
    [
        {"kl_weight": pb.kl.blundell(), "batch_size": 2},
        {"kl_weight": 0.0},
        {"optimizer": pb.optim.clipped(SLOW, 0.1)},
        {
            "optimizer": pb.optim.scheduled(
                SLOW, functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
            )
        },
        {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)},
    ],
    ids=["blundell", "no-kl", "clipped", "scheduled", "sgd"],
)
def test_every_option_gives_the_same_fit(monkeypatch, options):
    assert_same(fit_both(monkeypatch, problem("mixture", where="**.weight"), **options))


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()
        )
        self.append(nn.Dropout(0.3)).append(nn.Linear(27, 3))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()))[0]


@pytest.mark.parametrize("net", [Convolutions, Tied])
def test_networks_with_noise_buffers_and_tied_weights_give_the_same_fit(monkeypatch, net):
    make = lambda: problem(likelihood="categorical", net=net())()  # noqa: E731
    assert_same(fit_both(monkeypatch, make, batch_size=3))


def test_single_precision_gives_the_same_fit_up_to_rounding(monkeypatch):
    def make():
        model, guide, (x, y) = problem("mixture", "categorical")()
        return model.float(), guide.float(), (x.float(), y)

    (first, _), (second, _) = fit_both(monkeypatch, make)
    torch.testing.assert_close(torch.tensor(first.loss), torch.tensor(second.loss), rtol=1e-5, atol=1e-4)


def test_without_gradients_enabled_the_fit_is_the_same():
    found = []
    for context in (torch.enable_grad(), torch.no_grad()):
        torch.manual_seed(3)
        model, guide, data = problem()()
        with context:
            found.append(pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=3, seed=1).history.loss)
            assert torch.is_grad_enabled() == (context.__class__ is torch.enable_grad)
    assert found[0] == found[1]
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=1)


def test_another_seed_is_another_fit(monkeypatch):
    """The must-fail twin."""
    first = fit_both(monkeypatch, problem())[0]
    second = fit_both(monkeypatch, problem(), seed=2)[1]
    with pytest.raises(AssertionError):
        assert_same((first, second))


def test_the_mixtures_gradient_is_right_far_out_and_at_zero():
    prior = pb.ScaleMixturePrior(0.3, 1.5, math.exp(-6))
    net = nn.Linear(7, 1, bias=False)
    net.weight.data = torch.tensor([[0.0, 1e-9, 1e-3, -0.02, 1.0, -50.0, 1e4]])
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    (site,) = find_sites(model, (), {})
    value = net.weight.detach().flatten()
    slope, scratch = torch.empty(7), torch.empty(2, 7)
    total = density_of(site).log_prob(value, slope, scratch)
    leaf = value.clone().requires_grad_()
    expected = site.prior.log_prob(leaf.view(1, 7))
    assert_identical(total, expected.detach())
    assert_identical(slope, torch.autograd.grad(expected, leaf)[0])


# --- unusual models ---------------------------------------------------------------------------------------------------


class Shifted(pb.GaussianLikelihood):
    """A likelihood with a real latent variable, which also changes the targets."""

    def __init__(self):
        super().__init__(0.5)
        self.shift = PyroSample(dist.Normal(torch.tensor(0.3), 1.0))

    def forward(self, output):
        return dist.Normal(output + self.shift, 0.5)

    def as_targets(self, y, dtype):
        return y * self.shift.exp()


class Registering(nn.Linear):
    """A network that watches its gradient by a hook, which must not pile up."""

    num_hooks_called = 0

    def forward(self, x):
        if self.weight.requires_grad:
            self.weight.register_hook(self._count)
        return super().forward(x)

    def _count(self, gradient):
        Registering.num_hooks_called += 1


class Unused(nn.Linear):
    """A network whose only random parameter is not used."""

    def forward(self, x):
        return x[:, :2]


MORE_MODELS = {
    "latent-shift": (lambda: nn.Linear(4, 2), Shifted),
    "unused": (lambda: Unused(4, 2), lambda: pb.GaussianLikelihood(0.5)),
}


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [("unused", "plain"), *(("latent-shift", name) for name in PLAIN_OR_ESTIMATOR)],
)
@pytest.mark.parametrize("elbo", ELBOS)
def test_unusual_models_give_the_same_fit(monkeypatch, kind, elbo, estimator):
    net, likelihood = MORE_MODELS[kind]

    def make():
        model = pb.BayesianModel(net(), prior=pb.NormalPrior(), likelihood=likelihood(), num_data=6)
        guide = pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0))
        return model, guide, six_rows()

    assert_same(fit_both(monkeypatch, make, elbo=elbo(), estimator=PLAIN_OR_ESTIMATOR[estimator]))


def test_hooks_that_a_network_sets_do_not_pile_up(monkeypatch):
    def make():
        model, guide = linear(Registering(4, 2))
        return model, guide, six_rows()

    monkeypatch.setattr(Registering, "num_hooks_called", 0)
    model, guide, data = make()
    pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=20)
    num_trials = Registering.num_hooks_called - 20
    assert 0 <= num_trials < 5  # before the fit; if hooks piled up, 20 steps would call 210
    assert_same(fit_both(monkeypatch, make, elbo=TraceMeanField_ELBO()))


# --- parameters that change from outside ------------------------------------------------------------------------------


def clamp(guide):
    for parameter in guide.parameters():
        parameter.data = parameter.data.clamp(-1.5, 1.5)


def load_and_assign(guide):
    state = {name: 0.9 * value for name, value in guide.state_dict().items()}
    guide.load_state_dict(state, assign=True)


def fit_within(guide):
    model = problem()()[0]
    data = torch.ones(6, 4), torch.ones(6, 2)
    pb.fit_svi(model, data, guide, optimizer=functools.partial(torch.optim.SGD, lr=1e-3), num_epochs=2, seed=9)


@pytest.mark.parametrize("change", [clamp, load_and_assign, fit_within, lambda g: g.float().double()])
def test_callbacks_may_replace_the_parameters(monkeypatch, change):
    """Plain gradient descent, whose state does not depend on the parameters' identity."""
    found = []
    for path in ("direct", "pyro"):
        torch.manual_seed(3)
        model, guide, data = problem()()
        options = {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3), "num_epochs": 4, "seed": 1}
        with monkeypatch.context() as patch:
            if path == "pyro":
                forbid_direct(patch)
            history = pb.fit_svi(
                model, data, guide, callbacks=[lambda _, guide=guide: change(guide)], **options
            ).history
        found.append((history, dict(guide.named_parameters())))
    torch.testing.assert_close(torch.tensor(found[0][0].loss), torch.tensor(found[1][0].loss), rtol=1e-9, atol=1e-9)
    for name, parameter in found[0][1].items():
        torch.testing.assert_close(parameter, found[1][1][name], rtol=1e-9, atol=1e-9)


# --- what is reported -------------------------------------------------------------------------------------------------


def test_a_closed_form_divergence_near_the_prior_keeps_its_digits_in_single_precision():
    """A sum of a million small terms, each the difference of a large entropy and a large log-density."""
    torch.manual_seed(0)
    net = nn.Linear(1000, 1000, bias=False).float()
    nn.init.zeros_(net.weight)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    model.float()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1.001)).float()
    data = torch.zeros(1, 1000, dtype=torch.float32), torch.zeros(1, 1000, dtype=torch.float32)
    still = functools.partial(torch.optim.SGD, lr=0.0)
    history = pb.fit_svi(model, data, guide, optimizer=still, num_epochs=1, elbo=TraceMeanField_ELBO()).history
    scale = guide.scales()["net.weight"].double()
    expected = torch.distributions.kl_divergence(dist.Normal(0 * scale, scale), dist.Normal(0 * scale, 1.0)).sum()
    assert history.path == "direct"
    assert history.kl[0] == pytest.approx(float(expected), rel=0.05)


@pytest.mark.parametrize("where", ["scale", "noise", "value"])
def test_the_first_bad_site_is_the_one_that_pyro_finds(monkeypatch, where):
    messages = []
    for path in ("direct", "pyro"):
        torch.manual_seed(0)
        model, x, y = small_model(likelihood="gaussian-latent", num_data=6)
        guide = pb.MeanFieldGuide(model)
        with torch.no_grad():
            if where == "scale":
                guide.rho.get_parameter("net.0.weight").fill_(-1e6)
            elif where == "noise":
                guide.loc.get_parameter("likelihood.scale").fill_(1e6)
            else:
                guide.loc.get_parameter("net.2.bias").fill_(math.inf)
        with monkeypatch.context() as patch:
            if path == "pyro":
                forbid_direct(patch)
            with pytest.raises(NonFiniteError) as error:
                pb.fit_svi(model, (x, y), guide, optimizer=FUSED, num_epochs=1, seed=0)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


class Calling(pb.MeanFieldGuide):
    """A guide that is called for its draws."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def test_the_draws_of_a_posterior_are_those_of_its_guide():
    model, x, _ = small_model(prior=PositivePrior(), likelihood="gaussian-latent")
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0))
    found = []
    for subclass in (False, True):
        if subclass:
            guide.__class__ = Calling  # goes through Pyro
        torch.manual_seed(4)
        found.append(list(pb.GuidePosterior(guide).draws(3, x)))
    for first, second in zip(*found, strict=True):
        assert list(first) == list(second)
        for name in first:
            assert_identical(first[name], second[name])


def test_a_mixture_of_very_different_scales_is_finite_in_single_precision():
    """At 0 the odds of the narrow component are 1e39, beyond the end of single precision."""
    prior = pb.ScaleMixturePrior(0.5, 1e20, 1e-19)
    net = nn.Linear(1, 1, bias=False, dtype=torch.float32)
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    (site,) = find_sites(model, (), {})
    value, slope = torch.zeros(1, dtype=torch.float32), torch.zeros(1, dtype=torch.float32)
    log_prob = density_of(site).log_prob(value, slope, [torch.zeros_like(value) for _ in range(2)])
    expected = math.log(0.5) - math.log(1e-19) - 0.5 * math.log(2 * math.pi)
    assert float(log_prob) == pytest.approx(expected, rel=1e-6)
    assert slope.tolist() == [0.0]
