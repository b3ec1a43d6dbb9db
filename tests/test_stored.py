"""A posterior as a fixed set of draws."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .cases import small_model
from .tolerances import assert_identical


def batch_norm():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def problem(where="**"):
    model, x, y = small_model(net=batch_norm(), where=where, num_data=6)
    return model, pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5)), x, y


def test_it_holds_the_draws_of_a_seed_and_gives_them_evenly_spaced():
    _, guide, _, _ = problem()
    stored, drawn = pb.StoredPosterior.of(guide, 8, seed=3), pb.GuidePosterior(guide).sample(8, seed=3)
    assert stored.num_stored == 8
    for name, value in stored.sample(8).items():
        assert_identical(value, drawn[name])
        assert_identical(stored.sample(2)[name], drawn[name][[2, 6]])
    with pytest.raises(ValueError, match=r"`num_samples` is 9 but only 8 draws are stored.*store more of them"):
        stored.sample(9)


def test_predictions_are_those_of_its_draws_and_their_statistics():
    model, guide, x, _ = problem()
    refreshed = pb.RefreshedPosterior(model, guide, x, batch_size=4)
    stored = pb.StoredPosterior.of(refreshed, 5, seed=1)
    assert stored.carried == refreshed.carried
    assert "batch normalisation refreshed" in stored.method
    with torch.no_grad():
        x.normal_()  # the training rows are not needed any more
    found = pb.predict(model, stored, x, keep_draws=True)
    norm, expected = model.network[1], []
    for draw in stored.draws(5):
        norm.running_mean.copy_(draw.pop("net.1.running_mean"))
        norm.running_var.copy_(draw.pop("net.1.running_var"))
        expected.append(pb.predict_point(model, draw, x).probs)
    assert_identical(found.logits.softmax(-1), torch.stack(expected))
    fresh = pb.predict(model, pb.RefreshedPosterior(model, guide, x, batch_size=4), x, num_samples=5, seed=1)
    assert not torch.allclose(fresh.probs, found.probs)  # the must-fail twin


def test_the_same_draws_each_time_whatever_the_seed():
    model, guide, x, _ = problem()
    stored = pb.StoredPosterior.of(guide, 4)
    first, second = (pb.predict(model, stored, x, seed=seed) for seed in (0, 1))
    assert torch.equal(first.probs, second.probs)


def test_weights_that_are_the_same_in_all_draws_are_constants():
    model, *_ = small_model(net=batch_norm(), where="net.3.*", num_data=6)
    stored = pb.StoredPosterior.of(pb.MeanFieldGuide(model), 6)
    assert not stored.constants
    stored.samples["net.3.bias"][:] = stored.samples["net.3.bias"][0]
    assert list(stored.constants) == ["net.3.bias"]
    assert_identical(stored.constants["net.3.bias"], stored.samples["net.3.bias"][4])
    stored.samples["net.3.bias"][1] += 1
    assert not stored.constants


def test_one_draw_is_a_point():
    model, guide, x, _ = problem()
    stored = pb.StoredPosterior.of(guide, 1, seed=0)
    (draw,) = stored.draws(1)
    assert_identical(pb.predict(model, stored, x).probs, pb.predict_point(model, draw, x).probs)


def test_what_it_refuses():
    model, guide, x, y = problem()
    linearised = pb.fit_gauss_newton(model, (x, y), structure="diagonal")
    with pytest.raises(ValueError, match=r"`posterior` must not be one of .*save the posterior itself"):
        pb.StoredPosterior.of(linearised, 4)
    status = pb.Status(True, "by hand")
    with pytest.raises(ValueError, match=r"the same number of draws of each site, got \{'net.w': 2, 'net.b': 3\}"):
        pb.StoredPosterior({"net.w": torch.zeros(2, 1)}, {"net.b": torch.zeros(3)}, method="mine", status=status)
    with pytest.raises(ValueError, match="the same number of draws"):
        pb.StoredPosterior({}, method="mine", status=status)
    other = small_model(num_data=6)[0]
    stored = pb.StoredPosterior.of(pb.RefreshedPosterior(model, guide, x, batch_size=4), 4)
    with pytest.raises(ValueError, match=r"the draws have .*, which are neither latent variables nor"):
        pb.predict(other, stored, x)


def test_in_an_ensemble():
    model, guide, x, _ = problem()
    members = [pb.StoredPosterior.of(guide, 4, seed=seed) for seed in range(2)]
    found = pb.predict(model, pb.EnsemblePosterior(members), x)
    expected = [pb.predict(model, member, x).probs for member in members]
    assert_identical(found.probs, torch.stack(expected).mean(0))


@pytest.mark.parametrize("name", ["net.1.running_mean", "net.0.weight"])
def test_damaged_draws_are_not_saved(name, tmp_path):
    model, guide, x, _ = problem()
    stored = pb.StoredPosterior.of(pb.RefreshedPosterior(model, guide, x, batch_size=4), 4)
    ({**stored.values, **stored.samples}[name]).view(-1)[0] = torch.nan
    with pytest.raises(ValueError, match=name):
        pb.save_posterior(stored, tmp_path / "draws.pt", model)


def test_a_file_needs_the_network_whose_statistics_it_holds(tmp_path):
    model, guide, x, _ = problem()
    stored = pb.StoredPosterior.of(pb.RefreshedPosterior(model, guide, x, batch_size=4), 4)
    pb.save_posterior(stored, tmp_path / "draws.pt", model)
    loaded = pb.load_posterior(tmp_path / "draws.pt", model)
    assert torch.equal(pb.predict(model, loaded, x).probs, pb.predict(model, stored, x).probs)
    assert loaded.method == stored.method
    with pytest.raises(ValueError, match="pass the model of this posterior"):
        pb.load_posterior(tmp_path / "draws.pt", small_model(num_data=6)[0])
