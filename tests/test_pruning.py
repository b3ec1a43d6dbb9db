"""Weights are removed where the posterior cannot tell them from zero, and stay removed."""

import copy
import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroSample
from torch import nn
from torch.distributions import kl_divergence

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn.scale_maps import LogVariance

from .cases import PRIORS, SCALE_MAPS, small_model
from .fits import ELBOS, ESTIMATORS, MORE_PRIORS, assert_same, fit_both, forbid_direct
from .tolerances import STANDARD_ERRORS, assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.02)
SITES = ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")


def scattered(model, *, scale_map=None):
    """A guide with ratios of all sizes."""
    return pb.MeanFieldGuide(model, init=pb.NormalInit(loc_scale=1.0, rho=-1.0, rho_scale=0.5), scale_map=scale_map)


def removed(draw, masks):
    return torch.cat([draw[site][~mask] for site, mask in masks.items()])


def masks_of(guide):
    return {site: guide.kept(site) for site in SITES}


# --- signal-to-noise ratios -------------------------------------------------------------------------------------------


def two_weights(loc, scale):
    """A linear layer with two weights and no bias, and its guide."""
    model = pb.BayesianModel(
        nn.Linear(2, 1, bias=False), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=10
    )
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.get_parameter("net.weight").copy_(torch.tensor([loc]))
        guide.rho.get_parameter("net.weight").copy_(torch.tensor([scale]).expm1().log())
    return model, guide


def test_ratios_by_hand_on_a_guide_of_two_weights():
    model, guide = two_weights([3.0, -0.4], [2.0, 0.1])
    ratio = pruning.signal_to_noise(guide)["net.weight"]
    assert_identical(ratio, [[1.5, 4.0]])
    assert_identical(pruning.decibel(ratio), [[1.7609125905568124, 6.020599913279624]])
    posterior = pruning.prune(guide, fraction=0.5)
    assert_identical(posterior.median()["net.weight"], [[0.0, -0.4]])
    assert_identical(pruning.prune(guide, threshold=3.9).median()["net.weight"], [[0.0, -0.4]])
    assert_identical(pruning.prune(guide, threshold=4.1).median()["net.weight"], [[0.0, 0.0]])
    assert_identical(pruning.prune(guide, threshold=1.4).median()["net.weight"], [[3.0, -0.4]])
    x = torch.tensor([[1.0, 2.0]])
    assert_identical(pb.predict_point(model, posterior.median(), x).mean, [[-0.8]])


def test_a_constrained_variable_is_no_weight():
    model, _, _ = small_model(likelihood="gaussian-latent")
    guide = scattered(model)
    assert set(pruning.signal_to_noise(guide)) == set(SITES)
    posterior = pruning.prune(guide, fraction=1)
    assert (posterior.sample(20)["likelihood.scale"] > 0).all()
    assert not any(posterior.sample(2)[site].any() for site in SITES)


# --- which weights are removed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.95, 1.0])
def test_as_many_are_removed_as_asked_for_and_the_weakest(fraction):
    model, _, _ = small_model()
    guide = scattered(model)
    posterior = pruning.prune(guide, fraction=fraction)
    ratios = pruning.signal_to_noise(guide)
    kept = torch.cat([ratios[site][mask] for site, mask in masks_of(posterior.guide).items()])
    gone = removed(ratios, masks_of(posterior.guide))
    assert len(gone) == math.floor(fraction * 43 + 0.5)
    assert len(gone) == 0 or len(kept) == 0 or gone.max() <= kept.min()
    assert str(posterior.status).startswith(f"{len(gone)} of 43 weights are removed")


def test_per_layer_takes_the_share_of_every_layer():
    model, _, _ = small_model()
    guide = scattered(model)
    with torch.no_grad():
        guide.loc.get_parameter("net.0.weight").mul_(1e-6)
    kept = {per_layer: masks_of(pruning.prune(guide, fraction=0.4, per_layer=per_layer).guide) for per_layer in (0, 1)}
    assert kept[False]["net.2.weight"].all()
    for layer, expected in {"net.0": 15, "net.2": 11}.items():  # of 25 and 18
        assert kept[True][f"{layer}.weight"].sum() + kept[True][f"{layer}.bias"].sum() == expected


def test_where_spares_other_sites():
    model, _, _ = small_model()
    masks = masks_of(pruning.prune(scattered(model), fraction=1, where="**.weight").guide)
    assert {site: bool(mask.all()) for site, mask in masks.items()} == {site: site.endswith("bias") for site in SITES}


