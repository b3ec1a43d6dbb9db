import math

import pytest
import scipy.stats
import torch

from pyro_bnn import metrics

from .tolerances import assert_identical


def random_predictions(n=500, c=4):
    probs = torch.randn(n, c).softmax(-1)
    return probs, torch.distributions.Categorical(probs).sample()


def test_scores_of_a_table_one_can_check_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
    y = torch.tensor([0, 1, 2, 2])
    assert metrics.accuracy(probs, y) == 0.75
    assert metrics.negative_log_likelihood(probs, y) == pytest.approx(-math.log(0.7 * 0.6 * 0.3 * 0.4) / 4)
    squares = [0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.4**2 + 0.3**2, 0.2**2 + 0.5**2 + 0.7**2, 0.3**2 + 0.3**2 + 0.6**2]
    assert metrics.brier_score(probs, y) == pytest.approx(sum(squares) / 4)
    # two bins: (0, 0.5] holds confidences 0.5 (wrong), 0.4 (right); (0.5, 1] holds 0.7, 0.6 (both right)
    assert metrics.expected_calibration_error(probs, y, num_bins=2) == pytest.approx(0.5 * 0.05 + 0.5 * 0.35)


def test_calibration_bins_hold_every_input_once_with_right_edges_included():
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0], [0.51, 0.49]])
    bins = metrics.calibration_bins(probs, torch.zeros(4, dtype=torch.long), num_bins=4)
    assert_identical(bins.counts, [0.0, 1.0, 2.0, 1.0])
    assert torch.isnan(bins.confidence[0])


def test_a_calibrated_forecaster_has_a_small_error_and_an_overconfident_one_a_large():
    probs, y = random_predictions(20_000)
    assert metrics.expected_calibration_error(probs, y) < 0.03
    sharpened = (3 * probs.log()).softmax(-1)
    assert metrics.expected_calibration_error(sharpened, y) > 0.1


def test_the_true_probabilities_score_best():
    probs, y = random_predictions(5000)
    blurred = 0.5 * probs + 0.5 / 4
    for score in (metrics.negative_log_likelihood, metrics.brier_score):
        assert score(probs, y) < score(blurred, y)


def test_regression_scores_against_scipy():
    mean, y = torch.randn(50, 2), torch.randn(50, 2)
    assert metrics.root_mean_squared_error(mean, y) == pytest.approx(float(((mean - y) ** 2).mean() ** 0.5))
    lower, upper = mean - 1.0, mean + 1.0
    assert metrics.interval_coverage(lower, upper, y) == pytest.approx(float(((y - mean).abs() <= 1).double().mean()))
    draws = torch.randn(30, 50)
    log_probs = torch.as_tensor(scipy.stats.norm.logpdf(y[:, 0].numpy(), loc=draws.numpy()))
    expected = float(log_probs.exp().mean(0).log().mean())
    assert metrics.mixture_log_likelihood(log_probs) == pytest.approx(expected, rel=1e-10)


def test_intervals_include_their_ends():
    assert metrics.interval_coverage(torch.zeros(2), torch.ones(2), torch.tensor([0.0, 1.0])) == 1.0


def test_ood_scores_of_gaussians_are_known():
    """AUROC of N(d, 1) against N(0, 1) is Phi(d / sqrt 2)."""
    known, unknown = torch.randn(20_000), torch.randn(20_000) + 1.5
    scores = metrics.ood_scores(known, unknown)
    assert scores.auroc == pytest.approx(scipy.stats.norm.cdf(1.5 / math.sqrt(2)), abs=0.01)
    assert scores.fpr95 == pytest.approx(scipy.stats.norm.sf(1.5 - 1.645), abs=0.02)
    swapped = metrics.ood_scores(unknown, known)
    assert swapped.auroc == pytest.approx(1 - scores.auroc)  # a flipped sign is seen


def test_ood_scores_of_a_small_table():
    """Of six pairs the unknown scores higher in five; at 95 % found, one of three known is flagged."""
    scores = metrics.ood_scores(torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9]))
    assert scores.auroc == pytest.approx(5 / 6)
    assert scores.fpr95 == pytest.approx(1 / 3)
    assert scores.aupr == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.accuracy(torch.zeros(3, 2), torch.zeros(3, 1)), r"`probs` must have shape \(N, C\)"),
        (lambda: metrics.root_mean_squared_error(torch.zeros(3), torch.zeros(3, 1)), "must have the same shape"),
        (lambda: metrics.ood_scores(torch.zeros(0), torch.zeros(2)), "`in_domain` must be a non-empty vector"),
        (lambda: metrics.ood_scores(torch.zeros(2), torch.full((2,), math.nan)), "`out_of_domain` must be finite"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
