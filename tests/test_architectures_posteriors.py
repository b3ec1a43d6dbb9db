"""Posteriors of every architecture can predict, be saved and loaded, and be pruned."""

import pytest
import torch

import pyro_bnn as pb

from .architecture_case import Case, assert_predicts
from .architectures import ARCHITECTURES, FEW, NAMES
from .fits import ADAM

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own, of its encoder


def fitted(name):
    case = Case(ARCHITECTURES[name])
    model = case.model()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
    return case, model, pb.fit_svi(model, (case.x, case.y), guide, optimizer=ADAM, num_epochs=2, seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_is_the_average_over_networks_of_the_caller(name):
    case, model, posterior = fitted(name)
    if case.architecture.refusal:  # always random: there is no second call with the same numbers but by the same seed
        probs = [pb.predict(model, posterior, case.x, num_samples=3, seed=seed).probs for seed in (1, 1, 2)]
        assert torch.equal(probs[0], probs[1])
        assert not torch.allclose(probs[0], probs[2])
    else:
        assert_predicts(case, model, posterior)
    assert model.training is case.architecture.is_training
    case.assert_unchanged()


@pytest.mark.daily(*FEW)
@pytest.mark.parametrize("name", NAMES)
def test_a_posterior_from_a_file_predicts_the_same_to_the_bit(name, tmp_path):
    case, model, posterior = fitted(name)
    pb.save_posterior(posterior, tmp_path / "posterior", model)
    torch.manual_seed(5)
    other = case.model(case.architecture.make())
    loaded = pb.load_posterior(tmp_path / "posterior", other)
    expected = pb.predict(model, posterior, case.x, num_samples=3, seed=1)
    found = pb.predict(other, loaded, case.x, num_samples=3, seed=1)
    assert torch.equal(found.probs, expected.probs)
    assert torch.equal(found.epistemic, expected.epistemic)
    assert len(found.probs.unique()) > 3
    case.assert_unchanged()


def zeros(model, posterior, sites):
    """Which weights are 0 in a draw."""
    draw = posterior.sample(1, seed=2)
    return torch.cat([draw[site].flatten() for site in sites]) == 0


@pytest.mark.daily(*FEW)
@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_weights_removed_stay_removed(name):
    case, model, posterior = fitted(name)
    kept = case.architecture.kept
    sites = [site for site in model.site_names if not kept or kept not in site]
    assert not zeros(model, posterior, sites).any()
    pruned = pb.pruning.prune(posterior, fraction=0.5, where=sites)
    removed = zeros(model, pruned, sites)
    assert abs(int(removed.sum()) - len(removed) / 2) <= 0.5
    if not case.architecture.refusal:
        assert_predicts(case, model, pruned)
    again = pb.fit_svi(model, (case.x, case.y), pruned.guide, optimizer=ADAM, num_epochs=1, seed=0)
    assert torch.equal(zeros(model, again, sites), removed)
    case.assert_unchanged()