def test_pruning_again_counts_what_is_gone_and_never_brings_it_back():
    model, _, _ = small_model()
    guide = scattered(model)
    once, twice = pruning.prune(guide, fraction=0.5), pruning.prune(pruning.prune(guide, fraction=0.5), fraction=0.75)
    assert_identical(twice.median()["net.0.weight"], pruning.prune(guide, fraction=0.75).median()["net.0.weight"])
    less = pruning.prune(once, fraction=0.1)
    assert str(less.status) == str(once.status)


def test_the_guide_given_is_not_changed():
    model, _, _ = small_model()
    guide = scattered(model)
    before = copy.deepcopy(guide.state_dict())
    pruning.prune(guide, fraction=0.9)
    assert list(before) == list(guide.state_dict())
    assert all(torch.equal(before[name], value) for name, value in guide.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `fraction` or `threshold`"),
        ({"fraction": 0.5, "threshold": 1.0}, "either `fraction` or `threshold`"),
        ({"fraction": 95}, "between 0 and 1, got 95"),
        ({"fraction": math.nan}, "between 0 and 1, got nan"),
        ({"threshold": -1.0}, "at least 0, got -1.0"),
        ({"threshold": math.nan}, "at least 0, got nan"),
        ({"fraction": 0.5, "where": "net.7.*"}, "matches none of the guide's sites"),
    ],
)
def test_mistakes_are_named(options, message):
    model, _, _ = small_model()
    with pytest.raises(ValueError, match=message):
        pruning.prune(scattered(model), **options)


def test_other_guides_and_joint_priors_are_refused():
    model, _, _ = small_model()
    with pytest.raises(ValueError, match="must be a MeanFieldGuide or a posterior fitted with one, got AutoNormal"):
        pruning.prune(pb.auto_normal(model), fraction=0.5)
    model, _, _ = small_model(prior=MORE_PRIORS["joint"])
    with pytest.raises(ValueError, match=r"`net.0.weight` are not independent under their prior"):
        pruning.prune(scattered(model), fraction=0.5)


def test_removed_weights_go_before_others_of_ratio_zero():
    model, _, _ = small_model()
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.get_parameter("net.0.bias").zero_()
    once = pruning.prune(guide, fraction=1, where="net.2.weight")
    assert str(pruning.prune(once, fraction=15 / 43).status) == str(once.status)


def test_a_fit_that_went_wrong_is_refused_and_no_mean_is_no_signal():
    _, guide = two_weights([0.0, 1.0], [1.0, 1.0])
    with torch.no_grad():
        guide.rho.get_parameter("net.weight")[0, 0] = -1e9
    assert_identical(pruning.signal_to_noise(guide)["net.weight"], [[0.0, 1.0]])
    with torch.no_grad():
        guide.loc.get_parameter("net.weight")[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"parameters of `net.weight` are not finite"):
        pruning.prune(guide, fraction=0.5)


def test_several_globs_and_odd_numbers():
    model, _, _ = small_model()
    posterior = pruning.prune(scattered(model), fraction=1, where=["net.0.*", "**.bias"])
    assert posterior.guide.kept("net.2.weight").all()
    assert not any(posterior.guide.kept(site).any() for site in SITES if site != "net.2.weight")
    for bad in ("a", True):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            pruning.prune(scattered(model), fraction=bad)


def test_a_prior_that_depends_on_others_or_is_learned_is_refused():
    """Weights that are gone would go on pulling at it."""

    def hierarchical():
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("w", dist.Normal(0.0, scale).expand([4]).to_event(1))
        pyro.sample("free", dist.Normal(0.0, 1.0).expand([4]).to_event(1))

    guide = pb.MeanFieldGuide(hierarchical)
    assert pruning.prune(guide, fraction=1, where="free").guide.kept("w").all()
    with pytest.raises(ValueError, match="prior of `w` is learned or depends on other variables"):
        pruning.prune(guide, fraction=0.5)
    model, _, _ = small_model()
    model.tau = PyroSample(dist.LogNormal(0.0, 1.0))
    setattr(model, "net.0.weight", PyroSample(lambda self: dist.Normal(0.0, self.tau).expand([5, 4]).to_event(2)))
    with pytest.raises(ValueError, match=r"prior of `net.0.weight` is learned or depends"):
        pruning.prune(pb.MeanFieldGuide(model), fraction=0.5)


