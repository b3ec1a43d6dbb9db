"""The estimators' signatures, what they say of tiny tables, and how they show progress."""

import inspect
import io
import re
import sys
import warnings
from typing import Any, get_args

import numpy as np
import pytest

import pyro_bnn as pb
from pyro_bnn._core import progress
from pyro_bnn.auto.choosing import ACTIVATIONS
from pyro_bnn.interop.scikit import METHODS

from .test_progress import Terminal
from .test_scikit import curve


def test_signatures_begin_with_the_most_used_parameters_and_name_the_choices():
    regressor, classifier = (
        inspect.signature(kind, eval_str=True).parameters for kind in (pb.BNNRegressor, pb.BNNClassifier)
    )
    assert [*regressor][:4] == ["hidden_layer_sizes", "likelihood", "method", "prior"]
    assert [name for name in regressor if name != "likelihood"] == [
        name for name in classifier if name != "class_weight"
    ]
    assert {*get_args(regressor["method"].annotation)} == {*METHODS}
    assert {*get_args(get_args(regressor["activation"].annotation)[1])} == {*ACTIVATIONS}
    assert [one.annotation for one in regressor.values() if one.annotation is Any] == []
    pages = inspect.getdoc(pb.BNNRegressor).partition("Args:")[2].partition("Attributes:")[0]
    assert re.findall(r"^ {4}(\w+): ", pages, re.MULTILINE) == [*regressor]


@pytest.mark.usefixtures("short_chains")
@pytest.mark.parametrize(
    ("rows", "options", "cut"),
    [(5, {}, "1 network not compared, for lack of rows"), (5, {"method": "laplace"}, ""), (8, {}, "(best of 2 ")],
)
def test_tiny_tables_are_fitted_with_a_warning_and_without_a_comparison(rows, options, cut):
    X, y = curve(rows)
    settings = {"hidden_layer_sizes": (3,), "activation": "tanh", "likelihood": "gaussian", "max_iter": 10} | options
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regressor = pb.BNNRegressor(**settings, random_state=0).fit(X, y)
    said = [str(warning.message) for warning in caught if "rows to fit" in str(warning.message)]
    assert said == (["there are only 5 rows to fit, so predictions depend strongly on the prior."] if rows < 8 else [])
    assert cut in " ".join(regressor.status_.split())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_constant_target_is_told():
    X, y = curve(8)
    with pytest.warns(UserWarning, match="`y` has the same value in all rows"):
        pb.BNNRegressor((2,), method="svi", max_iter=1).fit(X, np.c_[y, np.ones(8)])


@pytest.mark.daily("laplace")
@pytest.mark.parametrize("method", METHODS)
def test_verbose_switches_the_progress_of_all_methods(method, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    X, y = curve(12)
    settings = {"hidden_layer_sizes": (2,), "likelihood": "gaussian", "max_iter": 8, "num_members": 2, "num_chains": 1}
    for verbose, stream in ((0, Terminal()), (None, Terminal()), (None, io.StringIO()), (1, io.StringIO())):
        monkeypatch.setattr(sys, "stderr", stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pb.BNNRegressor(**settings, method=method, verbose=verbose, random_state=0).fit(X, y)
        assert bool(stream.getvalue()) == (verbose != 0)
