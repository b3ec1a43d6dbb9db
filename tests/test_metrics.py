import math

import pytest
import scipy.stats
import torch
import torch.distributions as dist

from pyro_bnn import metrics

from .tolerances import agrees_in_mean, assert_identical


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


@pytest.mark.parametrize("min_inputs", [1, 5, 20, 1000])
def test_joined_bins_hold_the_same_inputs(min_inputs):
    probs = torch.randn(200, 3).softmax(-1)
    y = torch.arange(200) % 3
    bins = metrics.calibration_bins(probs, y)
    joined = bins.joined(min_inputs)
    assert joined.counts.min() >= min(min_inputs, 200)
    assert joined.counts.sum() == 200
    assert (joined.edges[0], joined.edges[-1]) == (0, 1)
    confidence, label = probs.max(-1)
    for start, end, *found in zip(
        joined.edges[:-1], joined.edges[1:], joined.counts, joined.confidence, joined.accuracy, strict=True
    ):
        rows = (confidence > start) & (confidence <= end)
        expected = (rows.sum(), confidence[rows].mean(), (label == y)[rows].double().mean())
        torch.testing.assert_close(torch.stack(found), torch.tensor(expected))


def test_calibration_bins_hold_every_input_once_with_right_edges_included():
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0], [0.51, 0.49]])
    bins = metrics.calibration_bins(probs, torch.zeros(4, dtype=torch.long), num_bins=4)
    assert_identical(bins.counts, [0.0, 1.0, 2.0, 1.0])
    assert torch.isnan(bins.confidence[0])
    bins = metrics.calibration_bins([[0.55, 0.45]], [0], num_bins=100)  # 100 * 0.55 is rounded up
    assert bins.counts.nonzero().tolist() == [[54]]


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


CLASS_SCORES = [
    metrics.accuracy,
    metrics.negative_log_likelihood,
    metrics.brier_score,
    metrics.calibration_bins,
    metrics.expected_calibration_error,
    metrics.adaptive_calibration_error,
]
FAIR = [[0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize("score", CLASS_SCORES)
@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        ([[2.0, 1.0], [0.5, 0.5]], [0, 1], "sums up to 2 away from 1"),
        ([[0.6, 0.399], [0.5, 0.5]], [0, 1], "a sum of 1"),
        (FAIR, [0, 2], r"whole numbers in 0, ..., 1 .* such as \[2\]"),
        (FAIR, [-1, 0], r"such as \[-1\]"),
        (FAIR, [0.0, 0.5], r"such as \[0.5\]"),
        ([[1, 0], [0, 1]], [0, 1], "`probs` must be floating-point"),
    ],
)
def test_every_class_score_refuses_what_is_no_prediction(score, probs, y, message):
    with pytest.raises(ValueError, match=message):
        score(torch.tensor(probs), torch.tensor(y))


