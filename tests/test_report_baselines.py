"""The baselines that `evaluate` and `report` compare a network with, against scikit-learn and scipy by hand."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, poisson
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression, PoissonRegressor

from pyro_bnn.app.datasets import Dataset, Facts
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports import scores, trained
from pyro_bnn.app.reports.scores import scores_of
from pyro_bnn.app.reports.trained import TREES, baselines_of

X = np.random.default_rng(0).normal(size=(60, 2))
TRAIN, TEST = slice(0, 45), slice(45, 60)


def dataset(y, target):
    x, y = torch.from_numpy(X), torch.from_numpy(y)
    facts = Facts("", 45, 15, [2], target, None, None)
    return Dataset(x[TRAIN], y[TRAIN], x[TEST], y[TEST], facts)


LABELS = (X[:, 0] > 0.4).astype(int) + (X[:, 1] > 1).astype(int)
CLASSES = Target("kind", ["a", "b", "c"], [], [])
NUMBERS = Target("size", [], [10.0], [2.0])


def test_classes():
    found = baselines_of(dataset(LABELS, CLASSES))
    assert list(found) == ["shares of the classes", "logistic regression", TREES]
    shares, linear, trees = found.values()
    expected = np.bincount(LABELS[TRAIN]) / 45
    np.testing.assert_allclose(shares.probs[3], expected)
    np.testing.assert_allclose(shares.log_density, np.log(expected)[LABELS[TEST]])
    probs = LogisticRegression(max_iter=1000).fit(X[TRAIN], LABELS[TRAIN]).predict_proba(X[TEST])
    np.testing.assert_allclose(linear.probs, probs)
    np.testing.assert_allclose(linear.log_density, np.log(probs[np.arange(15), LABELS[TEST]]))
    np.testing.assert_allclose(linear.aleatoric, -(probs * np.log(probs)).sum(-1))
    np.testing.assert_array_equal(linear.votes.argmax(-1), probs.argmax(-1))
    assert linear.votes.sum(-1).tolist() == [1] * 15
    boosted = HistGradientBoostingClassifier(random_state=0).fit(X[TRAIN], LABELS[TRAIN]).predict_proba(X[TEST])
    np.testing.assert_allclose(trees.probs, boosted)
    assert scores_of(linear, CLASSES)["nll"] == pytest.approx(-float(linear.log_density.mean()))


def test_a_class_that_training_lacks_has_no_logistic_regression():
    labels = LABELS.copy()
    labels[TRAIN][labels[TRAIN] == 2] = 0
    assert list(baselines_of(dataset(labels, CLASSES))) == ["shares of the classes"]


def test_numbers_in_units_of_the_target():
    y = (X @ [1.0, -2.0] + 0.1 * X[:, 0] ** 2)[:, None]
    found = baselines_of(dataset(y, NUMBERS))
    assert list(found) == ["mean of the targets", "linear regression", TREES]
    mean, scale = BayesianRidge().fit(X[TRAIN], y[TRAIN, 0]).predict(X[TEST], return_std=True)
    np.testing.assert_allclose(found["linear regression"].log_density, norm.logpdf(y[TEST, 0], mean, scale))
    own = scores_of(found["linear regression"], NUMBERS)  # y = 10 + 2 z
    assert own["rmse"] == pytest.approx(2 * np.sqrt(np.square(y[TEST, 0] - mean).mean()))
    assert own["nll"] == pytest.approx(np.log(2) - norm.logpdf(y[TEST, 0], mean, scale).mean())
    inside = np.abs(y[TEST, 0] - mean) <= norm.ppf(0.95) * scale
    assert own["coverage_90"] == pytest.approx(inside.mean())
    boosted = HistGradientBoostingRegressor(random_state=0).fit(X[TRAIN], y[TRAIN, 0]).predict(X[TEST])
    error = 2 * np.sqrt(np.square(y[TEST, 0] - boosted).mean())
    assert scores_of(found[TREES], NUMBERS) == {"rmse": pytest.approx(error)}  # no sd, so no NLL
    plain = found["mean of the targets"]
    np.testing.assert_allclose(plain.mean, y[TRAIN].mean() * np.ones((15, 1)))
    np.testing.assert_allclose(plain.log_density, norm.logpdf(y[TEST, 0], y[TRAIN].mean(), y[TRAIN].std(ddof=1)))


def test_counts_have_probabilities_and_no_densities():
    y = np.random.default_rng(1).poisson(np.exp(X[:, :1])).astype(float)
    found = baselines_of(dataset(y, Target("n", [], [0.0], [1.0])), is_count=True)
    assert list(found) == ["mean of the targets", "Poisson regression", TREES]
    rate = PoissonRegressor(max_iter=1000).fit(X[TRAIN], y[TRAIN, 0]).predict(X[TEST])
    np.testing.assert_allclose(found["Poisson regression"].log_density, poisson.logpmf(y[TEST, 0], rate))
    np.testing.assert_allclose(found["mean of the targets"].mean[0, 0], y[TRAIN].mean())
    trees = HistGradientBoostingRegressor(loss="poisson", random_state=0).fit(X[TRAIN], y[TRAIN, 0])
    np.testing.assert_allclose(found[TREES].log_density, poisson.logpmf(y[TEST, 0], trees.predict(X[TEST])))


@pytest.mark.parametrize("limit", ["MOST_HISTOGRAMS", "MOST_TREE_NUMBERS"])
def test_trees_are_left_out_where_their_fit_would_take_long(limit, monkeypatch):
    """Two inputs of three classes, in 45 rows: six histograms, and 270 numbers."""
    size = {"MOST_HISTOGRAMS": 6, "MOST_TREE_NUMBERS": 270}[limit]
    for largest, is_fitted in ((size, True), (size - 1, False)):
        monkeypatch.setattr(trained, limit, largest)
        assert (TREES in baselines_of(dataset(LABELS, CLASSES))) == is_fitted


def test_linear_regression_is_left_out_for_many_columns(monkeypatch):
    for largest, is_fitted in ((2, True), (1, False)):
        monkeypatch.setattr(trained, "MOST_COLUMNS", largest)
        found = baselines_of(dataset(X[:, :1].copy(), NUMBERS))
        assert ("linear regression" in found) == is_fitted
        assert "mean of the targets" in found


def test_a_linear_method_is_fitted_to_as_many_rows_as_it_can_be_in_seconds(monkeypatch):
    monkeypatch.setattr(trained, "MOST_NUMBERS", 60)  # 30 of 45 rows
    found = baselines_of(dataset(LABELS, CLASSES))["logistic regression"]
    rows = np.sort(torch.randperm(45, generator=torch.Generator().manual_seed(0))[:30].numpy())
    probs = LogisticRegression(max_iter=1000).fit(X[rows], LABELS[rows]).predict_proba(X[TEST])
    np.testing.assert_allclose(found.probs, probs)


def test_printed_numbers_have_three_or_four_digits_and_shares_a_space():
    """A last zero is a digit like any other, and the legend names the single network of this run only."""
    shown = {"nll": 2.91, "rmse": 0.004167, "coverage_90": 0.5}
    printed = str(scores.OwnDataScores("y", 9, [{"name": "one draw", "scores": shown}], is_class=False))
    head, row, _, legend, _ = printed.splitlines()
    assert head.split()[-3:] == ["in", "90", "%"]
    assert row.split() == ["one", "draw", "2.910", "0.00417", "50.0", "%"]
    assert legend.startswith("one draw: a single network; ")


def test_a_score_that_trees_lack_is_explained():
    rows = [{"name": "one draw", "scores": {"nll": 1.0, "rmse": 2.0}}, {"name": TREES, "scores": {"rmse": 1.0}}]
    printed = str(scores.OwnDataScores("y", 9, rows, is_class=False))
    assert printed.splitlines()[2].split()[-2:] == ["-", "1.000"]
    assert "-: trees predict numbers without an uncertainty." in printed
