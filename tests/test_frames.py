"""Predictions as data frames."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from torch import nn

import pyro_bnn as pb
from pyro_bnn.scores.uncertainty import ClassificationPrediction, RegressionPrediction

from . import cases
from .cases import small_model
from .tolerances import IDENTITY

SDS = ["sd", "aleatoric_sd", "epistemic_sd"]


def predicted(likelihood, *, num_samples=20, y=None, **kwargs):
    model, x, _ = small_model(likelihood=likelihood)
    return pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=num_samples, y=y, seed=0, **kwargs)


def gaussians(mean, sd):
    """The prediction of two draws that agree: one Gaussian."""
    components = torch.distributions.Normal(mean.expand(2, *mean.shape), sd.expand(2, *sd.shape))
    return RegressionPrediction(
        num_samples=2,
        log_density=None,
        mean=mean,
        aleatoric=sd.square(),
        variance_of_means=torch.zeros_like(mean),
        components=components,
    )


@pytest.mark.parametrize("likelihood", cases.LIKELIHOODS)
def test_every_prediction_becomes_a_frame_of_finite_columns(likelihood):
    y = small_model(likelihood=likelihood)[2]
    prediction = predicted(likelihood, y=y, keep_draws=True)
    frame = prediction.to_frame()
    assert len(frame) == 6
    assert np.isfinite(frame.to_numpy(float)).all()
    np.testing.assert_allclose(frame["log_density"], prediction.log_density, **IDENTITY)
    columns = [name for name in frame.columns if name.startswith("target")]
    np.testing.assert_array_equal(frame[columns].to_numpy().reshape(y.shape), y)


def test_classes_have_labels_entropies_and_probabilities():
    prediction = predicted("categorical", y=torch.arange(6) % 3)
    frame = prediction.to_frame()
    entropies = ["total_nats", "aleatoric_nats", "epistemic_nats"]
    assert [*frame.columns] == ["label", *entropies, "prob_0", "prob_1", "prob_2", "target", "log_density"]
    np.testing.assert_array_equal(frame["label"], prediction.labels)
    np.testing.assert_allclose(frame[["prob_0", "prob_1", "prob_2"]], prediction.probs, **IDENTITY)
    probs = frame[["prob_0", "prob_1", "prob_2"]].to_numpy()
    np.testing.assert_allclose(frame["total_nats"], -(probs * np.log(probs)).sum(1), **IDENTITY)
    np.testing.assert_allclose(frame["total_nats"], frame["aleatoric_nats"] + frame["epistemic_nats"], **IDENTITY)


def test_classes_may_have_names():
    prediction = predicted("categorical", y=torch.arange(6) % 3)
    frame = prediction.to_frame(classes=["cat", "dog", "owl"], index=list("abcdef"))
    assert [*frame["target"]] == ["cat", "dog", "owl"] * 2
    assert [*frame["label"]] == [["cat", "dog", "owl"][label] for label in prediction.labels]
    assert {"prob_cat", "prob_dog", "prob_owl"} < {*frame.columns}
    assert frame.loc["b", "prob_dog"] == float(prediction.probs[1, 1])


def test_several_yes_or_no_outputs_have_columns_each():
    prediction = predicted("bernoulli")
    frame = prediction.to_frame(classes=["no", "yes"], outputs=["rain", "snow"])
    np.testing.assert_allclose(frame["prob_yes_snow"], prediction.probs[:, 1, 1], **IDENTITY)
    assert {*frame["label_rain"]} <= {"no", "yes"}
    assert "prob_1_1" in prediction.to_frame()


def test_numbers_have_means_and_standard_deviations():
    prediction = predicted("gaussian-fixed")
    frame = prediction.to_frame()
    np.testing.assert_allclose(frame["mean_1"], prediction.mean[:, 1], **IDENTITY)
    np.testing.assert_allclose(frame["aleatoric_sd_0"], 0.5, **IDENTITY)
    for output in "01":
        parts = frame[[f"aleatoric_sd_{output}", f"epistemic_sd_{output}"]]
        np.testing.assert_allclose(frame[f"sd_{output}"] ** 2, (parts**2).sum(axis=1), **IDENTITY)
    assert [*prediction.to_frame(outputs=["width", "height"]).columns][:2] == ["mean_width", "mean_height"]


def test_a_standard_deviation_has_one_name_as_attribute_and_as_column():
    prediction = predicted("gaussian-learned")
    frame = prediction.to_frame()
    for name in SDS:
        np.testing.assert_array_equal(frame[name], getattr(prediction, name)[:, 0])
        assert name in repr(prediction)
    variances = prediction.total, prediction.aleatoric, prediction.epistemic
    for name, variance in zip(SDS, variances, strict=True):
        np.testing.assert_allclose(frame[name] ** 2, variance[:, 0], **IDENTITY)


def test_one_output_has_no_number():
    assert [*predicted("gaussian-learned").to_frame().columns] == ["mean", *SDS]
    assert "mean_price" in predicted("gaussian-learned").to_frame(outputs=["price"])


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_intervals_are_quantiles(level):
    frame = gaussians(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5])).to_frame(level=level)
    for row, (mean, sd) in enumerate([(1.0, 3.0), (2.0, 0.5)]):
        lower, upper = norm(mean, sd).interval(level)
        np.testing.assert_allclose(frame.loc[row, ["lower", "upper"]].to_numpy(float), [lower, upper], rtol=1e-9)


def test_a_mixture_has_the_parts_within_and_between_components():
    frame = predicted("mixture-density").to_frame()
    parts = frame[["within_components_sd_0", "between_components_sd_0"]]
    np.testing.assert_allclose(frame["aleatoric_sd_0"] ** 2, (parts**2).sum(axis=1), **IDENTITY)


def test_what_a_single_draw_cannot_tell_has_no_column():
    columns = [[*predicted(kind, num_samples=1).to_frame().columns] for kind in ("categorical", "gaussian-learned")]
    assert columns[0][:3] == ["label", "total_nats", "aleatoric_nats"]
    assert columns[1] == ["mean", "aleatoric_sd"]


def test_the_rows_may_have_the_index_of_the_inputs():
    table = pd.DataFrame(np.zeros((3, 4)), index=pd.Index(["x", "y", "z"], name="who"), dtype=float)
    model = small_model(likelihood="gaussian-learned")[0]
    prediction = pb.predict(model, pb.MeanFieldGuide(model), table, num_samples=2)
    frame = prediction.to_frame(index=table.index)
    assert frame.index.name == "who"
    assert [*frame.index] == ["x", "y", "z"]
    pd.concat([table, frame], axis=1, verify_integrity=True)


def test_half_precision_and_no_rows_work():
    net = nn.Linear(4, 1).bfloat16()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=6)
    prediction = pb.predict(model, pb.DeltaGuide(model), torch.zeros(6, 4, dtype=torch.bfloat16), num_samples=2)
    half = replace(prediction, mean=prediction.mean.bfloat16())
    assert half.to_frame()["mean"].dtype == np.float32
    assert predicted("categorical")[:0].to_frame().shape == (0, 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: predicted("categorical").to_frame(classes=["a", "b"]), "`classes` must be 3 different names, got 2"),
        (lambda: predicted("categorical").to_frame(classes=["a", "b", "a"]), "`classes` must be 3 different names"),
        (lambda: predicted("gaussian-fixed").to_frame(outputs=["a"]), "`outputs` must be 2 different names, got 1"),
        (lambda: predicted("categorical").to_frame(index=[1]), "`index` must have one label per row.* 6, got 1"),
        (lambda: predicted("gaussian-fixed", keep_draws=False).to_frame(level=0.9), "keep_draws=True"),
        (lambda: predicted("gaussian-fixed", keep_draws=True).to_frame(level=90), "`level` must"),
    ],
)
def test_wrong_arguments_are_answered_with_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_kinds_are_those_of_the_table():
    kinds = {type(predicted(likelihood)) for likelihood in cases.LIKELIHOODS}
    assert {ClassificationPrediction, RegressionPrediction, pb.uncertainty.MixtureDensityPrediction} == kinds
