"""The recipe `fast`: natural-gradient inference from the command line."""

from dataclasses import replace

import pytest
import torch

from pyro_bnn import metrics, predict
from pyro_bnn.app import recipes, specs
from pyro_bnn.app.datasets import load_data

from .folders import train_run
from .own_data import houses, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

SEEDS = (0, 1, 2)

BOUNDS = torch.tensor([0.98, -0.064, 0.965])
"""Least accuracy, minus NLL, and AUROC. Three seeds had 0.986, -0.044 and 0.978, with standard errors of 0.0011, 0.0038
and 0.0025: five of these below."""

FAST = recipes.RECIPES["digits", "fast"]


@pytest.fixture
def single():
    """The precision of the program."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def quality(config, folder):
    """Accuracy and NLL on the test images, and AUROC of the unknown ones, of every seed, shape (seeds, 3)."""
    rows = []
    for seed in SEEDS:
        data, unknown = load_data(replace(config, seed=seed), root=None)
        pair = train_run(replace(config, seed=seed), data, folder / str(seed))
        known, other = (predict(*pair, x, num_samples=100, seed=1) for x in (data.x_test, unknown))
        auroc = metrics.ood_scores(known.mutual_information, other.mutual_information).auroc
        probs, y = known.probs, data.y_test
        rows.append([metrics.accuracy(probs, y), float(metrics.negative_log_likelihood(probs, y)), auroc])
    return torch.tensor(rows)


def is_good(rows):
    """Whether accuracy, NLL and AUROC are on average within their bounds."""
    return bool((rows.mean(0) * torch.tensor([1.0, -1.0, 1.0]) > BOUNDS).all())


@pytest.mark.nightly
def test_the_digits_are_learned_and_the_unknown_noticed(single, tmp_path):
    assert is_good(quality(FAST, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", [{"lr": 1e-4}, {"kl_weight": "10"}])
def test_with_wrong_settings_they_are_not(single, tmp_path, wrong):
    assert not is_good(quality(replace(FAST, **wrong), tmp_path))


@pytest.mark.parametrize("dataset", specs.DATA_SETS)
def test_it_takes_a_third_of_the_epochs_or_less_than_half(dataset):
    fast, default = (recipes.find_recipe(dataset, name) for name in ("fast", "default"))
    assert fast.optimizer.startswith("natural:")
    assert fast.epochs / fast.batch_size < default.epochs / default.batch_size


def test_a_table_is_learned_by_natural_gradients_too(pyro_bnn, tmp_path):  # noqa: F811
    table = write_table(tmp_path / "houses.csv", houses())
    options = ("--target", "price", "--likelihood", "heteroscedastic", "--optimizer", "natural:0.99,1", "--epochs", 20)
    code, out, err = pyro_bnn("train", table, *options, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert " s, 20 of 20 epochs" in out
    assert pyro_bnn("evaluate", tmp_path / "run")[0] == 0
