"""Weights that the posterior cannot distinguish from zero are removed, and stay removed."""

import copy
import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroSample
from torch import nn

import pyro_bnn as pb
from pyro_bnn import pruning

from .cases import SCALE_MAPS, small_model
from .fits import ELBOS, MORE_PRIORS, PLAIN_OR_ESTIMATOR
from .pruned import ADAM, SITES, masks_of, removed, scattered, two_weights
from .tolerances import assert_identical

# --- signal-to-noise ratios -------------------------------------------------------------------------------------------


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
    kept = {per: masks_of(pruning.prune(guide, fraction=0.4, per=per).guide) for per in ("network", "layer")}
    assert kept["network"]["net.2.weight"].all()
    for layer, expected in {"net.0": 15, "net.2": 11}.items():  # of 25 and 18
        assert kept["layer"][f"{layer}.weight"].sum() + kept["layer"][f"{layer}.bias"].sum() == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"where": pb.layers(nn.Linear) - "**.bias"}, {"net.0.weight", "net.2.weight"}),
        ({"where": lambda name, parameter, layer: layer.in_features == 4}, {"net.0.weight", "net.0.bias"}),
        ({"exclude": ["**.bias", "net.2.*"]}, {"net.0.weight"}),
        ({"where": "**.weight"}, {"net.0.weight", "net.2.weight"}),
    ],
)
def test_where_takes_the_rules_of_a_model(rules, expected):
    model, _, _ = small_model()
    guide = pruning.prune(scattered(model), fraction=1, model=model, **rules).guide
    assert set(guide.masks) == expected


def test_pruning_again_counts_what_is_gone_and_never_brings_it_back():
    model, _, _ = small_model()
    guide = scattered(model)
    once, twice = pruning.prune(guide, fraction=0.5), pruning.prune(pruning.prune(guide, fraction=0.5), fraction=0.75)
    assert_identical(twice.median()["net.0.weight"], pruning.prune(guide, fraction=0.75).median()["net.0.weight"])
    less = pruning.prune(once, fraction=0.1)
    assert str(less.status) == str(once.status)


def test_the_status_is_as_good_as_that_of_the_fit():
    guide = scattered(small_model()[0])
    failed = pb.Status(False, "the loss still falls; by 3 %.", remedy="Raise `num_epochs`.")
    fits = [pb.GuidePosterior(guide, status) for status in (None, pb.Status(True, "Fine."), failed)]
    found = [pruning.prune(fit, fraction=0).status for fit in (guide, *fits)]
    assert [status.ok for status in found] == [None, None, True, False]
    assert {str(status) for status in found[:3]} == {"0 of 43 weights are removed (0 %)."}
    assert str(found[3]) == "0 of 43 weights are removed (0 %). The loss still falls. Raise `num_epochs`."
    assert found[3].warning().startswith("The loss still falls. Raise")
    again = pruning.prune(pruning.prune(fits[2], fraction=0), fraction=0)
    assert str(again.status) == str(found[3])


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
        ({"fraction": 0.5, "where": "net.7.*"}, "`where` glob 'net.7.*' matches none"),
        ({"fraction": 0.5, "where": pb.layers(nn.Linear)}, "unless `model` is given"),
        ({"fraction": 0.5, "exclude": "**"}, "leave none of the guide's sites"),
    ],
)
def test_mistakes_are_named(options, message):
    model, _, _ = small_model()
    with pytest.raises(ValueError, match=message):
        pruning.prune(scattered(model), **options)


def test_other_guides_and_joint_priors_are_refused():
    model, _, _ = small_model()
    with pytest.raises(ValueError, match="must be a MeanFieldGuide or a posterior fitted with one, got AutoNormal"):
        pruning.prune(pb.auto_guide(AutoNormal, model), fraction=0.5)
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
    """Removed weights would still affect the prior."""

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
    """Values from all methods of a guide that return values."""
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
@pytest.mark.parametrize("estimator", PLAIN_OR_ESTIMATOR)
@pytest.mark.parametrize("optimizer", [ADAM, functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)])
def test_further_training_leaves_them_at_zero_and_moves_the_others(elbo, estimator, optimizer):
    model, x, y = small_model(num_data=6)
    pruned = pruning.prune(scattered(model), fraction=0.5)
    before = pruned.median()
    options = {"optimizer": optimizer, "elbo": elbo(), "estimator": PLAIN_OR_ESTIMATOR[estimator]}
    posterior = pb.fit_svi(model, (x, y), pruned.guide, num_epochs=5, **options)
    masks = masks_of(posterior.guide)
    assert sum(int((~mask).sum()) for mask in masks.values()) == 22
    assert not removed(posterior.sample(5) | {s: posterior.sample(1)[s][0] for s in SITES}, masks).any()
    for site in SITES:
        assert not guide_parameter(posterior.guide, site)[~masks[site]].any()
        assert (posterior.median()[site] != before[site])[masks[site]].all()


def guide_parameter(guide, site):
    return guide.loc.get_parameter(site)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (3, "`masks` must be a dict of masks.*got int"),
        ({"net.weights": torch.ones(1, 4, dtype=torch.bool)}, "`site` must be one of .*got 'net.weights'"),
        (
            {"net.weight": torch.ones(1, 4)},
            r"`masks` of `net.weight` must be torch.bool of shape \(1, 4\), got torch.float",
        ),
        ({"net.weight": torch.ones(4, dtype=torch.bool)}, r"shape \(1, 4\), got torch.bool of shape \(4,\)"),
        ({"net.weight": True}, "got bool"),
    ],
)
def test_masks_that_fit_no_site_are_refused_and_change_nothing(masks, message):
    net = torch.nn.Linear(4, 1)
    guide = pb.MeanFieldGuide(
        pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=3)
    )
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        guide.keep_only(masks)
    assert {name: value.tolist() for name, value in guide.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }
