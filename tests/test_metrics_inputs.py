"""Every score with every wrong argument: an error that names the argument, and never a number."""

import inspect
import math

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn import metrics

from .test_conformal import classes

PROBS, LABELS = [[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]], [0, 1, 1]
CLASSES = {"probs": PROBS, "y": LABELS}

# score -> legal arguments, as lists of numbers
ARGUMENTS = {
    "accuracy": CLASSES,
    "negative_log_likelihood": CLASSES,
    "brier_score": CLASSES,
    "calibration_bins": CLASSES,
    "expected_calibration_error": CLASSES,
    "adaptive_calibration_error": CLASSES,
    "calibration_error_by_chance": {"probs": CLASSES["probs"]},
    "root_mean_squared_error": {"mean": [0.0, 1.0], "y": [0.5, 2.0]},
    "interval_coverage": {"lower": [0.0, 1.0], "upper": [1.0, 2.0], "y": [0.5, 3.0]},
    "crps_from_draws": {"draws": [[0.0, 1.0], [0.5, 2.0]], "y": [0.0, 1.0]},
    "crps_of_normal_mixture": {
        "weights": [[0.5, 0.5], [0.3, 0.7]],
        "loc": [[0.0, 1.0], [2.0, 3.0]],
        "scale": [[1.0, 1.0], [2.0, 3.0]],
        "y": [0.5, 1.0],
    },
    "ood_scores": {"in_domain": [0.1, 0.2, 0.4], "out_of_domain": [0.3, 0.6]},
}
ALONE = ("ood_scores", "calibration_error_by_chance")
"""Scores whose arguments need not have as many rows as others."""

PAIRS = [(score, name) for score, arguments in ARGUMENTS.items() for name in arguments]


def tensors(score):
    return {name: torch.tensor(value) for name, value in ARGUMENTS[score].items()}


def values(result):
    """The numbers of a result."""
    return [result] if isinstance(result, float) else [torch.as_tensor(value) for value in vars(result).values()]


def same(first, second):
    pairs = zip(values(first), values(second), strict=True)
    return all(np.allclose(a, b, rtol=1e-12, atol=1e-12, equal_nan=True) for a, b in pairs)


def test_every_score_is_in_the_table():
    assert set(ARGUMENTS) == {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}


@pytest.mark.parametrize("score", ARGUMENTS)
@pytest.mark.parametrize("form", [list, np.array, pd.DataFrame, lambda v: torch.tensor(v).requires_grad_()])
def test_every_score_takes_lists_arrays_frames_and_tensors_with_gradients(score, form):
    function = getattr(metrics, score)
    given = {
        name: form(value) if form is not pd.DataFrame or isinstance(value[0], list) else pd.Series(value)
        for name, value in ARGUMENTS[score].items()
        if name != "y" or form in (list, np.array, pd.DataFrame)
    }
    assert same(function(**{**tensors(score), **given}), function(**tensors(score)))


def with_first(value, number):
    changed = torch.as_tensor(value, dtype=torch.double).clone()
    changed.view(-1)[0] = number
    return changed


