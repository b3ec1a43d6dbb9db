"""Pruned posteriors are saved, loaded and copied together with the record of removed weights."""

import copy

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn.inference.scale_maps import LogVariance

from .cases import SCALE_MAPS, small_model
from .pruned import SITES, masks_of, removed, scattered
from .tolerances import assert_identical


@pytest.mark.parametrize("scale_map", SCALE_MAPS)
def test_a_reloaded_pruned_posterior_predicts_bit_for_bit_the_same(tmp_path, scale_map):
    model, x, _ = small_model(likelihood="gaussian-latent")
    pruned = pruning.prune(scattered(model, scale_map=SCALE_MAPS[scale_map]), fraction=0.7)
    pb.save_posterior(pruned, tmp_path / "file", model)
    fresh_model, _, _ = small_model(likelihood="gaussian-latent")
    fresh = pb.load_posterior(tmp_path / "file", fresh_model).guide
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


def test_the_file_shrinks_with_the_weights(tmp_path):
    net = pb.nets.mlp([300, 200, 10]).float()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=20)
    guide = pb.MeanFieldGuide(model)
    pb.save_posterior(guide, tmp_path / "full.pt", model)
    pb.save_posterior(pruning.prune(guide, fraction=0.98), tmp_path / "pruned.pt", model)
    full, pruned = ((tmp_path / f"{name}.pt").stat().st_size for name in ("full", "pruned"))
    assert full / pruned > 20
    assert pruned < 62_210 * (0.02 * 8 + 1 / 8) + 6_000


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda guide: guide.float().double()])
def test_copies_stay_pruned(duplicate):
    model, _, _ = small_model()
    guide = pruning.prune(scattered(model), fraction=0.5).guide
    other = duplicate(copy.deepcopy(guide))
    assert not removed(other(), masks_of(guide)).any()
