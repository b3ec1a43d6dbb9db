"""Estimators for scikit-learn: Laplace's method and ensembles."""

import functools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

import pyro_bnn as pb
from pyro_bnn.interop.scikit import _methods, standard_units

from .test_scikit import NOISE, SHORT, blobs, curve
from .tolerances import assert_identical

pytestmark = [
    pytest.mark.usefixtures("short_chains"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.mark.daily("regressor")
@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_laplace_predicts_with_the_network_that_is_linear_in_its_weights(kind):
    """The linearised mean is near that of the point estimate; the network at drawn weights is far from it."""
    X, y = curve(60)
    X_test, y_test = curve(300, seed=1)
    settings = {**SHORT, "max_iter": 400, "hidden_layer_sizes": (20,), "learning_rate": 0.03, "num_samples": 100}
    if kind == "classifier":
        y, y_test = y > 500, y_test > 500
    make = pb.BNNRegressor if kind == "regressor" else pb.BNNClassifier
    laplace = make(**settings | {"method": "laplace"}).fit(X, y)
    point = make(**settings | {"method": "ensemble"}, num_members=1).fit(X, y)
    assert laplace.posterior_.is_linearised
    score, of_point = laplace.score(X_test, y_test), point.score(X_test, y_test)
    assert score > of_point - 0.03
    predict = functools.partial(pb.predict, laplace.model_, laplace.posterior_, torch.from_numpy(X_test), seed=0)
    if kind == "regressor":
        mean, scale = standard_units(torch.from_numpy(y)[:, None], None)
        of_draws = (mean + scale * predict(linearised=False).mean).numpy()[:, 0]
        assert 1 - ((of_draws - y_test) ** 2).mean() / y_test.var() < of_point - 0.2  # must fail
    else:
        found = laplace.predict_proba(X_test)
        linear, drawn = (predict(linearised=flag, num_samples=1000).probs.numpy() for flag in (True, False))
        of_linear, of_drawn = (np.abs(found - other).mean() for other in (linear, drawn))
        assert of_linear < 0.02
        assert of_drawn > 2 * of_linear  # must fail


def test_laplace_chooses_noise_and_prior_and_keeps_a_prior_that_was_named():
    X, y = curve(200)
    settings = {**SHORT, "method": "laplace", "max_iter": 400}
    chosen = pb.BNNRegressor(**settings).fit(X, y)
    noise = float(chosen.predict_distribution(X).aleatoric.sqrt().mean())
    assert noise == pytest.approx(20 * NOISE, rel=0.25)
    assert "precisions chosen by the evidence" in " ".join(chosen.status_.split())
    assert "noise scale is fixed at its most probable value" in " ".join(chosen.status_.split())
    named = pb.BNNRegressor(**settings, prior=pb.NormalPrior(0.5)).fit(X, y)
    assert {*named.posterior_.prior_precisions.values()} == {4.0}
    two = pb.BNNRegressor(**settings).fit(*curve(100, num_targets=2))
    assert two.posterior_.median()["likelihood.scale"].shape == (2,)
    wide = pb.BNNRegressor(**settings | {"hidden_layer_sizes": (40, 30), "max_iter": 20}).fit(X, y)
    assert wide.posterior_.random == ("net.5.weight", "net.5.bias")  # of the last layer alone
    with pytest.raises(ValueError, match='must not be a mixture for method="laplace"'):
        pb.BNNRegressor(**settings, likelihood="mixture:2").fit(X, y)


@pytest.mark.daily("gaussian", "poisson")
@pytest.mark.parametrize("likelihood", ["gaussian", "gaussian:0.4", "heteroscedastic", "poisson"])
def test_laplace_takes_weights_of_rows(likelihood):
    """A row of weight two is the same row twice, if training uses all rows at once instead of batches."""
    X, y = curve(40)
    y = np.abs(np.round(y / 10 - 50)) if likelihood == "poisson" else y
    weights = np.arange(40) % 3
    settings = {**SHORT, "method": "laplace", "max_iter": 100, "likelihood": likelihood}
    weighted = pb.BNNRegressor(**settings).fit(X, y, weights)
    rows = np.repeat(np.arange(40), weights)
    twice = pb.BNNRegressor(**settings).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.predict(X), twice.predict(X), rtol=1e-4)
    plain = pb.BNNRegressor(**settings).fit(X, y)
    assert np.abs(plain.predict(X) / twice.predict(X) - 1).max() > 1e-3  # must fail


def test_neighbouring_seeds_of_ensembles_share_no_member():
    X, y = curve(30)
    settings = {**SHORT, "method": "ensemble", "num_members": 3, "max_iter": 1, "learning_rate": 1e-9}

    def starts(seed, monkeypatch):
        monkeypatch.setattr(pb.BNNRegressor, "_drawn_seed", lambda self: seed)
        members = pb.BNNRegressor(**settings).fit(X, y).posterior_.members
        return [member.median()["net.1.weight"] for member in members]

    with pytest.MonkeyPatch.context() as monkeypatch:
        first, second = (starts(seed, monkeypatch) for seed in (5, 6))
        again = starts(5, monkeypatch)
    for i, one in enumerate(first):
        assert torch.equal(one, again[i])
        assert all(not torch.allclose(one, other, atol=1e-6) for other in [*second, *first[:i]])


@pytest.mark.parametrize("estimator", [pb.BNNRegressor, pb.BNNClassifier])
def test_an_unknown_setting_is_said_to_be_one_of_the_estimator(estimator):
    with pytest.raises(TypeError, match=rf"{estimator.__name__}.*`num_epochs`; did you mean `max_iter`"):
        estimator(num_epochs=2)


# --- data in parts, sparse data, weights of classes, several labels ---------------------------------------------------


@functools.cache
def predicted_at_once(begin):
    """What a fit of all rows from `begin` on predicts for all rows."""
    X, y, settings = in_two_parts()
    return pb.BNNRegressor(**settings).fit(X[begin:], y[begin:]).predict(X)


def in_two_parts():
    """Inputs, targets of two lines, for the first 100 rows and for the others, and settings."""
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 2))
    y = X @ [2.0, -1.0] + 0.5 * random.normal(size=120)
    y[100:] += 3
    settings = {**SHORT, "hidden_layer_sizes": (), "max_iter": 400, "learning_rate": 0.05, "likelihood": "gaussian:0.3"}
    return X, y, settings | {"num_samples": 200}


