"""Conformal intervals and sets contain the wanted share of new targets, whatever the model."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

import pyro_bnn as pb
from pyro_bnn.scores.uncertainty import ClassificationPrediction, RegressionPrediction

RUNS, ROWS = 400, 60
"""Simulated data sets, and calibration rows of each."""


def numbers(mean, sd, *, epistemic=0.0):
    """A prediction of Gaussians with these means and standard deviations, shape (N, O), by two draws."""
    aleatoric = sd.square() - epistemic
    components = Normal(mean.expand(2, *mean.shape), sd.expand(2, *sd.shape))
    return RegressionPrediction(
        num_samples=2,
        log_density=None,
        targets=None,
        mean=mean,
        aleatoric=aleatoric,
        variance_of_means=torch.full_like(mean, epistemic),
        components=components,
    )


def classes(probs):
    """A prediction with these class probabilities, shape (N, C)."""
    zeros = probs.new_zeros(len(probs))
    return ClassificationPrediction(
        num_samples=2,
        log_density=None,
        targets=None,
        probs=probs,
        aleatoric=zeros,
        votes=(2 * torch.nn.functional.one_hot(probs.argmax(1), probs.shape[1])),
        mutual_information=zeros,
        variance_of_logits=zeros,
        logits=None,
    )


def certain(prediction):
    """The prediction with a variance of 0 in its first row."""
    aleatoric = prediction.aleatoric.clone()
    aleatoric[0] = 0
    return replace(prediction, aleatoric=aleatoric)


def wrong_model(num_rows):
    """Rows with skewed noise, and the prediction of a model that believes in Gaussian noise that is too small."""
    x = torch.rand(num_rows, 1)
    y = x + (0.2 + x) * (torch.distributions.Exponential(1.0).sample((num_rows, 1)) - 1)
    return numbers(x, 0.1 + 0.2 * x), y


def share_inside(interval, y):
    low, high = interval
    return float(((low <= y) & (y <= high)).double().mean())


def covered(score, level=0.9, *, shift=0.0):
    """Coverage of new rows, one value for each simulated data set."""
    shares = []
    for _ in range(RUNS if score != "quantile" else RUNS // 4):  # quantiles take long
        intervals = pb.calibration.ConformalIntervals(*wrong_model(ROWS), score=score)
        prediction, y = wrong_model(200)
        shares.append(share_inside(intervals.interval(prediction, level), y + shift))
    return torch.tensor(shares)


@pytest.mark.daily("absolute", "scaled")
@pytest.mark.parametrize("score", ["absolute", "scaled", "quantile"])
def test_intervals_contain_the_wanted_share_though_the_model_is_wrong(score):
    shares = covered(score)
    error = float(shares.std()) / len(shares) ** 0.5
    exact = math.ceil(0.9 * (ROWS + 1)) / (ROWS + 1)  # the law of the rank of a new score
    assert abs(float(shares.mean()) - exact) < 5 * error
    prediction, y = wrong_model(20_000)
    assert share_inside(prediction.quantile([0.05, 0.95]), y) < 0.6  # those of the model itself
    moved = covered(score, shift=1.0)  # new rows that do not come from the same distribution
    assert float(moved.mean()) < exact - 20 * error


def test_the_widths_are_the_same_follow_the_prediction_or_keep_its_asymmetry():
    prediction, y = wrong_model(500)
    mean = prediction.mean
    found = {
        score: pb.calibration.ConformalIntervals(prediction, y, score=score).interval(prediction)
        for score in ("absolute", "scaled", "quantile")
    }
    width = {score: high - low for score, (low, high) in found.items()}
    assert width["absolute"].std() < 1e-12
    torch.testing.assert_close(
        width["scaled"] / prediction.total.sqrt(), width["scaled"][:1] / prediction.total[:1].sqrt() + 0 * mean
    )
    gaussian = prediction.quantile(0.95) - prediction.quantile(0.05)
    added = width["quantile"] - gaussian
    assert added.std() < 1e-9
    assert added.mean() > 0


def test_the_radius_is_the_right_order_statistic():
    y = torch.arange(1.0, 20.0)[torch.randperm(19)][:, None]  # 19 scores: 1, ..., 19
    prediction = numbers(torch.zeros(19, 1), torch.ones(19, 1))
    intervals = pb.calibration.ConformalIntervals(prediction, y, score="absolute")
    assert intervals.num_rows == 19
    for level, expected in ((0.9, 18.0), (0.95, 19.0), (0.5, 10.0)):  # ceil(20 * level)
        assert intervals.interval(prediction, level)[1, 0, 0] == pytest.approx(expected, rel=1e-14)
    with pytest.raises(ValueError, match=r"`level` 0.96 needs at least 24 calibration rows, got 19"):
        intervals.interval(prediction, 0.96)


def test_each_output_has_its_own_radius_and_one_output_may_leave_out_its_axis():
    y = torch.randn(200, 2) * torch.tensor([1.0, 10.0])
    prediction = numbers(torch.zeros(200, 2), torch.ones(200, 2))
    low, high = pb.calibration.ConformalIntervals(prediction, y).interval(prediction)
    assert 7 < float((high - low)[0, 1] / (high - low)[0, 0]) < 14
    one = numbers(torch.zeros(200, 1), torch.ones(200, 1))
    both = [pb.calibration.ConformalIntervals(one, target).interval(one) for target in (y[:, 0], y[:, :1])]
    assert torch.equal(*both)


def labelled(num_rows, *, sharpness=3.0):
    """Labels from class probabilities, and the prediction of an overconfident model."""
    logits = torch.randn(num_rows, 5)
    return classes((sharpness * logits).softmax(1)), Categorical(logits=logits).sample()


@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize("is_random", [False, True])
def test_sets_contain_the_label_with_the_wanted_probability(penalty, is_random):
    shares, sizes = [], []
    for run in range(RUNS):
        sets = pb.calibration.ConformalSets(*labelled(ROWS), penalty=penalty, seed=2 * run if is_random else None)
        prediction, labels = labelled(200)
        inside = sets.sets(prediction, allow_empty=True)
        shares.append(float(inside.gather(1, labels[:, None]).double().mean()))
        sizes.append(float(inside.sum(1).double().mean()))
    shares = torch.tensor(shares)
    error = float(shares.std()) / RUNS**0.5
    assert float(shares.mean()) > 0.9 - 5 * error
    assert float(shares.mean()) < 0.97
    if is_random:  # the scores have no ties
        assert float(shares.mean()) == pytest.approx(math.ceil(0.9 * (ROWS + 1)) / (ROWS + 1), abs=5 * error)
    assert 1 < sum(sizes) / RUNS < 5


def test_the_scores_of_sets_are_those_of_the_paper():
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    sets = pb.calibration.ConformalSets(classes(probs.repeat(10, 1)), torch.tensor([1, 2] * 10), penalty=0.5)
    # of class 1 in the first row: 0.5 + 0.3 and the penalty of rank 2; of class 2 in the second: 0.7
    assert sets.num_rows == 20
    found = sets.sets(classes(probs), level=0.9)
    assert found.tolist() == [[True, True, False], [False, False, True]]
    without = pb.calibration.ConformalSets(classes(probs.repeat(10, 1)), torch.tensor([1, 2] * 10))
    assert without.sets(classes(probs), level=0.9).tolist() == [[True, True, False], [False, False, True]]
    assert without.sets(classes(probs), level=0.4).tolist() == [[True, False, False], [False, False, True]]


def test_no_set_is_empty_unless_that_is_allowed():
    sets = pb.calibration.ConformalSets(*labelled(400), seed=0)
    prediction, _ = labelled(400)
    exact, filled = sets.sets(prediction, 0.3, allow_empty=True), sets.sets(prediction, 0.3)
    is_empty = ~exact.any(1)
    assert 0 < int(is_empty.sum()) < 400
    assert torch.equal(filled[~is_empty], exact[~is_empty])
    assert torch.equal(filled[is_empty].int().argmax(1), prediction.probs[is_empty].argmax(1))
    assert filled[is_empty].sum(1).eq(1).all()


def test_a_temperature_corrects_probabilities_that_are_too_certain():
    prediction, labels = labelled(20_000, sharpness=3.0)
    found = pb.calibration.Temperature.fit(prediction, labels)
    assert found.value == pytest.approx(3.0, rel=0.05)
    new, new_labels = labelled(20_000, sharpness=3.0)
    before, after = (
        pb.metrics.expected_calibration_error(probs, new_labels) for probs in (new.probs, found.probs(new))
    )
    assert after < 0.02 < before
    assert torch.equal(found.probs(new).argmax(1), new.probs.argmax(1))
    right, right_labels = labelled(20_000, sharpness=1.0)
    assert pb.calibration.Temperature.fit(right, right_labels).value == pytest.approx(1.0, abs=0.05)
    certain = classes(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert pb.calibration.Temperature.fit(certain, torch.tensor([0, 1, 1])).value > 10


def test_a_factor_corrects_the_spread_of_each_output():
    sd = torch.tensor([1.0, 2.0]) * torch.rand(20_000, 1).add(0.5)
    y = torch.randn(20_000, 2) * sd * torch.tensor([0.5, 3.0])
    prediction = numbers(torch.zeros(20_000, 2), sd, epistemic=0.01)
    factor = pb.calibration.SpreadFactor.fit(prediction, y)
    torch.testing.assert_close(factor.value, torch.tensor([0.5, 3.0]), rtol=0.03, atol=0)
    torch.testing.assert_close(factor.sd(prediction), sd * factor.value)


def test_adaptive_intervals_keep_their_share_while_the_noise_grows():
    growing = torch.linspace(1, 6, 3000)[:, None]
    y, prediction = torch.randn(3000, 1) * growing, numbers(torch.zeros(3000, 1), torch.ones(3000, 1))
    early, late = slice(0, 300), slice(300, 3000)
    adaptive = pb.calibration.AdaptiveIntervals(level=0.9, rate=0.02, num_scores=300).start(prediction[early], y[early])
    ends = adaptive.update(prediction[late], y[late])
    assert share_inside(ends, y[late]) == pytest.approx(0.9, abs=(0.9 + 0.02) / (0.02 * 2700))  # the theorem's bound
    assert share_inside(ends[:, -1000:], y[-1000:]) == pytest.approx(0.9, abs=0.03)
    fixed = pb.calibration.ConformalIntervals(prediction[early], y[early]).interval(prediction[late])
    assert share_inside(fixed, y[late]) < 0.7


def test_adaptive_intervals_use_only_rows_before_their_own():
    prediction, y = wrong_model(200)
    first, second = (pb.calibration.AdaptiveIntervals().start(prediction[:50], y[:50]) for _ in range(2))
    changed = y.clone()
    changed[150:] += 100
    a, b = first.update(prediction[50:], y[50:]), second.update(prediction[50:], changed[50:])
    assert torch.equal(a[:, :101], b[:, :101])  # the interval of row 150 is made before its target is known
    assert not torch.equal(a[:, 101:], b[:, 101:])
    assert bool(pb.calibration.AdaptiveIntervals().interval(prediction).isinf().all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, c, y: pb.calibration.ConformalIntervals(c, y),
            "`prediction` must be a prediction of numbers, made by predict, got Class",
        ),
        (lambda p, c, y: pb.calibration.ConformalIntervals(p, y[:3]), r"`y` must have shape \(40, 1\), got \(3, 1\)"),
        (lambda p, c, y: pb.calibration.ConformalIntervals(p, y, score="best"), "`score` must be one of 'absolute'"),
        (lambda p, c, y: pb.calibration.ConformalSets(c, y.round()), r"`y` must have shape \(40,\), got \(40, 1\)"),
        (lambda p, c, y: pb.calibration.ConformalSets(c, 9 + 0 * y[:, 0]), "`y` must be labels from 0 to 4"),
        (
            lambda p, c, y: pb.calibration.ConformalSets(p, y),
            "`prediction` must be a prediction of classes, made by predict, got Regr",
        ),
        (lambda p, c, y: pb.calibration.ConformalSets(c, y[:, 0]), "`y` must be whole numbers"),
        (lambda p, c, y: pb.calibration.ConformalIntervals(certain(p), y), "must have variances above 0"),
        (lambda p, c, y: pb.calibration.ConformalIntervals(replace(p, aleatoric=y.abs() / 0), y), "that are finite"),
        (lambda p, c, y: pb.calibration.AdaptiveIntervals().update(certain(p), y), "must have variances above 0"),
        (
            lambda p, c, y: pb.calibration.ConformalIntervals(p, y).interval(numbers(y.expand(40, 3), 1 + 0 * y)),
            r"`prediction` must have outputs of shape \(1,\), as in the calibration, got \(3,\)",
        ),
        (
            lambda p, c, y: pb.calibration.ConformalSets(c, 0 * y[:, 0]).sets(classes(c.probs[:, :4])),
            "`prediction` must have 5 classes, as in the calibration, got 4",
        ),
        (lambda p, c, y: pb.calibration.Temperature(0.0), "`value` must be a finite number above 0"),
        (lambda p, c, y: pb.calibration.AdaptiveIntervals(level=90), "between 0 and 1, got 90; for 90 %, write 0.9"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    prediction, y = wrong_model(40)
    with pytest.raises(ValueError, match=message):
        call(prediction, labelled(40)[0], y)


def skewed(num_rows, seed):
    random = np.random.default_rng(seed)
    x = random.uniform(size=(num_rows, 2))
    return x, np.where(random.uniform(size=num_rows) < 0.2, 5.0, 0.0) * x[:, 0] + 0.1 * random.normal(size=num_rows)


QUICK = {"hidden_layer_sizes": 4, "method": "svi", "max_iter": 30, "num_samples": 20}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_intervals_of_an_estimator_are_corrected_by_rows_that_it_did_not_fit():
    x_new, y_new = skewed(4000, 1)
    shares = []
    for seed in range(5):
        x, y = skewed(400, 10 + seed)
        regressor = pb.BNNRegressor(calibration_fraction=0.5, random_state=seed, **QUICK).fit(x, y)
        assert regressor.model_.num_data == 200
        low, high = regressor.predict_interval(x_new, 0.8).T
        shares.append(float(((low <= y_new) & (y_new <= high)).mean()))
    assert np.mean(shares) == pytest.approx(0.8, abs=5 * 0.03 / 5**0.5)  # 0.028: of 200 rows
    own = pb.BNNRegressor(random_state=0, **QUICK).fit(*skewed(400, 10))
    low, high = own.predict_interval(x_new, 0.8).T
    assert ((low <= y_new) & (y_new <= high)).mean() < 0.6
    again = pickle.loads(pickle.dumps(regressor))
    assert (again.predict_interval(x_new, 0.8) == regressor.predict_interval(x_new, 0.8)).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_sets_of_a_classifier_contain_the_label():
    random = np.random.default_rng(0)
    x = random.normal(size=(900, 2))
    y = np.array(["a", "b", "c"])[(x[:, 0] + random.normal(size=900) > 0).astype(int) + (x[:, 1] > 1)]
    classifier = pb.BNNClassifier(calibration_fraction=0.5, random_state=0, **QUICK).fit(x[:600], y[:600])
    found = classifier.predict_set(x[600:], 0.9)
    inside = found[np.arange(300), np.searchsorted(classifier.classes_, y[600:])]
    assert found.shape == (300, 3)
    assert 0.85 < inside.mean() < 1
    assert found.sum(1).min() >= 1
    assert found.sum(1).mean() < 2.5
    with pytest.raises(ValueError, match="`predict_set` needs held-out rows, since sets"):
        pb.BNNClassifier(random_state=0, **QUICK).fit(x, y).predict_set(x)
    with pytest.raises(ValueError, match="`calibration_fraction` must be None for `partial_fit`"):
        pb.BNNClassifier(calibration_fraction=0.5, random_state=0, **QUICK).partial_fit(x, y)


def test_sets_do_not_depend_on_the_other_rows_of_a_call():
    prediction, labels = labelled(300)
    sets = pb.calibration.ConformalSets(prediction, labels.tolist(), seed=0)
    new, _ = labelled(50)
    together, alone = sets.sets(new), torch.cat([sets.sets(new[row : row + 1]) for row in range(50)])
    assert torch.equal(together, alone)


def test_equal_targets_on_the_edge_are_inside():
    for mean, sd, y in torch.rand(200, 3, dtype=torch.float32).unbind():
        prediction, target = numbers(mean.expand(50, 1), sd.expand(50, 1) + 0.1), y.expand(50, 1)
        assert (
            share_inside(pb.calibration.ConformalIntervals(prediction, target.numpy()).interval(prediction), target)
            == 1
        )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_that_calibrate_take_no_part_in_the_fit():
    x, y = skewed(60, 0)
    first = pb.BNNRegressor(calibration_fraction=0.5, random_state=0, **QUICK).fit(x, y)
    fitted = []
    for row in range(20):
        changed = y.copy()
        changed[row] = 1000
        other = pb.BNNRegressor(calibration_fraction=0.5, random_state=0, **QUICK | {"max_iter": 1}).fit(x, changed)
        fitted.append(not np.array_equal(other._mean, first._mean))
    assert 5 < sum(fitted) < 15  # half of the rows
    row = fitted.index(False)
    changed = y.copy()
    changed[row] = 1000
    again = pb.BNNRegressor(calibration_fraction=0.5, random_state=0, **QUICK).fit(x, changed)
    assert (again.predict(x) == first.predict(x)).all()
    assert (
        np.ptp(again.predict_interval(x, 0.95), axis=1).mean()
        > 10 * np.ptp(first.predict_interval(x, 0.95), axis=1).mean()
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_intervals_of_counts_have_whole_ends():
    random = np.random.default_rng(0)
    x = random.normal(size=(100, 2))
    model = pb.BNNRegressor(likelihood="poisson", calibration_fraction=0.3, random_state=0, **QUICK)
    ends = model.fit(x, random.poisson(1.0, 100)).predict_interval(x, 0.9)
    assert (ends == ends.round()).all()
    assert ends.min() == 0


@pytest.mark.parametrize(
    ("estimator", "y", "weights", "message"),
    [
        (pb.BNNRegressor, np.arange(20.0), np.ones(20), "must be None with `sample_weight`, got 0.3"),
        (pb.BNNClassifier, np.eye(20, 3, dtype=int), None, "must be None with several labels for each row"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_the_fit(estimator, y, weights, message):
    with pytest.raises(ValueError, match=f"`calibration_fraction` {message}"):
        estimator(calibration_fraction=0.3, **QUICK).fit(np.arange(20.0)[:, None], y, sample_weight=weights)
    with pytest.raises(
        ValueError, match=r"must leave a row to calibrate and two to fit, got 0\.95 for 20 rows; choose at most 0\.9\."
    ):
        pb.BNNRegressor(calibration_fraction=0.95, **QUICK).fit(np.arange(20.0)[:, None], np.arange(20.0))


def test_a_wrong_call_shows_a_right_one_and_the_repr_the_possible_levels():
    with pytest.raises(TypeError, match=r"needs `prediction`.*Example: ConformalIntervals\(prediction, y\)"):
        pb.calibration.ConformalIntervals()
    with pytest.raises(TypeError, match=r"needs `prediction`.*Example: ConformalSets\(prediction, y\)"):
        pb.calibration.ConformalSets()
    intervals = pb.calibration.ConformalIntervals.from_record(
        {"score": "scaled", "is_count": False, "scores": torch.arange(1.0, 10.0)[:, None]}
    )
    assert repr(intervals) == "ConformalIntervals: score scaled, 9 calibration rows, levels up to 0.9"
    with pytest.raises(AttributeError, match=r"`ConformalIntervals\(prediction, y\)`"):
        intervals.fit  # noqa: B018