WRONG = {
    "nan": (lambda value: with_first(value, math.nan), "must be finite, got 1 NaN"),
    "infinite": (lambda value: with_first(value, math.inf), "must be finite, got 1 NaN"),
    "complex": (lambda value: value + 0j, "one that is complex"),
    "sparse": (lambda value: value.to_sparse(), "one that is sparse"),
    "meta": (lambda value: value.to("meta"), "one that is on the meta device"),
    "none": (lambda value: None, "must be a tensor or an array of numbers, got NoneType"),
    "text": (lambda value: "0.5", "must be a tensor or an array of numbers, got str"),
    "ragged": (lambda value: [[1.0], [1.0, 2.0]], "must be a tensor or an array of numbers, got list"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(("score", "name"), PAIRS)
def test_what_is_no_number_is_refused_by_name(score, name, kind):
    spoil, message = WRONG[kind]
    arguments = tensors(score)
    with pytest.raises(ValueError, match=f"`{name}` .*{message}"):
        getattr(metrics, score)(**{**arguments, name: spoil(arguments[name])})


@pytest.mark.parametrize(
    "reshape",
    [lambda v: v[:0], lambda v: torch.tensor(0.5), lambda v: v[None, None, None], lambda v: torch.cat([v, v])[:-1]],
)
@pytest.mark.parametrize(("score", "name"), [p for p in PAIRS if p[0] not in ALONE])
def test_wrong_shapes_are_refused(score, name, reshape):
    arguments = tensors(score)
    if name == "draws":  # of two, since any number above one is allowed
        arguments[name] = arguments[name][:1]
    with pytest.raises(ValueError, match=r"shape .*, got|must have the same shape"):
        getattr(metrics, score)(**{**arguments, name: reshape(arguments[name])})


@pytest.mark.parametrize("value", [torch.zeros(0), torch.tensor(0.5), torch.zeros(1, 1, 2)])
@pytest.mark.parametrize(("score", "name"), [p for p in PAIRS if p[0] in ALONE])
def test_wrong_shapes_of_single_arguments_are_refused(score, name, value):
    with pytest.raises(ValueError, match=r"vector of scores, got shape|must have shape|must have the shape"):
        getattr(metrics, score)(**{**tensors(score), name: value})


@pytest.mark.parametrize(("score", "name"), [p for p in PAIRS if p[1] in ("probs", "weights")])
@pytest.mark.parametrize("row", [[0.6, 0.6], [1.2, -0.2], [0.0, 0.0]])
def test_what_is_no_distribution_is_refused(score, name, row):
    arguments = tensors(score)
    arguments[name][1] = torch.tensor(row)
    with pytest.raises(ValueError, match=f"each row of `{name}` must contain probabilities"):
        getattr(metrics, score)(**arguments)


CLASS_SCORES = [name for name, arguments in ARGUMENTS.items() if arguments is CLASSES]


@pytest.mark.parametrize("score", CLASS_SCORES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool, torch.float32])
def test_labels_of_every_dtype_that_holds_them_are_the_same(score, dtype):
    function = getattr(metrics, score)
    assert same(function(torch.tensor(PROBS), torch.tensor(LABELS).to(dtype)), function(PROBS, LABELS))


def test_one_class_and_one_row_have_the_only_possible_scores():
    one_class, one_row = (torch.ones(3, 1), [0, 0, 0]), ([[0.25, 0.75]], [1])
    expected = {  # one class, one row
        "accuracy": (1.0, 1.0),
        "negative_log_likelihood": (0.0, -math.log(0.75)),
        "brier_score": (0.0, 2 * 0.25**2),
        "expected_calibration_error": (0.0, 0.25),
        "adaptive_calibration_error": (0.0, 0.25),
    }
    for score, results in expected.items():
        for data, result in zip((one_class, one_row), results, strict=True):
            assert getattr(metrics, score)(*data) == pytest.approx(result)


def test_whole_numbers_and_truth_values_are_numbers():
    assert metrics.root_mean_squared_error([0, 1], [1, 1]) == pytest.approx(math.sqrt(0.5))
    assert metrics.interval_coverage([0, 0], [1, 1], [1, 2]) == 0.5
    assert metrics.ood_scores([False, False], [True]).auroc == 1.0


@pytest.mark.parametrize("score", ["calibration_bins", "expected_calibration_error", "adaptive_calibration_error"])
@pytest.mark.parametrize("num_bins", [0, -1, 2.5, math.nan, True, "3", None])
def test_impossible_numbers_of_bins_are_refused(score, num_bins):
    with pytest.raises(ValueError, match="`num_bins` must be a whole number of at least 1, got"):
        getattr(metrics, score)(PROBS, LABELS, num_bins=num_bins)


def test_a_prediction_in_place_of_probabilities_is_told_how_to_score_it():
    prediction = classes(torch.full((3, 2), 0.5))
    with pytest.raises(ValueError, match=r"`probs` must be .*, got ClassificationPrediction; call `prediction.score"):
        metrics.accuracy(prediction, torch.zeros(3))


def test_data_frames_that_allow_gaps_and_arrays_of_other_bytes_are_numbers():
    frame = pd.DataFrame(PROBS, dtype="Float64")
    for probs, y in ((frame, LABELS), (np.array(PROBS, ">f8"), LABELS), (PROBS, np.array(LABELS, np.uint16))):
        assert metrics.brier_score(probs, y) == metrics.brier_score(PROBS, LABELS)