@pytest.mark.daily("auto")  # in parts, the default is variational
@pytest.mark.parametrize("method", ["auto", "svi", "natural"])
def test_two_parts_of_the_data_give_what_all_of_it_gives(method):
    """Under known noise a linear model's posterior is the same either way, up to the Gaussians' independence."""
    X, y, settings = in_two_parts()
    parts = pb.BNNRegressor(**settings | {"method": method}).partial_fit(X[:100], y[:100])
    first = parts.predict(X, return_std=True)[0]
    parts.partial_fit(X[100:], y[100:])
    truth, found, later = predicted_at_once(0), parts.predict(X), predicted_at_once(100)
    assert np.abs(found - truth).mean() < 0.1
    assert np.abs(first - truth).mean() > 0.3  # must fail
    assert np.abs(later - truth).mean() > 0.5  # must fail
    with pytest.raises(ValueError, match="`y` must have 1 columns, as in the first part, got 2"):
        parts.partial_fit(X, np.stack([y, y], 1))


def test_a_classifier_learns_in_parts_that_lack_classes():
    X, labels = blobs()
    settings = {**SHORT, "max_iter": 300, "learning_rate": 0.05}
    is_owl = labels == "owl"
    classifier = pb.BNNClassifier(**settings).partial_fit(X[~is_owl], labels[~is_owl], ["owl", "dog", "cat"])
    assert classifier.score(X, labels) < 0.7
    classifier.set_params(hidden_layer_sizes=9).partial_fit(X, labels)  # the first part determines the network
    assert classifier.classes_.tolist() == ["cat", "dog", "owl"]
    assert classifier.score(X, labels) > 0.9
    with pytest.raises(ValueError, match=r"labels of `classes`, \['cat', 'dog', 'owl'\], got \['emu'\]"):
        classifier.partial_fit(X[:2], ["emu", "cat"])
    with pytest.raises(ValueError, match="`method` must be that of the earlier parts, got 'natural'; call"):
        classifier.set_params(method="natural").partial_fit(X, labels)
    with pytest.raises(ValueError, match="`method` must be one of 'auto', 'svi', 'natural' for `partial_fit`"):
        pb.BNNClassifier(**settings | {"method": "laplace"}).partial_fit(X, labels)


