"""Estimators for scikit-learn: its own checks, its tools, and what a Bayesian network adds."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

import pyro_bnn as pb
from pyro_bnn.interop.scikit import METHODS, standard_units
from pyro_bnn.results.units import in_units

from .tolerances import STANDARD_ERRORS, assert_identical

SHORT = {
    "method": "svi",
    "hidden_layer_sizes": (6,),
    "max_iter": 30,
    "learning_rate": 0.1,
    "num_samples": 10,
    "random_state": 0,
}
"""Settings with which a tiny network learns something in thirty steps."""

CHOOSING = {"hidden_layer_sizes": (3,), "max_iter": 4, "num_samples": 10, "random_state": 0}
"""Settings with which the default method ends soon."""

REASON = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
    "local reparameterisation draws noise for each row: once for a row of weight 2, twice for the same row twice. "
    "Both fits have the same objective, and equal results for methods without noise, which another test shows",
)

pytestmark = [
    pytest.mark.usefixtures("short_chains"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.mark.daily(  # both share the code that takes tables; the check of class weights trains for 1000 epochs
    *(f"BNNClassifier*check_{check}*" for check in ("[!ce]", "c[!l]", "classifier_", "classifiers_[!t]")),
    *(f"BNNClassifier*check_{check}" for check in ("classifiers_train", "estimator[!_]*", "estimator_[!s]*")),
    *(f"BNNRegressor*check_{check}*" for check in ("regressor_", "regressors_[!t]", "supervised", "fit_idempotent")),
    *(f"BNNRegressor*check_{check}" for check in ("regressors_train", "estimators_pickle")),
)
@parametrize_with_checks(
    [pb.BNNRegressor(**SHORT), pb.BNNClassifier(**SHORT)], expected_failed_checks=lambda estimator: REASON
)
def test_scikit_learns_own_checks(estimator, check):
    before = np.random.get_state()  # noqa: NPY002  # some checks themselves draw from numpy's global generator
    check(estimator)
    np.random.set_state(before)  # noqa: NPY002


@pytest.mark.nightly
@pytest.mark.daily("*check_[!c]*", "*check_c[!l]*", "*check_class[!_]*")  # that of class weights trains for 1000 epochs
@parametrize_with_checks(
    [pb.BNNRegressor(**CHOOSING), pb.BNNClassifier(**CHOOSING)],
    expected_failed_checks=lambda estimator: (
        REASON
        | {
            "check_fit_score_takes_y": "`partial_fit` continues variational fits, and refuses to continue chains",
        }
    ),
)
def test_scikit_learns_own_checks_of_the_default_method(estimator, check):
    before = np.random.get_state()  # noqa: NPY002
    check(estimator)
    np.random.set_state(before)  # noqa: NPY002


@pytest.mark.parametrize("kind", [pb.BNNRegressor, pb.BNNClassifier])
def test_a_weight_of_two_is_the_same_row_twice(kind):
    estimator = kind(**{**SHORT, "method": "ensemble", "num_members": 1})
    check_sample_weight_equivalence_on_dense_data(kind.__name__, estimator)


# --- problems ---------------------------------------------------------------------------------------------------------

NOISE = 0.3


def curve(num_data=150, *, seed=0, num_targets=1):
    """Inputs of two columns, and noisy targets in units far from standard ones."""
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (num_data, 2)) * [1, 100]
    signal = np.sin(1.5 * X[:, 0]) + X[:, 1] / 200
    columns = [500 + 20 * (signal + NOISE * random.normal(size=num_data)) for _ in range(num_targets)]
    return X, columns[0] if num_targets == 1 else np.stack(columns, 1)


def blobs(num_data=120):
    random = np.random.default_rng(0)
    labels = np.array(["cat", "dog", "owl"])[np.arange(num_data) % 3]
    centres = {"cat": (0, 0), "dog": (3, 0), "owl": (0, 3)}
    return np.array([centres[label] for label in labels]) + 0.7 * random.normal(size=(num_data, 2)), labels


@pytest.fixture(scope="module")
def fitted():
    """A variational regressor that converges sooner by larger steps than the default, on enough rows."""
    return pb.BNNRegressor(method="svi", learning_rate=0.1, max_iter=600, random_state=0).fit(*curve(600))


# --- regression -------------------------------------------------------------------------------------------------------


def test_standard_deviations_are_calibrated(fitted):
    """Of 2000 new rows, the squared standardised errors have mean 1, up to their standard error and a tenth."""
    X, y = curve(2000, seed=1)
    mean, scale = fitted.predict(X, return_std=True)
    assert mean.shape == scale.shape == (2000,)
    squares = ((y - mean) / scale) ** 2
    error = squares.std() / len(squares) ** 0.5
    assert abs(squares.mean() - 1) < STANDARD_ERRORS * error + 0.1
    twice = 4 * squares
    assert abs(twice.mean() - 1) > STANDARD_ERRORS * 2 * error + 0.1  # must fail
    assert scale.min() > 0.8 * 20 * NOISE
    assert fitted.score(X, y) > 0.8


def test_intervals_hold_as_many_observations_as_they_say(fitted):
    X, y = curve(2000, seed=1)
    for level in (0.5, 0.95):
        interval = fitted.predict_interval(X, level)
        assert interval.shape == (2000, 2)
        covered = ((interval[:, 0] <= y) & (y <= interval[:, 1])).mean()
        error = (level * (1 - level) / len(y)) ** 0.5
        assert abs(covered - level) < STANDARD_ERRORS * error + 0.02
    assert_identical(fitted.predict_quantile(X[:5], [0.25, 0.75]), fitted.predict_interval(X[:5], 0.5))
    assert [fitted.predict_quantile(X[:5], q).shape for q in (0.5, [[0.1, 0.5, 0.9]])] == [(5,), (5, 1, 3)]


def test_the_prediction_is_in_the_units_of_the_targets(fitted):
    X, y = curve(50, seed=1)
    prediction = fitted.predict_distribution(X)
    mean, scale = fitted.predict(X, return_std=True)
    assert_identical(prediction.mean[:, 0], mean)
    assert_identical(prediction.total.sqrt()[:, 0], scale)
    target = torch.from_numpy(y)[:, None]
    expected = torch.distributions.Normal(prediction.components.loc, prediction.components.scale).log_prob(target)
    expected = expected[..., 0].logsumexp(0) - np.log(len(expected))
    assert_identical(prediction.log_prob(target), expected)
    assert prediction.score(target)["rmse"] == pytest.approx(((mean - y) ** 2).mean() ** 0.5)


def test_more_rows_leave_less_epistemic_uncertainty(fitted):
    few = pb.BNNRegressor(method="svi", learning_rate=0.1, max_iter=200, random_state=0).fit(*curve(25))
    X, _ = curve(200, seed=1)
    many, few = (regressor.predict_distribution(X).epistemic.mean() for regressor in (fitted, few))
    assert few > 3 * many


def test_several_targets_have_noise_of_their_own():
    X, y = curve(num_targets=2)
    y[:, 1] = 3 + np.random.default_rng(1).normal(size=len(y))
    regressor = pb.BNNRegressor(**{**SHORT, "max_iter": 200}).fit(X, y)
    mean, scale = regressor.predict(X[:4], return_std=True)
    assert mean.shape == scale.shape == (4, 2)
    assert regressor.predict_interval(X[:4]).shape == (4, 2, 2)
    assert regressor.posterior_.sample(1, seed=0)["likelihood.scale"].shape == (1, 2)
    noise = regressor.posterior_.median()["likelihood.scale"]
    assert noise[1] > 1.3 * noise[0]  # the second is nothing but noise


@pytest.mark.parametrize("likelihood", ["gaussian:0.4", "heteroscedastic", "mixture:2"])
def test_other_likelihoods_of_numbers(likelihood):
    X, y = curve()
    regressor = pb.BNNRegressor(**{**SHORT, "likelihood": likelihood, "max_iter": 100}).fit(X, y)
    assert regressor.score(X, y) > 0.3
    prediction = regressor.predict_distribution(X)
    assert_identical(prediction.quantile(0.5)[:, 0], regressor.predict_quantile(X, 0.5))
    components = prediction.components
    assert_identical(
        prediction.aleatoric, components.variance.mean(0) if likelihood[0] != "m" else prediction.aleatoric
    )
    assert_identical(prediction.mean, components.mean.mean(0))
    y = torch.from_numpy(y)[:, None]
    assert -7 < prediction.log_prob(y).mean() < -3  # nats in units of 20: a Gaussian of the targets' scale has -4.5


def test_counts_are_not_standardised():
    X, _ = curve()
    y = np.random.default_rng(0).poisson(np.exp(1 + X[:, 0]))
    regressor = pb.BNNRegressor(**{**SHORT, "likelihood": "poisson", "max_iter": 150}).fit(X, y)
    assert regressor.score(X, y) > 0.5
    assert (regressor.predict_interval(X) % 1 == 0).all()


def test_a_mixture_in_other_units_has_all_its_moments():
    mean, scale = torch.tensor([5.0]), torch.tensor([3.0])
    components = pb.distributions.NormalMixture(
        torch.randn(4, 6, 1, 2), torch.randn(4, 6, 1, 2), torch.ones(4, 6, 1, 2)
    )
    accumulator = pb.MixtureDensityLikelihood(2).accumulator()
    for draw in range(4):
        parts = (components.logits[draw], components.loc[draw], components.scale[draw])
        accumulator.add(pb.distributions.NormalMixture(*parts), keep=True)
    before = accumulator.prediction(None)
    after = in_units(before, mean, scale)
    assert_identical(after.within_components + after.between_components, after.aleatoric)
    assert_identical(after.total, 9 * before.total)
    assert_identical(after.quantile(0.3), 5 + 3 * before.quantile(0.3))
    assert_identical(after.components.mean.mean(0), after.mean)


def test_constant_columns_keep_their_scale():
    values = torch.tensor([[0.1, 1.0], [0.1, 3.0], [0.1, 5.0]])
    mean, scale = standard_units(values, np.array([1.0, 2.0, 1.0]))
    assert_identical(mean, torch.tensor([0.1, 3.0]))
    assert_identical(scale, torch.tensor([1.0, 2.0**0.5]))


# --- classification ---------------------------------------------------------------------------------------------------


def test_labels_are_texts():
    X, y = blobs()
    classifier = pb.BNNClassifier(**{**SHORT, "max_iter": 150}).fit(X, y)
    assert classifier.classes_.tolist() == ["cat", "dog", "owl"]
    assert classifier.predict([[0, 0], [3, 0], [0, 3]]).tolist() == ["cat", "dog", "owl"]
    assert classifier.score(X, y) > 0.9
    probs = classifier.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), probs)
    prediction = classifier.predict_distribution(np.vstack([X, [[9, 9]]]))
    frame = prediction.to_frame()
    np.testing.assert_array_equal(frame["label"][:-1], classifier.predict(X))
    np.testing.assert_allclose(frame["prob_owl"][:-1], probs[:, 2], rtol=1e-6)
    assert frame["label"][0] in repr(prediction)
    assert (prediction.mutual_information[-1] > prediction.mutual_information[:-1].median()).all()


def test_one_class_and_labels_of_several_kinds_are_refused():
    X, _ = blobs()
    with pytest.raises(ValueError, match=r"labels of one kind, got int and str; pass `y.astype\(str\)`"):
        pb.BNNClassifier(**SHORT).fit(X, np.array([1, "cat"] * (len(X) // 2), dtype=object))
    with pytest.raises(ValueError, match="at least two classes, got one class"):
        pb.BNNClassifier(**SHORT).fit(X, ["cat"] * len(X))


# --- methods and early stopping ---------------------------------------------------------------------------------------


@pytest.mark.daily("[!as]*", "svi")  # of what "auto" may choose, "mclmc" and "svi" run here
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning", "ignore:.* has no effect with method=:UserWarning")
def test_every_method_learns_both_problems_and_can_be_pickled_to_the_bit(method):
    settings = {
        **SHORT,
        "method": method,
        "hidden_layer_sizes": (4,),
        "num_members": 2,
        "max_iter": 120,
        "num_samples": 20,
    }
    if method in ("auto", "swag"):
        settings |= {"max_iter": 60}
    if method == "nuts":
        settings |= {"max_iter": 15, "num_chains": 1, "num_samples": 10}
    X, y = curve(60)
    labels = np.where(y > 500, "high", "low")
    regressor, classifier = pb.BNNRegressor(**settings).fit(X, y), pb.BNNClassifier(**settings).fit(X, labels)
    assert regressor.score(X, y) > 0.5
    assert classifier.score(X, labels) > 0.75
    again, once_more = pickle.loads(pickle.dumps((regressor, classifier)))
    for first, second in zip(regressor.predict(X, return_std=True), again.predict(X, return_std=True), strict=True):
        assert (first == second).all()
    assert (again.predict_interval(X) == regressor.predict_interval(X)).all()
    assert (once_more.predict_proba(X) == classifier.predict_proba(X)).all()
    assert again.status_ == regressor.status_


def test_an_activation_has_a_name_or_is_a_function():
    X, y = curve(30)
    named, made, other = (
        pb.BNNRegressor(**SHORT, activation=activation).fit(X, y) for activation in ("relu", torch.nn.ReLU, "silu")
    )
    assert (named.predict(X) == made.predict(X)).all()
    assert (named.predict(X) != other.predict(X)).any()


def test_early_stopping_leaves_rows_out_and_keeps_the_best():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(40, 5)), random.normal(size=40)  # nothing to learn: the first looks are the best
    settings = {
        **SHORT,
        "hidden_layer_sizes": (30,),
        "method": "ensemble",
        "num_members": 1,
        "max_iter": 400,
        "learning_rate": 0.02,
    }
    settings |= {"prior": pb.NormalPrior(3.0), "likelihood": "gaussian:0.3"}
    late = pb.BNNRegressor(**settings).fit(X, y)
    early = pb.BNNRegressor(**settings, early_stopping=True, validation_fraction=0.5).fit(X, y)
    assert early.n_iter_ < late.n_iter_
    assert "stopped early" in early.status_
    assert early.model_.num_data == 20
    X, y = random.normal(size=(500, 5)), random.normal(size=500)
    assert early.score(X, y) > late.score(X, y) + 0.5


def test_one_number_is_one_hidden_layer():
    X, y = curve(40)
    one, same = (pb.BNNRegressor(**SHORT | {"hidden_layer_sizes": sizes}).fit(X, y) for sizes in (np.int64(6), (6,)))
    assert (one.predict(X) == same.predict(X)).all()


def test_a_smaller_kl_weight_makes_the_weights_narrower():
    X, y = curve(60)
    bound, narrow = (pb.BNNRegressor(**SHORT | {"max_iter": 200}, kl_weight=weight).fit(X, y) for weight in (1.0, 0.01))
    wide, tight = (r.posterior_.sample(50, seed=0)["net.1.weight"].std(0).mean() for r in (bound, narrow))
    assert tight < wide


# --- scikit-learn's tools ---------------------------------------------------------------------------------------------


def test_pipelines_and_grid_search_on_a_data_frame():
    X, y = curve(90)
    frame = pd.DataFrame(X, columns=["time", "load"])
    pipeline = make_pipeline(MinMaxScaler(), pb.BNNRegressor(**SHORT))
    search = GridSearchCV(pipeline, {"bnnregressor__max_iter": [1, 100]}, cv=2).fit(frame, y)
    assert search.best_params_ == {"bnnregressor__max_iter": 100}
    assert search.best_score_ > 0.3
    regressor = pb.BNNRegressor(**SHORT).fit(frame, y)
    assert regressor.feature_names_in_.tolist() == ["time", "load"]
    assert (regressor.predict(frame) == clone(regressor).fit(frame, y).predict(frame)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        regressor.predict(frame[["load", "time"]])


def test_a_random_state_repeats_and_none_leaves_numpys_generator():
    X, y = curve(40)
    first, second = (pb.BNNRegressor(**{**SHORT, "random_state": np.random.RandomState(3)}).fit(X, y) for _ in range(2))
    assert (first.predict(X) == second.predict(X)).all()
    free = {**SHORT, "random_state": None, "max_iter": 5}
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    first, second = (pb.BNNRegressor(**free).fit(X, y).predict(X) for _ in range(2))
    assert (first != second).any()
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "mcmc"},
            "`method` must be one of 'auto', 'svi', 'natural', 'nuts', 'mclmc', .*got 'mcmc'; did you mean 'nuts'",
        ),
        ({"method": "variational"}, "got 'variational'; did you mean 'svi'"),
        ({"method": "NUTS"}, "got 'NUTS'; did you mean 'nuts'"),
        ({"likelihood": "normal"}, "unknown likelihood 'normal'; did you mean 'gaussian'. Choose gaussian"),
        (
            {"likelihood": "gausian"},
            "did you mean 'gaussian'.* Choose gaussian.*, heteroscedastic, mixture.* or poisson",
        ),
        ({"prior": 0.5}, r"`prior` must be a Prior.*, got 0.5; write NormalPrior\(0.5\)"),
        ({"prior": "normal"}, r"got 'normal'; write NormalPrior\(1.0\)"),
        ({"likelihood": "categorical"}, "use a BNNClassifier"),
        ({"max_iter": 0}, "`max_iter` must be a whole number of at least 1"),
        ({"num_chains": 0}, "`num_chains` must be a whole number of at least 1, got 0"),
        ({"num_samples": 1}, "`num_samples` must be a whole number of at least 2"),
        ({"learning_rate": -1}, "`learning_rate` must be a finite number above 0"),
        ({"num_samples": -3, "method": "auto"}, "`num_samples` must be a whole number of at least 2, got -3"),
        ({"num_chains": "2", "method": "auto"}, "`num_chains` must be a whole number of at least 1, got '2'"),
        ({"num_members": 0, "method": "auto"}, "`num_members` must be a whole number of at least 1, got 0"),
        ({"validation_fraction": 3}, "`validation_fraction` must lie strictly between 0 and 1, got 3"),
        ({"kl_weight": -1, "method": "nuts"}, "a KL weight must be a finite number of at least 0"),
        ({"kl_weight": -1}, "a KL weight must be a finite number of at least 0"),
        ({"hidden_layer_sizes": (0,)}, "`hidden_layer_sizes` must be a whole number of at least 1"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "`validation_fraction` must lie strictly between"),
        ({"activation": "relus"}, "`activation` must be 'relu', .* or a function that .*did you mean 'relu'"),
        ({"activation": 3}, "`activation` must be a function that makes a module"),
        ({"random_state": "a"}, r"`random_state` must be a whole number from 0 to 2\*\*32 - 1, .* or None, got 'a'\."),
    ],
)
def test_wrong_parameters_are_told(settings, message):
    X, y = curve(20)
    with pytest.raises(ValueError, match=message):
        pb.BNNRegressor(**{**SHORT, **settings}).fit(X, y)


def test_a_table_with_texts_is_refused_with_a_remedy_and_one_without_a_fit_too():
    with pytest.raises(NotFittedError):
        pb.BNNRegressor().predict([[0.0]])
    with pytest.raises(ValueError, match=r"got text in `a`; .*OneHotEncoder"):
        pb.BNNRegressor(**SHORT).fit(pd.DataFrame({"a": ["x", "y"]}), [0.0, 1.0])
    with pytest.raises(ValueError, match="`y` must be numbers, got text such as 'x'; use BNNClassifier"):
        pb.BNNRegressor(**SHORT).fit([[0.0], [1.0]], ["x", "y"])