# --- removed weights are zero everywhere ------------------------------------------------------------------------------


def draws_of_every_kind(model, posterior, x):
    """All the ways in which a guide gives values."""
    guide = posterior.guide
    yield posterior.median()
    yield guide.median()
    yield guide.locations()
    yield {site: value[0] for site, value in guide.quantiles([0.01]).items()}
    for index in range(20):
        yield {site: value[index] for site, value in posterior.sample(20).items()}
        yield poutine.trace(guide).get_trace(x).nodes and guide(x)


@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_removed_weights_are_exactly_zero_in_every_draw_and_the_others_are_not(scale_map):
    model, x, _ = small_model(likelihood="gaussian-latent")
    posterior = pruning.prune(scattered(model, scale_map=SCALE_MAPS[scale_map]), fraction=0.6)
    masks = masks_of(posterior.guide)
    for draw in draws_of_every_kind(model, posterior, x):
        assert not removed(draw, masks).any()
        assert all(draw[site][mask].all() for site, mask in masks.items())
    assert not removed(posterior.guide.scales(), masks).any()


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("optimizer", [ADAM, functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)])
def test_further_training_leaves_them_at_zero_and_moves_the_others(elbo, estimator, optimizer):
    model, x, y = small_model(num_data=6)
    pruned = pruning.prune(scattered(model), fraction=0.5)
    before = pruned.median()
    posterior = pb.fit_svi(
        model, pruned.guide, (x, y), optimizer=optimizer, num_epochs=5, elbo=elbo(), estimator=ESTIMATORS[estimator]
    )
    masks = masks_of(posterior.guide)
    assert sum(int((~mask).sum()) for mask in masks.values()) == 22
    assert not removed(posterior.sample(5) | {s: posterior.sample(1)[s][0] for s in SITES}, masks).any()
    for site in SITES:
        assert not guide_parameter(posterior.guide, site)[~masks[site]].any()
        assert (posterior.median()[site] != before[site])[masks[site]].all()


def guide_parameter(guide, site):
    return guide.loc.get_parameter(site)


# --- the ELBO is that of the network without them ---------------------------------------------------------------------


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", [*PRIORS, "per-weight", "wide"])
@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_both_paths_agree(monkeypatch, elbo, prior, scale_map):
    def make():
        model, x, y = small_model(prior=MORE_PRIORS[prior], likelihood="gaussian-latent", num_data=6)
        return model, pruning.prune(scattered(model, scale_map=SCALE_MAPS[scale_map]), fraction=0.5).guide, (x, y)

    assert_same(fit_both(monkeypatch, make, elbo=elbo(num_particles=2), kl_weight=0.3))


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_every_scale_map_is_the_same_on_both_paths(monkeypatch, elbo, estimator, scale_map):
    def make():
        model, x, y = small_model(prior=PRIORS["normal"], num_data=6)
        return model, scattered(model, scale_map=SCALE_MAPS[scale_map]), (x, y)

    assert_same(fit_both(monkeypatch, make, elbo=elbo(), estimator=ESTIMATORS[estimator]))


SCALARS = {
    "normal": lambda: dist.Normal(0.0, 0.7),
    "mixture": lambda: pb.distributions.ScaleMixtureNormal(0.5, 1.0, math.exp(-6)),
    "laplace": lambda: dist.Laplace(0.0, 0.5),
}


@pytest.mark.parametrize("prior", SCALARS)
def test_what_is_removed_has_no_divergence(prior):
    """The closed form, or its mean over draws, is a sum over the weights that are left."""
    model, x, y = small_model(prior=PRIORS[prior], num_data=6)
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    gaussians = [
        dist.Normal(guide.locations()[site][keep], guide.scales()[site][keep]) for site, keep in masks_of(guide).items()
    ]
    if prior != "mixture":
        fit = pb.fit_svi(model, guide, (x, y), optimizer=ADAM, num_epochs=1, elbo=TraceMeanField_ELBO())
        assert_identical(fit.history.kl[0], sum(kl_divergence(q, SCALARS[prior]()).sum() for q in gaussians))
        return
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    ours = torch.tensor(pb.fit_svi(model, guide, (x, y), optimizer=frozen, num_epochs=4000).history.kl)
    theirs = torch.stack([monte_carlo_divergence(gaussians, SCALARS[prior]()) for _ in range(4000)])
    error = (ours.var() / len(ours) + theirs.var() / len(theirs)).sqrt()
    assert abs(ours.mean() - theirs.mean()) < STANDARD_ERRORS * error
    all_weights = theirs.mean() * 43 / 21  # what it would be about, if what is removed had its share
    assert abs(ours.mean() - all_weights) > STANDARD_ERRORS * error