@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_a_sparse_table_is_the_same_table(form):
    X, labels = blobs()
    X = X * (np.abs(X) > 0.5)
    for kind, y in ((pb.BNNClassifier, labels), (pb.BNNRegressor, X.sum(1))):
        dense, sparse = kind(**SHORT).fit(X, y), kind(**SHORT).fit(form(X), y)
        assert_array = np.testing.assert_array_equal
        assert_array(dense.predict(X), sparse.predict(form(X)))


def test_weights_of_classes_are_weights_of_their_rows():
    random = np.random.default_rng(0)
    X, labels = random.normal(size=(120, 2)), np.array(["a", "a", "a", "b"] * 30)
    settings = {**SHORT, "hidden_layer_sizes": (), "max_iter": 150}
    plain = pb.BNNClassifier(**settings).fit(X, labels)
    balanced = pb.BNNClassifier(**settings, class_weight="balanced").fit(X, labels)
    by_rows = pb.BNNClassifier(**settings).fit(X, labels, np.where(labels == "a", 2 / 3, 2.0))
    both = pb.BNNClassifier(**settings, class_weight={"b": 3.0}).fit(X, labels, np.full(120, 2 / 3))
    assert_identical(balanced.predict_proba(X), by_rows.predict_proba(X))
    assert_identical(both.predict_proba(X), by_rows.predict_proba(X))
    assert abs(balanced.predict_proba(X)[:, 0].mean() - 0.5) < 0.1
    assert plain.predict_proba(X)[:, 0].mean() > 0.65  # must fail


@pytest.mark.daily("svi")
@pytest.mark.parametrize("method", ["auto", "svi", "laplace"])
def test_a_row_may_have_several_labels(method):
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 2))
    y = (X + 0.1 * random.normal(size=(150, 2)) > [0, 0.5]).astype(int)
    settings = {**SHORT, "method": method, "max_iter": 300}
    if method == "auto":
        settings |= {"max_iter": 50, "learning_rate": None}
    classifier = pb.BNNClassifier(**settings).fit(X, y)
    probs = classifier.predict_proba(X)
    assert probs.shape == (150, 2)
    assert ((probs > 0.5) == classifier.predict(X)).all()
    assert classifier.score(X, y) > 0.85  # share of rows with both labels right
    assert (classifier.predict(X)[:, ::-1] == y).all(1).mean() < 0.7  # must fail
    assert classifier.predict_distribution(X).probs.shape == (150, 2, 2)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        pb.BNNClassifier(**settings).fit(X, 2 * y + [0, 1])


def test_the_remedy_for_gaps_works():
    x = np.linspace(-1, 1, 20)[:, None]
    x[3] = np.nan
    regressor = pb.BNNRegressor(method="laplace", max_iter=50, random_state=0)
    pipeline = make_pipeline(SimpleImputer(add_indicator=True), regressor)
    assert pipeline.fit(x, np.arange(20.0)).predict(x).shape == (20,)


