"""Missing attributes that other libraries have: the error says what to use instead."""

import copy
import operator
import pickle
import re

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.remedies import INSTEAD, INSTEAD_OF_NAMES, Advised

from .test_public_names import SPACES

NUM_ROWS = 6


def model_of(likelihood, outputs):
    net = nn.Linear(1, outputs)
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS)


def objects():
    """One object for each class in the table, with the names by which the advice calls it and its parts."""
    x = torch.linspace(-1, 1, NUM_ROWS)[:, None]
    numbers, classes = model_of(pb.GaussianLikelihood(0.1), 1), model_of(pb.CategoricalLikelihood(), 2)
    posterior = pb.fit_laplace(numbers, (x, 2 * x))
    predicted = pb.predict(numbers, posterior, x, num_samples=3, seed=0)
    of_classes = pb.predict(classes, pb.MeanFieldGuide(classes), x, num_samples=3, seed=0)
    labels = torch.zeros(NUM_ROWS, dtype=torch.long)
    return {
        "BayesianModel": numbers,
        "Posterior": posterior,
        "Prediction": predicted,
        "RegressionPrediction": predicted,
        "ClassificationPrediction": of_classes,
        "ConformalIntervals": pb.calibration.ConformalIntervals(predicted, 2 * x),
        "ConformalSets": pb.calibration.ConformalSets(of_classes, labels),
        "Status": posterior.status,
        "Comparison": pb.compare(numbers, {"one": posterior, "two": posterior}, x, num_samples=40, seed=0),
        "BNNEstimator": pb.BNNRegressor(),
        "BNNRegressor": pb.BNNRegressor(),
        "BNNClassifier": pb.BNNClassifier(),
    }


def test_a_missing_attribute_has_advice_and_stays_missing():
    found = objects()
    assert found.keys() == INSTEAD.keys()
    for kind, advice in INSTEAD.items():
        for name, words in advice.items():
            assert not hasattr(found[kind], name)
            assert getattr(found[kind], name, 3) == 3
            with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}'; {words}.")):
                getattr(found[kind], name)


def test_what_the_advice_names_exists():
    found = objects()
    owners = {**found, "prediction": found["RegressionPrediction"], "posterior": found["Posterior"]}
    for kind, advice in INSTEAD.items():
        for words in advice.values():
            for owner, name in re.findall(r"\b(pyro_bnn|posterior|prediction)\.(\w+)", words):
                holder = found[kind] if owner == "prediction" else owners.get(owner, pb)
                assert hasattr(holder, name), (kind, words)


def test_other_missing_attributes_have_the_usual_error():
    found = objects()
    for one in found.values():
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            one.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("Posterior", "sampl", "sample"),
        ("RegressionPrediction", "quantiles", "quantile"),
        ("ClassificationPrediction", "logit", "logits"),
        ("BNNRegressor", "predict_dist", "predict_distribution"),
        ("BayesianModel", "site_name", "site_names"),
    ],
)
def test_a_similar_attribute_is_named(kind, name, meant):
    one = objects()[kind]
    assert not hasattr(one, name)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean `{meant}`") as caught:
        getattr(one, name)
    assert caught.value.obj is None  # otherwise Python would add a similar name once more


def test_an_error_of_a_property_is_not_hidden():
    class Broken(Advised):
        @property
        def fails(self):
            return None.part

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'part'"):
        Broken().fails  # noqa: B018


def test_objects_can_be_copied_and_pickled():
    for one in objects().values():
        for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert type(other) is type(one)
            assert not hasattr(other, "plot")


def test_a_layer_of_a_model_may_have_a_name_of_the_table():
    model = model_of(pb.GaussianLikelihood(0.1), 1)
    model.fit = nn.Linear(1, 1)
    assert isinstance(model.fit, nn.Linear)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("nets", "mpl", "did you mean `mlp`?"),
        ("plotting", "regression_band", "did you mean `regression_bands`?"),
        ("plotting", "plot_regression", "did you mean `regression_bands`?"),
        ("plotting", "plot_uncertainty", "did you mean `regression_bands`?"),
        ("plotting", "plot_history", "did you mean `loss_curves`?"),
        ("plotting", "plot_elbo", "did you mean `loss_curves`?"),
        ("plotting", "plot_loss", "did you mean `loss_curves`?"),
        ("metrics", "ece", "did you mean `expected_calibration_error`?"),
        ("metrics", "rmse", "did you mean `root_mean_squared_error`?"),
        ("metrics", "nonsense", "its names are `CalibrationBins`, "),
    ],
)
def test_a_missing_name_of_a_public_module_has_a_hint(module, name, words):
    assert not hasattr(getattr(pb, module), name)
    with pytest.raises(
        AttributeError, match=re.escape(f"module 'pyro_bnn.{module}' has no attribute '{name}'; {words}")
    ):
        getattr(getattr(pb, module), name)


@pytest.mark.parametrize(
    ("kind", "name", "advice"),
    [
        ("RegressionPrediction", "mean", "use `prediction.mean`"),
        ("RegressionPrediction", "std", "use `prediction.sd`"),
        ("ClassificationPrediction", "mean", "use `prediction.probs`"),
        ("ClassificationPrediction", "nonsense", "call `prediction.to_frame()`, whose columns have names"),
    ],
)
def test_a_name_in_brackets_after_a_prediction_has_advice(kind, name, advice):
    with pytest.raises(TypeError, match=re.escape(f"takes rows, got {name!r}; {advice}.")):
        objects()[kind][name]


def test_a_data_set_with_a_similar_name_is_suggested():
    with pytest.raises(ValueError, match=r"unknown data set 'digit' \(did you mean 'digits'\?\); choose from"):
        pb.data.load_images("digit")


@pytest.mark.parametrize("space", SPACES)
def test_every_public_module_explains_missing_names(space):
    with pytest.raises(AttributeError, match="; its names are"):
        getattr(pb, space).qqqq  # noqa: B018
    assert "explain_errors" not in dir(getattr(pb, space))


def test_the_error_about_a_missing_name_shows_no_other_package():
    with pytest.raises(AttributeError, match=r'call `fit\(model, \(x, y\), method="mclmc"\)`') as caught:
        pb.fit_mclmc  # noqa: B018
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["train", "save", "BNN", "evaluate", "plot"])
def test_a_missing_name_of_the_package_has_advice(name):
    assert not hasattr(pb, name)
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; .*`\w+") as caught:
        getattr(pb, name)
    for called in re.findall(r"`(\w[\w.]*)", str(caught.value)):
        assert operator.attrgetter(called)(pb)


def test_the_advice_for_a_plot_names_functions_that_exist():
    for kind in ("Posterior", "Prediction"):
        _, *called = re.findall(r"`(\w[\w.]*)", INSTEAD[kind]["plot"])
        assert called
        assert {*called} <= {*pb.plotting.__all__}
    assert re.search(r"`plotting\.\w+\(", INSTEAD_OF_NAMES["plot"])