@pytest.mark.parametrize("score", CLASS_SCORES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_class_score_takes_probabilities_of_every_dtype(score, dtype):
    probs = torch.randn(50, 1000).to(dtype).softmax(-1)
    y = torch.randint(1000, (50,))
    score(probs, y)
    score(probs.float().softmax(-1).double(), y.double())  # single precision in double, and whole numbers as floats


def test_bins_of_equal_mass_by_hand():
    confidence = torch.tensor([0.95, 0.6, 0.7, 0.9, 0.8, 0.9, 0.65, 0.9])
    probs, y = torch.stack([confidence, 1 - confidence], -1), torch.tensor([0, 1, 0, 0, 0, 1, 0, 0])
    bins = metrics.calibration_bins(probs, y, num_bins=4, equal_mass=True)
    assert bins.counts.tolist() == [2, 2, 3, 1]  # three rows of confidence 0.9 stay together
    torch.testing.assert_close(bins.confidence, torch.tensor([0.625, 0.75, 0.9, 0.95]))
    torch.testing.assert_close(bins.accuracy, torch.tensor([0.5, 1, 2 / 3, 1]))
    torch.testing.assert_close(bins.edges, torch.tensor([0.6, 0.7, 0.9, 0.9, 0.95]))
    error = (2 * 0.125 + 2 * 0.25 + 3 * (0.9 - 2 / 3) + 0.05) / 8
    assert metrics.expected_calibration_error(probs, y, num_bins=4, equal_mass=True) == pytest.approx(error)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    shuffled = metrics.expected_calibration_error(probs[order], y[order], num_bins=4, equal_mass=True)
    assert shuffled == pytest.approx(error)
    chance = metrics.calibration_error_by_chance(probs, num_bins=4, num_samples=3, equal_mass=True)
    generator = torch.Generator().manual_seed(0)
    for value in chance:
        labels = (torch.rand(8, generator=generator, dtype=torch.double) >= confidence).long()
        expected = metrics.expected_calibration_error(probs, labels, num_bins=4, equal_mass=True)
        assert float(value) == pytest.approx(expected)


def test_the_first_of_bins_of_equal_mass_is_no_smaller_than_the_second_where_rows_do_not_divide():
    confidence = torch.tensor([0.51, 0.61, 0.71, 0.81, 0.91])
    probs = torch.stack([confidence, 1 - confidence], -1)
    bins = metrics.calibration_bins(probs, torch.zeros(5, dtype=torch.long), num_bins=2, equal_mass=True)
    assert bins.counts.tolist() == [3, 2]
    torch.testing.assert_close(bins.edges, torch.tensor([0.51, 0.81, 0.91]))


def test_adaptive_calibration_by_hand():
    probs = torch.tensor([0.1, 0.3, 0.6, 0.8])
    probs = torch.stack([1 - probs, probs], -1)
    y = torch.tensor([0, 1, 1, 1])
    # class 1, two bins of two: frequencies 1/2 and 1, mean probabilities 0.2 and 0.7; class 0 mirrors it
    assert metrics.adaptive_calibration_error(probs, y, num_bins=2) == pytest.approx(0.5 * (0.3 + 0.3))
    # three bins: ranks 0 and 1, rank 2, rank 3 for class 1; class 0 has the reverse order: 0.8 and 0.6, 0.3, 0.1
    first = (abs(1 - 0.4) + abs(1 - 0.6) + abs(1 - 0.8)) / 4
    reverse = (abs(2 - 1.4) + abs(1 - 0.3) + abs(0 - 0.1)) / 4
    assert metrics.adaptive_calibration_error(probs, y, num_bins=3) == pytest.approx((first + reverse) / 2)
    every = (0.1 + 0.7 + 0.4 + 0.2) / 4  # more bins than inputs: each its own
    assert metrics.adaptive_calibration_error(probs, y, num_bins=50) == pytest.approx(every)


def test_adaptive_calibration_sees_what_the_top_label_hides_and_no_order_of_rows():
    probs, y = random_predictions(20_000)
    fair = metrics.adaptive_calibration_error(probs, y)
    assert fair < 0.012  # 15 bins of 1333 inputs: sampling noise alone is 0.011 at most
    top = probs.argmax(-1, keepdim=True)
    second = probs.scatter(-1, top, -1.0).argmax(-1, keepdim=True)
    third = probs.scatter(-1, top, -1.0).scatter(-1, second, -1.0).argmax(-1, keepdim=True)
    wrong = probs.scatter(-1, second, probs.gather(-1, third)).scatter(-1, third, probs.gather(-1, second))
    assert metrics.expected_calibration_error(wrong, y) < 0.03
    assert metrics.adaptive_calibration_error(wrong, y) > 3 * fair
    rounded = (10 * probs).round() + 1
    rounded, order = rounded / rounded.sum(-1, keepdim=True), y.argsort()
    shuffled = metrics.adaptive_calibration_error(rounded, y)
    assert metrics.adaptive_calibration_error(rounded[order], y[order]) == pytest.approx(shuffled, rel=1e-12)


def gaussian_crps(loc, scale, y):
    """Gneiting and Raftery (2007), equation 21, with the sign of a loss."""
    z = (y - loc) / scale
    return scale * (z * (2 * scipy.stats.norm.cdf(z) - 1) + 2 * scipy.stats.norm.pdf(z) - 1 / math.sqrt(math.pi))


def test_crps_of_one_gaussian_is_the_closed_form():
    loc, scale, y = torch.randn(30, 2), torch.rand(30, 2) + 0.1, 3 * torch.randn(30, 2)
    expected = gaussian_crps(loc.numpy(), scale.numpy(), y.numpy()).mean()
    one = torch.ones(1)
    assert metrics.crps_of_normal_mixture(one, loc[..., None], scale[..., None], y) == pytest.approx(
        expected, rel=1e-12
    )
    halves = [v[..., None].expand(30, 2, 2) for v in (loc, scale)]  # the same Gaussian, twice
    assert metrics.crps_of_normal_mixture(torch.tensor([0.3, 0.7]), *halves, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("y", [-2.0, 0.3, 5.0])
def test_crps_of_a_mixture_is_the_integral_of_the_squared_gap(y):
    weights = torch.tensor([0.2, 0.5, 0.3])
    loc, scale = torch.tensor([[-1.0, 0.5, 3.0]]), torch.tensor([[0.1, 1.0, 0.4]])

    mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(loc[0], scale[0]))
    low, high = torch.linspace(-12, y, 200_001), torch.linspace(y, 15, 200_001)
    below = torch.trapezoid(mixture.cdf(low).square(), low)
    above = torch.trapezoid((1 - mixture.cdf(high)).square(), high)
    value = metrics.crps_of_normal_mixture(weights, loc, scale, torch.tensor([y]))
    assert value == pytest.approx(float(below + above), rel=1e-7)
    half = metrics.crps_of_normal_mixture(weights, loc.float(), scale.float(), torch.tensor([y]).float())
    assert half == pytest.approx(value, rel=1e-6)


def test_crps_from_draws_is_fair_for_few_draws():
    """The mean over many sets of three draws is the closed form; dividing by S squared would be biased."""
    draws, y = torch.randn(3, 40_000) * 2 + 1, torch.full((40_000,), 0.5)
    each = torch.tensor([metrics.crps_from_draws(part, y[:100]) for part in draws.split(100, 1)])
    expected = gaussian_crps(1.0, 2.0, 0.5)
    assert agrees_in_mean(each, torch.tensor(expected))
    pairs = (draws[:, None] - draws[None]).abs().sum((0, 1))
    plain = (draws - y).abs().mean(0) - pairs / 18
    assert not agrees_in_mean(plain, torch.tensor(expected))
    assert metrics.crps_from_draws(draws, y) == pytest.approx(float(((draws - y).abs().mean(0) - pairs / 12).mean()))
    assert metrics.crps_from_draws(torch.full((5, 2), 3.0), torch.tensor([1.0, 4.0])) == pytest.approx(1.5)


def test_a_label_of_probability_zero_costs_infinity():
    assert metrics.negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == math.inf


def test_errors_and_coverage_by_hand():
    mean, y = torch.randn(50, 2), torch.randn(50, 2)
    assert metrics.root_mean_squared_error(mean, y) == pytest.approx(float(((mean - y) ** 2).mean() ** 0.5))
    lower, upper = mean - 1.0, mean + 1.0
    assert metrics.interval_coverage(lower, upper, y) == pytest.approx(float(((y - mean).abs() <= 1).double().mean()))


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
    """Unknown inputs score higher in five of six pairs; to find 95 % of them, one of three known ones is flagged.

    DeLong's formula by hand: the unknown are above 2/3 and 1 of the known; the known are below 1, 1 and 1/2.
    """
    scores = metrics.ood_scores(torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9]))
    assert scores.auroc == pytest.approx(5 / 6)
    assert scores.fpr95 == pytest.approx(1 / 3)
    assert scores.aupr == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert scores.auroc_standard_error == pytest.approx(((1 / 18) / 2 + (1 / 12) / 3) ** 0.5)


