"""Tables that cannot be fitted: the estimators show code that works for text or dates, and are unfitted afterwards."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import pyro_bnn as pb

DAY = pd.Timestamp(2020, 1, 1)
LINEAR = {"method": "laplace", "likelihood": "gaussian:0.1", "hidden_layer_sizes": (), "random_state": 0}


def error_of(X):
    with pytest.raises(ValueError, match=r"^`X` must be") as raised:
        pb.BNNRegressor(**LINEAR).fit(X, np.arange(float(len(X))))
    return str(raised.value)


@pytest.mark.daily("X0", "X2")
@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"n": [np.nan, *range(39)], "m": 1.0} | {name: ["u", "v", None, np.nan] * 10 for name in "abcde"}),
        np.array([[0.0, "u"], [1.0, "v"]] * 20, dtype=object),
        np.array([["0", "u"], ["1", "v"]] * 20),
    ],
)
def test_the_code_shown_for_text_works(X):
    shown = re.search("`(make_pipeline.*?)`", error_of(X))
    known = (make_pipeline, make_column_transformer, OneHotEncoder, SimpleImputer)
    pipeline = eval(shown[1], {f.__name__: f for f in known} | {"BNNRegressor": lambda: pb.BNNRegressor(**LINEAR)})
    pipeline.fit(X, np.arange(40.0))
    new = X.replace({"u": "w", 1.0: np.nan}) if isinstance(X, pd.DataFrame) else X
    assert pipeline.predict(new).shape == (40,)


@pytest.mark.parametrize("is_frame", [True, False])
@pytest.mark.parametrize(
    "dates",
    [
        [DAY, DAY],
        [DAY.date(), None],
        [DAY, pd.NaT],
        ["2023-06-14", "2023-06-15"],
        ["2023-06-14", pd.NA],
        ["2023-06-14 10:30", None],
    ],
)
def test_the_code_shown_for_dates_turns_them_into_days(dates, is_frame):
    X = pd.DataFrame({0: [0.0, 1.0], 1: np.array(dates, object)})
    X = X.rename(columns={0: "n", 1: "t"}) if is_frame else X.to_numpy(object)
    message = error_of(X)
    assert f"got dates in {'`t`' if is_frame else 'column 1'}; turn dates into days" in message
    assert "`tabular_pipeline(BNNRegressor())` of the package skrub and `pyro-bnn train` encode" in message
    assert "OneHotEncoder" not in message
    exec(re.search("`(for name.*?)`", message)[1], {"X": X, "pd": pd})
    days = np.asarray(X, np.float64)[:, 1]
    assert 6000 < days[0] < 1e5  # single precision holds minutes
    assert np.isnan(days[1]) == pd.isna(dates[1])


def test_text_and_dates_are_told_apart_and_many_columns_are_not_listed():
    message = error_of(pd.DataFrame({"city": ["u", "v"], "sold": ["2023-06-14", "2023-06-15"], "built": [DAY, pd.NaT]}))
    assert "got dates in `sold`, `built` and text in `city`; turn dates into days: `for name in ['sold', " in message
    assert "OneHotEncoder(handle_unknown='ignore'), ['city']), remainder=SimpleImputer(" in message
    message = error_of(pd.DataFrame({f"a{i}": ["u", "2023-06-14"] for i in range(40)}))
    assert "got text in `a0`, `a1`, `a2` and 37 more" in message
    assert "OneHotEncoder(handle_unknown='ignore'), text_columns)" in message
    assert "shape (N, D), got shape (2,)" in error_of(["u", "v"])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [pb.BNNRegressor, pb.BNNClassifier])
def test_after_a_failed_fit_an_estimator_is_unfitted(kind):
    X, y = pd.DataFrame({"a": np.linspace(-1, 1, 20)}), np.arange(20) % 2
    estimator = kind((2,), method="svi", max_iter=0)  # whose error comes when the columns' names are known
    with pytest.raises(ValueError, match="`max_iter`"):
        estimator.fit(X, y)
    with pytest.raises(NotFittedError):
        estimator.predict(np.zeros((1, 1)))
    with pytest.raises(NotFittedError):
        assert estimator.status_
    estimator.set_params(max_iter=2).partial_fit(X, y)
    with pytest.raises(ValueError, match="feature names"):
        estimator.partial_fit(X.assign(b=0.0), y)
    assert estimator.predict(X).shape == (20,)  # after the first part
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(X * np.nan, y)
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    assert str(estimator) == repr(estimator)