def monte_carlo_divergence(gaussians, prior):
    draws = [q.sample() for q in gaussians]
    return sum((q.log_prob(draw) - prior.log_prob(draw)).sum() for q, draw in zip(gaussians, draws, strict=True))


def test_the_elbo_in_a_loop_of_pyros_own_is_the_same():
    model, x, y = small_model(num_data=6)
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    for elbo in ELBOS:
        copies = copy.deepcopy(model), copy.deepcopy(guide)
        fit = pb.fit_svi(*copies, (x, y), optimizer=ADAM, num_epochs=1, elbo=elbo(), seed=3)
        torch.manual_seed(3)
        loss = elbo().loss(model, guide, x, y)
        assert_identical(loss, fit.history.kl[0] - fit.history.expected_log_likelihood[0])


@pytest.mark.parametrize("prior_scale", [1.0, 0.01, 0.001])
def test_the_divergence_keeps_its_digits_in_single_precision(prior_scale):
    """With nearly all weights removed, the sum over those left is small beside one over all."""
    net = nn.Sequential(nn.Linear(30, 1000), nn.Tanh(), nn.Linear(1000, 1)).float()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(prior_scale), likelihood=pb.GaussianLikelihood(1.0), num_data=8)
    guide = pruning.prune(pb.MeanFieldGuide(model, init=pb.NetworkInit(0.5 * prior_scale)), fraction=0.99).guide
    data = torch.randn(8, 30).float(), torch.randn(8, 1).float()
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    fit = pb.fit_svi(model, guide, data, optimizer=frozen, num_epochs=1, elbo=TraceMeanField_ELBO())
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
        fit = pb.fit_svi(model, copy.deepcopy(guide), (x, y), optimizer=ADAM, num_epochs=2)
        assert all(map(math.isfinite, fit.history.elbo))


def test_an_estimator_needs_the_direct_path_and_says_what_closes_it():
    model, x, y = small_model(num_data=6)
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    guide.rho.get_parameter("net.0.bias").requires_grad_(False)
    with pytest.raises(ValueError, match="closed because parameters of the guide are frozen; leave the estimator out"):
        pb.fit_svi(model, guide, (x, y), optimizer=ADAM, num_epochs=1, estimator=pb.Flipout())


def test_an_estimator_in_a_loop_of_your_own_is_refused():
    model, x, y = small_model()
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    with (
        pb.LocalReparameterization().applied(model, guide),
        pytest.raises(ValueError, match=r"train it on with `fit_svi\(..., estimator=...\)`"),
    ):
        Trace_ELBO().loss(model, guide, x, y)


# --- saved and loaded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_a_reloaded_pruned_posterior_predicts_bit_for_bit_the_same(tmp_path, scale_map):
    model, x, _ = small_model(likelihood="gaussian-latent")
    pruned = pruning.prune(scattered(model, scale_map=SCALE_MAPS[scale_map]), fraction=0.7)
    pb.save_state(tmp_path / "posterior.pt", model, pruned.guide)
    fresh_model, _, _ = small_model(likelihood="gaussian-latent")
    fresh = pb.MeanFieldGuide(fresh_model, scale_map=SCALE_MAPS[scale_map])
    pb.load_state(tmp_path / "posterior.pt", fresh_model, fresh)
    first = pb.predict(model, pruned, x, num_samples=7, seed=1)
    second = pb.predict(fresh_model, fresh, x, num_samples=7, seed=1)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.total, second.total)
    masks = masks_of(pruned.guide)
    assert all(torch.equal(mask, fresh.kept(site)) for site, mask in masks.items())
    assert str(pruning.prune(fresh, fraction=0).status) == str(pruned.status)


