"""What users of NumPy and pandas try with a prediction: rows by number, targets that are no tensors, other shapes."""

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import pyro_bnn as pb

NUM_ROWS = 5
X = torch.linspace(-1, 1, NUM_ROWS, dtype=torch.float64)[:, None]


def predicted(likelihood, outputs, y=None, x=X):
    torch.manual_seed(0)
    net = nn.Linear(1, outputs)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS)
    return pb.predict(model, pb.MeanFieldGuide(model), x, y=y, num_samples=3, keep_draws=True, seed=0)


def numbers(y=None):
    return predicted(pb.GaussianLikelihood(0.1), 1, y)


@pytest.mark.parametrize("row", [2, -3, np.int64(2), torch.tensor(2), [2], np.array([2])])
def test_one_row_is_chosen_by_its_number(row):
    whole = numbers(X)
    one = whole[row]
    assert len(one) == 1
    for name in ("mean", "epistemic", "log_density", "targets"):
        torch.testing.assert_close(getattr(one, name), getattr(whole, name)[2:3])
    torch.testing.assert_close(one.interval(), whole.interval()[:, 2:3])


def test_a_loop_visits_each_row_once():
    whole = numbers()
    torch.testing.assert_close(torch.cat([row.mean for row in whole]), whole.mean)


def test_lists_and_arrays_choose_rows():
    whole = numbers()
    mask = np.array([True, False, True, False, True])
    series = pandas.Series(mask, index=range(5, 10))
    for rows in (mask, mask.tolist(), [0, 2, 4], np.array([0, 2, 4]), np.array([4, 2, 0])[::-1], series):
        torch.testing.assert_close(whole[rows].mean, whole.mean[::2])
    with pytest.raises(IndexError, match=rf"a row number below {NUM_ROWS}, .* got {NUM_ROWS}\.$"):
        whole[NUM_ROWS]


def test_probabilities_may_come_from_pandas():
    prediction, series = numbers(), pandas.Series([0.1, 0.9], index=[3, 4])
    assert torch.equal(prediction.quantile(series), prediction.quantile([0.1, 0.9]))


def test_the_batches_of_a_loader_all_have_targets_or_none():
    with pytest.raises(ValueError, match=r"must all be pairs \(x, y\), or all x alone, got both"):
        predicted(pb.GaussianLikelihood(0.1), 1, x=[(X, X), (X,)])


@pytest.mark.parametrize("convert", [np.asarray, np.square])
def test_a_prediction_is_not_taken_for_an_array(convert):
    with pytest.raises(TypeError, match=r"pass one of its tensors, such as `prediction.expectation`"):
        convert(numbers())


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.tolist, lambda y: pandas.DataFrame(y.numpy())])
def test_scores_take_arrays_lists_and_data_frames(convert):
    prediction, y = numbers(), 2 * X
    assert prediction.score(convert(y)) == prediction.score(y)
    assert prediction.crps(convert(y)) == prediction.crps(y)
    torch.testing.assert_close(prediction.log_prob(convert(y)), prediction.log_prob(y))
    classes, labels = predicted(pb.CategoricalLikelihood(), 3), torch.tensor([0, 1, 2, 0, 1])
    converted = labels.tolist() if convert is torch.Tensor.tolist else labels.numpy()
    assert classes.score(converted) == classes.score(labels)


@pytest.mark.parametrize("method", ["score", "crps", "log_prob", "targets_like"])
def test_targets_without_their_axis_are_told_what_to_pass(method):
    y = torch.zeros(NUM_ROWS)
    prediction = numbers()
    if method == "targets_like":  # calibration accepts both
        assert prediction.targets_like(y).shape == (NUM_ROWS, 1)
        return
    with pytest.raises(ValueError, match=r"\(5,\); pass `y\[:, None\]`"):
        getattr(prediction, method)(y)
    getattr(prediction, method)(y[:, None])


def test_labels_with_an_axis_too_many_are_told_what_to_call():
    labels = torch.zeros(NUM_ROWS, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"got \(5, 1\); call `y.squeeze\(-1\)`"):
        predicted(pb.CategoricalLikelihood(), 3).score(labels)


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(pb.GaussianLikelihood(0.1), 2), (pb.HeteroscedasticGaussianLikelihood(), 4)]
)
def test_too_many_targets_name_the_outputs_that_the_network_needs(likelihood, outputs):
    net = nn.Linear(1, outputs // 2)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS)
    with pytest.raises(ValueError, match=rf"got \(5, 2\); a network for 2 targets a row has {outputs} outputs"):
        pb.fit(model, (X, torch.zeros(NUM_ROWS, 2)))


@pytest.mark.parametrize("level", [[0.5, 0.9], np.array([0.5, 0.9]), torch.tensor([0.5, 0.9])])
def test_an_interval_of_several_levels_is_refused_with_a_remedy(level):
    with pytest.raises(ValueError, match=r"`level` must lie .*0\.9.*; pass one number, and make one call for each"):
        numbers().interval(level)


@pytest.mark.parametrize("wrong", [np.zeros((300, 2)), torch.zeros(300, 2), pandas.DataFrame(np.zeros((300, 2)))])
def test_an_array_in_place_of_a_number_is_not_printed(wrong):
    shape = rf"got {type(wrong).__name__} of shape \(300, 2\)"
    net, likelihood = nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
    with pytest.raises(ValueError, match=rf"^`num_data` must be .* {shape}; pass one number, such as `len\(x\)`\.$"):
        pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=wrong)
    with pytest.raises(ValueError, match=rf"^`scale` must be .* {shape}, as in NormalPrior\(1\.0\)\.$"):
        pb.NormalPrior(wrong)
    with pytest.raises(
        ValueError, match=r"^`scale` must be .* got \[0, 1, .{,100}\.\.\., as in NormalPrior\(1\.0\)\.$"
    ):
        pb.NormalPrior(list(range(300)))
