"""The ELBO of a guide with removed weights is that of the network without them."""

import copy
import functools
import math

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.distributions import kl_divergence

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn.inference.scale_maps import LogVariance

from .cases import FIXED_PRIORS, PRIORS, SCALE_MAPS, small_model
from .fits import ELBOS, MORE_PRIORS, PLAIN_OR_ESTIMATOR, assert_same, fit_both, forbid_direct
from .pruned import ADAM, masks_of, scattered
from .tolerances import STANDARD_ERRORS, assert_identical


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", [*FIXED_PRIORS, "per-weight", "wide"])
@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_both_paths_agree(monkeypatch, elbo, prior, scale_map):
    def make():
        model, x, y = small_model(prior=MORE_PRIORS[prior], likelihood="gaussian-latent", num_data=6)
        return model, pruning.prune(scattered(model, scale_map=SCALE_MAPS[scale_map]), fraction=0.5).guide, (x, y)

    assert_same(fit_both(monkeypatch, make, elbo=elbo(num_particles=2), kl_weight=0.3))


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", PLAIN_OR_ESTIMATOR)
@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_every_scale_map_is_the_same_on_both_paths(monkeypatch, elbo, estimator, scale_map):
    def make():
        model, x, y = small_model(prior=PRIORS["normal"], num_data=6)
        return model, scattered(model, scale_map=SCALE_MAPS[scale_map]), (x, y)

    assert_same(fit_both(monkeypatch, make, elbo=elbo(), estimator=PLAIN_OR_ESTIMATOR[estimator]))


SCALARS = {
    "normal": lambda: dist.Normal(0.0, 0.7),
    "mixture": lambda: pb.distributions.ScaleMixtureNormal(0.5, 1.0, math.exp(-6)),
    "laplace": lambda: dist.Laplace(0.0, 0.5),
}


@pytest.mark.daily("normal", "laplace")
@pytest.mark.parametrize("prior", SCALARS)
def test_what_is_removed_has_no_divergence(prior):
    """The closed form, or its mean over draws, is a sum over the weights that are left."""
    model, x, y = small_model(prior=PRIORS[prior], num_data=6)
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    gaussians = [
        dist.Normal(guide.locations()[site][keep], guide.scales()[site][keep]) for site, keep in masks_of(guide).items()
    ]
    if prior != "mixture":
        fit = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=1, elbo=TraceMeanField_ELBO())
        assert_identical(fit.history.kl[0], sum(kl_divergence(q, SCALARS[prior]()).sum() for q in gaussians))
        return
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    ours = torch.tensor(pb.fit_svi(model, (x, y), guide, optimizer=frozen, num_epochs=4000).history.kl)
    theirs = torch.stack([monte_carlo_divergence(gaussians, SCALARS[prior]()) for _ in range(4000)])
    error = (ours.var() / len(ours) + theirs.var() / len(theirs)).sqrt()
    assert abs(ours.mean() - theirs.mean()) < STANDARD_ERRORS * error
    all_weights = theirs.mean() * 43 / 21  # about the value if removed weights were counted
    assert abs(ours.mean() - all_weights) > STANDARD_ERRORS * error


def monte_carlo_divergence(gaussians, prior):
    draws = [q.sample() for q in gaussians]
    return sum((q.log_prob(draw) - prior.log_prob(draw)).sum() for q, draw in zip(gaussians, draws, strict=True))


def test_the_elbo_in_a_loop_of_pyros_own_is_the_same():
    model, x, y = small_model(num_data=6)
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    for elbo in ELBOS:
        copies = copy.deepcopy(model), copy.deepcopy(guide)
        fit = pb.fit_svi(copies[0], (x, y), copies[1], optimizer=ADAM, num_epochs=1, elbo=elbo(), seed=3)
        torch.manual_seed(3)
        loss = elbo().loss(model, guide, x, y)
        assert_identical(loss, fit.history.kl[0] - fit.history.expected_log_likelihood[0])


@pytest.mark.parametrize("prior_scale", [1.0, 0.01, 0.001])
def test_the_divergence_keeps_its_digits_in_single_precision(prior_scale):
    """With nearly all weights removed, the sum over the remaining weights is tiny compared with the sum over all."""
    net = nn.Sequential(nn.Linear(30, 1000), nn.Tanh(), nn.Linear(1000, 1)).float()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(prior_scale), likelihood=pb.GaussianLikelihood(1.0), num_data=8)
    guide = pruning.prune(pb.MeanFieldGuide(model, init=pb.NetworkInit(0.5 * prior_scale)), fraction=0.99).guide
    data = torch.randn(8, 30).float(), torch.randn(8, 1).float()
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    fit = pb.fit_svi(model, data, guide, optimizer=frozen, num_epochs=1, elbo=TraceMeanField_ELBO())
    expected = sum(
        kl_divergence(
            dist.Normal(guide.locations()[site][keep].double(), guide.scales()[site][keep].double()),
            dist.Normal(0.0, prior_scale),
        ).sum()
        for site, keep in masks_of(guide).items()
    )
    assert fit.history.path == "direct"
    assert fit.history.kl[0] == pytest.approx(float(expected), rel=1e-3)


def test_what_stood_in_the_place_of_a_removed_scale_does_no_harm(monkeypatch):
    model, x, y = small_model(num_data=6)
    guide = scattered(model, scale_map=LogVariance())
    with torch.no_grad():
        guide.log_variance.get_parameter("net.0.weight")[0, 0] = 2000.0
    guide = pruning.prune(guide, fraction=0.5).guide
    for path in ("direct", "pyro"):
        if path == "pyro":
            forbid_direct(monkeypatch)
        fit = pb.fit_svi(model, (x, y), copy.deepcopy(guide), optimizer=ADAM, num_epochs=2)
        assert all(map(math.isfinite, fit.history.elbo))


def test_an_estimator_needs_the_direct_path_and_says_what_closes_it():
    model, x, y = small_model(num_data=6)
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    guide.rho.get_parameter("net.0.bias").register_hook(lambda gradient: gradient)
    with pytest.raises(ValueError, match="impossible because parameters of the guide have hooks; leave"):
        pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=1, estimator=pb.Flipout())


def test_an_estimator_in_a_loop_of_your_own_is_refused():
    model, x, y = small_model()
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    with (
        pb.LocalReparameterization().applied(model, guide),
        pytest.raises(ValueError, match=r"continue training with `fit_svi\(..., estimator=...\)`"),
    ):
        Trace_ELBO().loss(model, guide, x, y)