def test_standard_error_of_the_auroc_is_its_scatter():
    """Over repeated samples, the mean of the estimated variances is the variance of the AUROCs."""
    num_repeats, num_known, num_unknown = 300, 100, 15
    found = [metrics.ood_scores(torch.randn(num_known), 1 + torch.randn(num_unknown)) for _ in range(num_repeats)]
    values = torch.tensor([scores.auroc for scores in found])
    ratio = float(torch.tensor([scores.auroc_standard_error for scores in found]).square().mean() / values.var())
    error = (2 / num_repeats) ** 0.5  # relative, of a variance of Gaussians, which the estimates nearly are
    assert abs(ratio - 1) < 5 * error
    of_all = float((values.mean() * (1 - values.mean()) / (num_known + num_unknown)) / values.var())
    assert abs(of_all - 1) > 5 * error  # a share of that many independent inputs would have another
    assert math.isnan(metrics.ood_scores([0.0, 1.0], [2.0]).auroc_standard_error)


def test_intervals_of_accuracies_are_wilsons():
    probs, y = random_predictions(40)
    bins = metrics.calibration_bins(probs, y, num_bins=20)
    low, high = bins.accuracy_interval(0.9)
    for ends, accuracy, count in zip(zip(low, high, strict=True), bins.accuracy, bins.counts, strict=True):
        if count:
            test = scipy.stats.binomtest(round(float(accuracy * count)), int(count))
            assert [float(end) for end in ends] == pytest.approx([*test.proportion_ci(0.9, method="wilson")], abs=1e-9)
        else:
            assert all(end.isnan() for end in ends)
    assert (bins.counts == 0).any()
    with pytest.raises(ValueError, match="`level` must lie strictly between 0 and 1"):
        bins.accuracy_interval(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.crps_from_draws(torch.zeros(1, 3), torch.zeros(3)), "at least 2 draws"),
        (lambda: metrics.crps_from_draws(torch.zeros(5, 3), torch.zeros(3, 1)), "`draws` must have shape"),
        (
            lambda: metrics.crps_of_normal_mixture(
                *torch.zeros(3, 4, 1) + torch.tensor([1.0, 0, 0])[:, None, None], torch.zeros(4)
            ),
            "`scale` must be above 0",
        ),
        (lambda: metrics.crps_of_normal_mixture(*torch.ones(3, 4, 1), torch.zeros(3)), "`loc` must have the shape"),
        (lambda: metrics.interval_coverage(torch.ones(2), torch.zeros(2), torch.zeros(2)), "`lower` must not exceed"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_calibration_error_by_chance_has_the_bins_of_the_calibration_error():
    """Each of the four bins contains its upper end: confidences of 0.75 and 0.8 are in different bins."""
    confidence = torch.tensor([0.75, 0.8] * 20)
    probs = torch.stack([confidence, 1 - confidence], -1)
    generator = torch.Generator().manual_seed(3)
    expected = []
    for _ in range(20):
        is_right = torch.rand(len(probs), generator=generator, dtype=torch.double) < confidence
        expected.append(metrics.expected_calibration_error(probs, (~is_right).long(), num_bins=4))
    found = metrics.calibration_error_by_chance(probs, num_bins=4, num_samples=20, seed=3)
    assert_identical(found, expected)