def test_wrong_tables_are_refused_with_a_remedy():
    x = pd.DataFrame({"a": [0.0, 1.0, np.nan, 2.0], "b": [1.0, 2.0, 3.0, np.inf], "c": 0.0})
    y = [0.5, 1.5, 2.5, 3.5]
    cases = [
        (pb.BNNClassifier, x[["c"]], y, "`y` must be classes, got continuous numbers such as 0.5; use BNNRegressor"),
        (
            pb.BNNRegressor,
            x,
            y,
            "`X` must be finite, got NaN or inf in 2 of 4 rows, in `a`, `b`; drop these rows, or replace inf by NaN, ",
        ),
        (
            pb.BNNRegressor,
            x[["c", "a"]].astype("Float64"),  # with `pandas.NA`
            y,
            r"got NaN in 1 of 4 rows, in `a`; .* pipeline: `make_pipeline\(SimpleImputer\(add_indicator=True\), BNN",
        ),
        (pb.BNNClassifier, x[["c", "a"]].to_numpy(), [0, 1, 0, 1], "NaN in 1 of 4 rows, in column 1; .* BNNClassifier"),
        (
            pb.BNNRegressor,
            x[["c"]],
            [0.5, np.nan, 1.0, 2.0],
            "`y` must be finite, got NaN in 1 of 4 rows; drop these rows.$",
        ),
        (
            pb.BNNClassifier,
            x[["c"]],
            ["u", "v", np.nan, "u"],
            r"label in each row, got none in 1 of 4 rows; drop these",
        ),
        (pb.BNNClassifier, x[["c"]], pd.Series(["u", None, None, "v"], dtype="string"), r"none in 2 of 4 rows; drop"),
    ]
    for kind, inputs, targets, message in cases:
        with pytest.raises(ValueError, match=message):
            kind().fit(inputs, targets)


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (
            pb.BNNRegressor,
            lambda y: y > 500,
            "`y` must be numbers, got booleans such as (True|False); use BNNClassifier",
        ),
        (pb.BNNRegressor, lambda y: y.astype(str), "got text such as '[-0-9.e]+'; use BNNClassifier"),
        (pb.BNNRegressor, lambda y: pd.Series(y).astype(str), "got text such as '[-0-9.e]+'; use BNNClassifier"),
        (pb.BNNRegressor, lambda y: [str(value) for value in y], "got text such as '[-0-9.e]+'; use BNNClassifier"),
        (pb.BNNClassifier, lambda y: y, "^Unknown label type: .*continuous.*use BNNRegressor"),
        (pb.BNNClassifier, lambda y: y.round(), r"got \d+ different whole numbers in 40 rows; use BNNR.*astype\(str"),
    ],
)
def test_targets_for_the_other_estimator_are_refused(make, change, message):
    X, y = curve(40)
    with pytest.raises(ValueError, match=message):
        make(**SHORT).fit(X, change(y))


def test_nuts_warns_of_settings_that_it_does_not_use():
    X, y = curve(40)
    settings = {"method": "nuts", "max_iter": 8, "num_chains": 1, "num_members": 3, "time_limit": 60, "random_state": 0}
    with pytest.warns(UserWarning, match="no effect") as said:
        early = pb.BNNRegressor(**settings, early_stopping=True).fit(X, y)
    assert {warning.filename for warning in said} == {__file__}  # the caller's line
    assert [str(warning.message) for warning in said if warning.category is UserWarning] == [
        '`time_limit` has no effect with method="nuts"; it is for the method "auto".',
        (
            '`early_stopping` has no effect with method="nuts"; it is for the methods "svi", "natural", "laplace", '
            '"kronecker", "swag", "ensemble".'
        ),
        '`num_members` has no effect with method="nuts"; it is for the methods "ensemble", "mclmc".',
    ]
    assert early.model_.num_data == 40


@pytest.mark.nightly
def test_parts_by_the_default_method_use_the_settings_of_svi():
    X, y = curve(40)
    settings = {**SHORT, "method": "auto", "max_iter": 4, "kl_weight": 0.5, "early_stopping": True}
    assert pb.BNNRegressor(**settings, time_limit=60).partial_fit(X, y).model_.num_data == 36  # without a warning
    with pytest.warns(UserWarning, match="no effect") as said:
        pb.BNNRegressor(**settings, likelihood="gaussian", num_chains=3).fit(X, y)
    messages = [str(warning.message) for warning in said if warning.category is UserWarning]
    assert [message.partition(";")[0] for message in messages] == [
        '`learning_rate` has no effect with method="auto" unless chains are impossible',
        '`early_stopping` has no effect with method="auto"',
        '`kl_weight` has no effect with method="auto" unless chains are impossible',
        '`num_chains` has no effect with method="auto"',
    ]


def test_a_fit_that_did_not_converge_warns_with_a_remedy():
    with pytest.warns(UserWarning, match="^Not converged: .*Raise `max_iter`, or `learning_rate` if"):
        regressor = pb.BNNRegressor(**{**SHORT, "max_iter": 5}).fit(*curve(20))
    assert "\nRaise `max_iter`, or" in regressor.status_
    assert repr(regressor.status_) == regressor.status_  # in a notebook, lines and no quotes
    assert "num_epochs" not in regressor.status_
    assert "`num_epochs`" in str(regressor.posterior_.status)  # as :func:`fit` says it
    ensemble = {"method": "ensemble", "num_members": 2, "max_iter": 5}
    with pytest.warns(UserWarning, match="2 of 2 members .* Raise `max_iter`") as found:
        pb.BNNRegressor(**SHORT | ensemble).fit(*curve(20))
    assert str(found[0].message).count("Raise") == 1
    assert "num_epochs" not in str(found[0].message)
    with pytest.warns(UserWarning, match="R-hat") as found:
        pb.BNNRegressor(method="nuts", max_iter=5, num_chains=2).fit(*curve(20))
    assert len(found) == 1