def test_a_state_brings_its_masks_and_takes_others_away():
    model, _, _ = small_model()
    full, pruned = scattered(model), pruning.prune(scattered(model), fraction=0.7).guide
    other = pruning.prune(scattered(model), fraction=0.2, where="net.0.*").guide
    other.load_state_dict(pruned.state_dict())
    assert all(torch.equal(other.kept(site), pruned.kept(site)) for site in SITES)
    assert_identical(other.locations()["net.2.weight"], pruned.locations()["net.2.weight"])
    other.load_state_dict(full.state_dict())
    assert all(other.kept(site).all() for site in SITES)
    assert_identical(other.locations()["net.2.weight"], full.locations()["net.2.weight"])


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_state_that_does_not_fit_changes_nothing(is_pruned):
    model, _, _ = small_model()
    guide, other = scattered(model), pruning.prune(scattered(model, scale_map=LogVariance()), fraction=0.5).guide
    guide = pruning.prune(guide, fraction=0.4).guide if is_pruned else guide
    before = copy.deepcopy(guide.state_dict())
    with pytest.raises(RuntimeError, match="log_variance"):
        guide.load_state_dict(other.state_dict())
    assert list(before) == list(guide.state_dict())
    assert all(torch.equal(before[name], value) for name, value in guide.state_dict().items())


def test_a_partial_state_leaves_other_masks():
    model, _, _ = small_model()
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    kept = guide.kept("net.2.weight")
    guide.load_state_dict({"loc.net.0.weight": torch.ones(5, 4)}, strict=False)
    assert guide.kept("net.0.weight").all()
    assert torch.equal(guide.kept("net.2.weight"), kept)


def test_a_mask_of_another_network_is_refused(tmp_path):
    model, _, _ = small_model()
    pruned = pruning.prune(scattered(model), fraction=0.7)
    pb.save_state(tmp_path / "posterior.pt", model, pruned.guide)
    other = pb.BayesianModel(
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
        prior=pb.NormalPrior(),
        likelihood=pb.CategoricalLikelihood(),
        num_data=20,
    )
    guide = pb.MeanFieldGuide(other)
    before = copy.deepcopy([other.state_dict(), guide.state_dict()])
    with pytest.raises(ValueError, match="does not fit"):
        pb.load_state(tmp_path / "posterior.pt", other, guide)
    for old, module in zip(before, (other, guide), strict=True):
        assert list(old) == list(module.state_dict())
        assert all(torch.equal(old[name], value) for name, value in module.state_dict().items())


def test_damaged_files_are_named(tmp_path):
    model, _, _ = small_model()
    guide = pruning.prune(scattered(model), fraction=0.7).guide
    pb.save_state(tmp_path / "good.pt", model, guide)
    good = torch.load(tmp_path / "good.pt")
    short = {**good, "guide": {**good["guide"], "keep.net.0.weight": torch.zeros(1, dtype=torch.uint8)}}
    for content in (short, {**good, "guide": 5}, [1, 2], {"model": good["model"]}):
        torch.save(content, tmp_path / "bad.pt")
        with pytest.raises(ValueError, match=r"bad\.pt is no file that `save_state` wrote, or it is damaged"):
            pb.load_state(tmp_path / "bad.pt", model, guide)


def test_the_file_shrinks_with_the_weights(tmp_path):
    net = pb.nets.mlp([300, 200, 10]).float()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=20)
    guide = pb.MeanFieldGuide(model)
    pb.save_state(tmp_path / "full.pt", model, guide)
    pb.save_state(tmp_path / "pruned.pt", model, pruning.prune(guide, fraction=0.98).guide)
    full, pruned = ((tmp_path / f"{name}.pt").stat().st_size for name in ("full", "pruned"))
    assert full / pruned > 20
    assert pruned < 62_210 * (0.02 * 8 + 1 / 8) + 6_000


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda guide: guide.float().double()])
def test_copies_stay_pruned(duplicate):
    model, _, _ = small_model()
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    other = duplicate(copy.deepcopy(guide))
    assert not removed(other(), masks_of(guide)).any()


# --- the report, and networks that are sparse -------------------------------------------------------------------------


def trained(likelihood="categorical"):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    return model, pb.fit_svi(model, scattered(model), (x, y), optimizer=ADAM, num_epochs=50, seed=0), x, y


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian-fixed", "heteroscedastic"])
def test_the_report_says_what_predictions_say(likelihood):
    model, posterior, x, y = trained(likelihood)
    report = pruning.snr_report(model, posterior, x, y, fractions=(0, 0.5, 1), num_samples=9, seed=4)
    for row, fraction in zip(report.rows, (0, 0.5, 1), strict=True):
        pruned = pruning.prune(posterior, fraction=fraction)
        ensemble = pb.predict(model, pruned, x, y=y, num_samples=9, seed=4)
        mean = pb.predict_point(model, pruned.median(), x, y=y)
        assert_identical([row.nll, row.mean_nll], [ensemble.nll, mean.nll])
        if likelihood in ("categorical", "bernoulli"):
            assert row.accuracy == pytest.approx(float((ensemble.probs.argmax(-1) == y).double().mean()))
            assert row.rmse is None
        else:
            assert row.rmse == pytest.approx(float((ensemble.mean - y).square().mean().sqrt()))
            assert row.accuracy is None
    assert report.rows[0].nll == pytest.approx(pb.predict(model, posterior, x, y=y, num_samples=9, seed=4).nll)
    assert len(str(report).splitlines()) == 6


