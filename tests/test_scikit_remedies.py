"""The advice of the estimators for scikit-learn names their own parameters."""

import re
import warnings

import pytest

import pyro_bnn as pb
from pyro_bnn.inference import guides
from pyro_bnn.interop.scikit._methods import METHODS
from pyro_bnn.interop.scikit._remedies import REMEDIES, of_estimator

from .test_scikit import curve

pytestmark = pytest.mark.usefixtures("short_chains")

FAILING = {
    "too short": ({"max_iter": 5}, 20),
    "two rows": ({"max_iter": 150}, 2),
    "diverging": ({"max_iter": 20, "learning_rate": 30.0, "prior": pb.NormalPrior(100.0)}, 20),
}


def unknown_words(text):
    """Words in backticks that are neither parameters or attributes of an estimator nor layers of its network."""
    known = {*pb.BNNRegressor().get_params(), "status", "status_"}
    words = [word.rstrip("=") for word in re.findall("`([^`]+)`", text)]
    return [word for word in words if word not in known and not word.startswith(("net.", "posterior_."))]


@pytest.mark.daily("*-too short", "[!as]*-two rows", "[!asm]*-diverging")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("method", METHODS)
def test_statuses_and_warnings_name_only_parameters_of_the_estimator(method, case):
    settings, num_rows = FAILING[case]
    if method == "natural" and "learning_rate" in settings:
        settings = settings | {"learning_rate": 1.0}  # the largest that natural gradients allow
    small = {"hidden_layer_sizes": (3,), "num_members": 2, "random_state": 0, "method": method}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        regressor = pb.BNNRegressor(**{**small, **settings}).fit(*curve(num_rows))
    said = " ".join([regressor.status_, *(str(warning.message) for warning in found)])
    assert not unknown_words(" ".join(said.split())), said


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning", "ignore::UserWarning")
def test_a_fit_without_enough_time_names_the_time_limit():
    regressor = pb.BNNRegressor(time_limit=0.01, random_state=0).fit(*curve(20))
    assert re.search(r"A `time_limit` of \d+0 s is probably enough for chains\.$", regressor.status_)
    assert not unknown_words(regressor.status_)


@pytest.mark.parametrize("method", ["nuts", "mclmc"])
def test_chains_of_too_few_draws_are_refused_by_the_name_of_the_setting(method):
    with pytest.raises(ValueError, match="`max_iter` must be a whole number of at least 4, got 3"):
        pb.BNNRegressor(method=method, max_iter=3).fit(*curve(20))


def test_the_advice_of_all_functions_is_translated():
    for theirs, own in REMEDIES.items():
        status = of_estimator(pb.Status(False, "Not converged.", remedy=f"{theirs} {theirs}"))
        assert status.remedy == f"{own} {own}"
        assert not unknown_words(own)
    assert unknown_words(guides.IF_AT_PRIOR) == [  # must fail
        "kl.linear_warmup",
        "NetworkInit(scale=0.01)",
        "FanInNormalPrior",
        "num_data",
    ]
