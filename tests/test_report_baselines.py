"""The baselines that `evaluate` and `report` compare a network with, against scikit-learn and scipy by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm, poisson
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression, PoissonRegressor
from torch.distributions import Normal, Poisson

from pyro_bnn.app.datasets import Dataset, Facts
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports import scores, trained
from pyro_bnn.app.reports.calibrated import promised_by
from pyro_bnn.app.reports.page.verdicts import of_ways
from pyro_bnn.app.reports.scores import scores_of
from pyro_bnn.app.reports.trained import TREES, Alone, baselines_of
from pyro_bnn.scores.uncertainty import RegressionPrediction

X = np.random.default_rng(0).normal(size=(60, 2))
TRAIN, TEST = slice(0, 45), slice(45, 60)


@pytest.fixture(autouse=True)
def few_rows_suffice_for_trees(monkeypatch):
    monkeypatch.setattr(trained, "FEWEST_FOR_TREES", 45)


def dataset(y, target):
    x, y = torch.from_numpy(X), torch.from_numpy(y)
    facts = Facts("", 45, 15, [2], target, None, None, [])
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


@pytest.mark.parametrize("limit", ["MOST_HISTOGRAMS", "MOST_TREE_NUMBERS", "FEWEST_FOR_TREES"])
def test_trees_are_left_out_where_their_fit_would_take_long_or_rows_are_few(limit, monkeypatch):
    """Two inputs of three classes, in 45 rows: six histograms, and 270 numbers."""
    size = {"MOST_HISTOGRAMS": 6, "MOST_TREE_NUMBERS": 270, "FEWEST_FOR_TREES": 45}[limit]
    for largest, is_fitted in ((size, True), (size + (1 if limit.startswith("FEWEST") else -1), False)):
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
    """A last zero is a digit like any other."""
    shown = {"nll": 2.91, "rmse": 0.004167, "coverage_90": 0.5}
    printed = str(scores.OwnDataScores("y", 9, [{"name": "one draw (mean of 9)", "scores": shown}], is_class=False))
    head, row = printed.splitlines()
    assert head.split()[-3:] == ["in", "90", "%"]
    assert row.split() == ["one", "draw", "(mean", "of", "9)", "2.910", "0.00417", "50.0", "%"]


def test_an_ece_that_is_an_error_of_rounding_is_shown_as_zero():
    assert [scores.shown_score("ece", value) for value in (1.665e-16, 0.0, 0.0123)] == ["0.0000", "0.0000", "0.0123"]


def test_intervals_of_counts_should_hold_what_whole_numbers_promise():
    """Of a rate of 2, the interval from 0 to 5 has the probability 98.3 %."""
    two = torch.full((5, 1), 2.0)
    likely = RegressionPrediction(
        num_samples=1,
        log_density=None,
        mean=two,
        aleatoric=two,
        variance_of_means=None,
        components=Poisson(two[None], validate_args=False),
    )
    assert promised_by(likely, 0 * two, 0 * two + 5, 0.9, is_count=True) == pytest.approx(0.9834, abs=1e-4)
    assert promised_by(likely, 0 * two, 0 * two + 5, 0.9, is_count=False) == 0.9
    rows = [{"name": "mean weights", "scores": {"nll": 1.0, "coverage_90": 0.98}}]
    said = str(scores.OwnDataScores("y", 9, rows, is_class=False, promised=0.9834))
    assert "90 % intervals should hold 98.3 % of the targets." in said
    assert "should hold" not in str(scores.OwnDataScores("y", 9, rows, is_class=False))


@pytest.mark.parametrize(("nll", "is_said"), [(1.258e8, True), (3.0, False)])
def test_a_huge_nll_of_single_draws_is_explained(nll, is_said):
    rows = [{"name": "one draw", "scores": {"nll": nll}}, {"name": "mean of 50 draws", "scores": {"nll": 1.0}}]
    printed = str(scores.OwnDataScores("y", 9, rows, is_class=True))
    assert ("\n\nThe NLL of single draws is large since each is too sure" in printed) == is_said


def test_scores_of_one_draw_are_means_and_never_beat_the_average_of_the_same_draws():
    """NLL: the mean over draws is at least that of the mixture, by Jensen's inequality."""
    torch.manual_seed(0)
    y, draws = torch.randn(40, 1), torch.randn(6, 40, 1)

    def predicted(loc):
        density = Normal(loc, 1.0).log_prob(y).sum(-1).logsumexp(0) - math.log(len(loc))
        return RegressionPrediction(
            num_samples=len(loc),
            log_density=density,
            targets=y,
            mean=loc.mean(0),
            aleatoric=torch.ones(40, 1),
            variance_of_means=None,
            components=Normal(loc, torch.ones_like(loc)),
        )

    parts = [predicted(loc[None]) for loc in draws]
    alone, mixture = Alone(parts), predicted(draws)
    assert alone.name == "one draw (mean of 6)"
    assert alone.score()["nll"] == pytest.approx(sum(part.nll for part in parts) / 6)
    assert alone.score()["rmse"] == pytest.approx(sum(part.score()["rmse"] for part in parts) / 6)
    assert float(-alone.log_density.mean()) == pytest.approx(alone.score()["nll"])
    assert min(part.nll for part in parts) < alone.score()["nll"]
    assert mixture.nll < alone.score()["nll"]
    for single, said in (
        (alone, ""),  # an average of all draws is never worse than they are on average
        (predicted(y[None]), "Averaging over 6 draws of the weights predicts worse than the mean weights alone"),
    ):
        found = SimpleNamespace(single=("", single), prediction=mixture, baselines={}, is_linear=False)
        _, *verdicts = of_ways(found, "linear regression", mixture, points="", lead=(0.0, 1.0), score="RMSE")
        assert len(verdicts) == bool(said)
        assert not said or verdicts[0].text.startswith(said)


def test_a_score_that_trees_lack_is_a_dash():
    rows = [{"name": "one draw", "scores": {"nll": 1.0, "rmse": 2.0}}, {"name": TREES, "scores": {"rmse": 1.0}}]
    printed = str(scores.OwnDataScores("y", 9, rows, is_class=False))
    assert printed.splitlines()[2].split()[-2:] == ["-", "1.000"]