def test_the_report_is_written(tmp_path):
    model, posterior, x, y = trained()
    report = pruning.snr_report(model, posterior, x, y, fractions=(0, 0.9), num_samples=3)
    report.to_csv(tmp_path / "report.csv")
    header, *rows = (tmp_path / "report.csv").read_text().splitlines()
    assert header.startswith("fraction,threshold,num_weights,accuracy,nll,")
    assert rows[1].startswith(f"0.9,{report.rows[1].threshold!r},4,")
    with pytest.raises(ValueError, match="at least one share"):
        pruning.snr_report(model, posterior, x, y, fractions=())


@pytest.mark.parametrize("max_density", [0.0, 0.1, 1.0])
def test_a_sparse_network_computes_the_same(max_density):
    model, posterior, x, _ = trained()
    values = pruning.prune(posterior, fraction=0.9).median()
    net = pruning.sparse_network(model, values, max_density=max_density)
    probs = pb.predict_point(model, values, x).probs
    torch.testing.assert_close(net(x).softmax(-1), probs)
    torch.testing.assert_close(copy.deepcopy(net)(x.expand(2, 6, 4))[1].softmax(-1), probs)
    num_sparse = sum(isinstance(layer, pruning.SparseLinear) for layer in net.modules())
    assert num_sparse == {0.0: int(not values["net.2.weight"].any()), 0.1: num_sparse, 1.0: 2}[max_density]
    fresh = pruning.sparse_network(model, values, max_density=max_density)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh(x), net(x))


def test_a_sparse_network_needs_all_weights_and_a_lone_layer_may_be_sparse():
    model, _, _, _ = trained()
    with pytest.raises(ValueError, match=r"lacks the random parameters \['net.0.weight'"):
        pruning.sparse_network(model, {})
    model, guide = two_weights([3.0, -0.4], [2.0, 0.1])
    net = pruning.sparse_network(model, pruning.prune(guide, fraction=0.5).median(), max_density=0.5)
    assert isinstance(net, pruning.SparseLinear)
    assert_identical(net(torch.ones(1, 2)), [[-0.4]])
    with pytest.raises(ValueError, match=r"must have shape \(O, D\)"):
        pruning.SparseLinear(torch.ones(3), None)


def test_modules_used_twice_hooks_and_looks_at_the_weight():
    layer = nn.Linear(4, 4)
    for net in (nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3)), TiedDecoder(), hooked()):
        model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)
        values = pruning.prune(pb.MeanFieldGuide(model), fraction=0.5).median()
        x = torch.randn(6, 4)
        sparse = pruning.sparse_network(model, values, max_density=1.0)
        torch.testing.assert_close(sparse(x).softmax(-1), pb.predict_point(model, values, x).probs)


class TiedDecoder(nn.Module):
    """Looks at a layer's weight."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x @ self.layer.weight.T @ self.layer.weight)


def hooked():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].register_forward_hook(lambda module, inputs, output: output.relu())
    return net


def test_mistakes_about_sparse_networks_and_reports_are_named():
    model, posterior, x, y = trained()
    with pytest.raises(ValueError, match=r"must be a dict of weights, such as `posterior.median\(\)`"):
        pruning.sparse_network(model, posterior)
    with pytest.raises(ValueError, match=r"`net.0.weight` must have shape \(5, 4\), got \(3, 5, 4\): give one draw"):
        pruning.sparse_network(model, posterior.sample(3))
    with pytest.raises(ValueError, match=r"`x` must have shape \(..., 2\), got \(3, 3\)"):
        pruning.SparseLinear(torch.ones(1, 2), None)(torch.ones(3, 3))
    with pytest.raises(ValueError, match="must be tensors, got Tensor and NoneType"):
        pruning.snr_report(model, posterior, x, None)
    report = pruning.snr_report(model, posterior, x, y, fractions=torch.tensor([0.0, 0.5]), num_samples=2)
    assert [row.fraction for row in report.rows] == [0, 0.5]