@pytest.mark.parametrize("kind", [pb.BNNRegressor, pb.BNNClassifier])
def test_wrong_shapes_are_told_in_short_with_names_and_a_remedy_that_helps(kind):
    x, y = np.linspace(-1, 1, 30), np.arange(30) % 2
    estimator = kind(method="laplace", max_iter=5)
    for given in (x, list(x), pd.Series(x, name="x")):
        with pytest.raises(ValueError, match=r"^`X` must be a table of shape \(N, D\), got shape \(30,\)\. ") as caught:
            estimator.fit(given, y)
        message = str(caught.value)
        assert len(message) < 250
        tables = [eval(call, {"np": np, "X": given}) for call in re.findall("`([^`]+)`", message)[1:]]
        assert [table.shape for table in tables] == [(30, 1), (1, 30)]
    X = x[:, None]
    for given, message in (
        (X[None], r"shape \(1, 30, 1\); pass `np.reshape\(X, \(len\(X\), -1\)\)`"),
        (iter(x), "iterator;"),
    ):
        with pytest.raises(ValueError, match=rf"^`X` must be a table of shape \(N, D\), got .*{message}"):
            estimator.fit(given, y)
    for table in (X, X.tolist(), scipy.sparse.csr_matrix(X)):
        with pytest.raises(ValueError, match=r"^`y` must have one target .* `X`, got 5 targets for 30 rows; pass"):
            estimator.fit(table, y[:5])
    with pytest.raises(ValueError, match=r"got shape \(30,\)"):
        kind((2,), method="laplace", max_iter=200).fit(X, y).predict(x)


def test_many_classes_are_accepted_as_text_and_in_parts():
    X, y = np.linspace(-1, 1, 24)[:, None], np.arange(24) % 14
    short = {"hidden_layer_sizes": (2,), "max_iter": 2, "num_samples": 2, "random_state": 0}
    with pytest.raises(ValueError, match="got 14 different whole numbers in 24 rows; use BNNRegressor"):
        pb.BNNClassifier(method="svi", **short).fit(X, y)
    assert len(pb.BNNClassifier(method="svi", **short).fit(X, y % 12).classes_) == 12
    with pytest.warns(UserWarning, match="unique classes is greater than 50%"):  # of scikit-learn
        assert len(pb.BNNClassifier(method="svi", **short).fit(X, y.astype(str)).classes_) == 14
    with pytest.warns(UserWarning, match="unique classes is greater than 50%"):
        assert len(pb.BNNClassifier(method="svi", **short).partial_fit(X, y).classes_) == 14


def test_rows_that_are_unlike_the_training_rows_are_named():
    X, y = curve(40)
    regressor = pb.BNNRegressor(method="laplace", max_iter=100, activation="relu", random_state=0).fit(X, y)
    far, said = [X[0], 1e4 * X[0]], r"deviation of 1 row \(1\) is more than 3 times that of the training targets\. Such"
    regressor.predict(far)  # without standard deviations, and so without a warning
    assert bool(regressor.predict_distribution(X).sd.isfinite().all())
    for call in (
        regressor.predict_distribution,
        regressor.predict_interval,
        functools.partial(regressor.predict, return_std=True),
    ):
        with pytest.warns(UserWarning, match=said) as found:
            call(far)
        assert [warning.filename for warning in found] == [__file__]


def test_auto_advises_a_tighter_prior_after_steps_that_diverged(monkeypatch):
    fit_best = _methods.fit_best

    def failed(*args, **options):
        best = fit_best(*args, **options)
        posterior = best.posterior
        posterior.status = pb.Status(False, "Steps diverged.")
        posterior.statistics = replace(posterior.statistics, diverging=torch.ones_like(posterior.statistics.diverging))
        return best

    monkeypatch.setattr(_methods, "fit_best", failed)
    prior = pb.NormalPrior(1.0)
    regressor = pb.BNNRegressor((2,), activation="tanh", prior=prior, likelihood="gaussian", max_iter=20, verbose=0)
    assert "use a tighter `prior`" in " ".join(regressor.fit(*curve(40)).status_.split())
