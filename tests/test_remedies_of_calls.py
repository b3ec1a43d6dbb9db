"""Calls without their arguments, and names that other libraries have: the error shows what works."""

import ast
import inspect
import re

import numpy as np
import pyro
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.posterior import Posterior
from pyro_bnn.scores.uncertainty import RegressionPrediction

from .test_public_names import public_objects


def needed(value):
    is_error = inspect.isclass(value) and issubclass(value, BaseException)
    parameters = {} if is_error else inspect.signature(value).parameters
    return [one for one in parameters.values() if one.default is one.empty and not one.kind.name.startswith("VAR_")]


OTHER_EXAMPLES = (pb.BayesianModel, pb.nets.Standardize, pb.svi_step)  # longer than a call of the class or function
PUBLIC = [value for *_, value in public_objects() if inspect.isfunction(value) or isinstance(value, type)]
CALLED = [
    *(value for value in PUBLIC if value not in OTHER_EXAMPLES and not inspect.isabstract(value) and needed(value)),
    *(getattr(RegressionPrediction, name) for name in ("cdf", "crps", "log_prob", "quantile", "sample")),
    Posterior.sample,
]


@pytest.mark.parametrize("function", CALLED, ids=lambda function: function.__qualname__)
def test_a_call_without_arguments_shows_one_with_all_of_them(function):
    owner = [None] if inspect.isfunction(function) and "." in function.__qualname__ else []
    with pytest.raises(TypeError, match=r"needs `.*, which this call does not pass. Example: ") as caught:
        function(*owner)
    shown = ast.parse(str(caught.value).partition("Example: ")[2], mode="eval").body
    assert isinstance(shown, ast.Call)
    assert ast.unparse(shown.func).rpartition(".")[2] == function.__name__
    inspect.signature(function).bind(*owner, *shown.args, **{one.arg: one.value for one in shown.keywords})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NormalLikelihood", "GaussianLikelihood()"),
        ("SoftmaxLikelihood", "CategoricalLikelihood()"),
        ("StudentTLikelihood", "likelihoods.StudentT()"),
        ("BinaryLikelihood", "BernoulliLikelihood()"),
        ("MC_Dropout", "nets.MCDropout"),
        ("regression_bands", "plotting.regression_bands"),
        ("accuracy", "metrics.accuracy"),
    ],
)
def test_a_name_of_a_public_module_or_of_another_library_is_found(name, meant):
    with pytest.raises(AttributeError, match=re.escape(f"no attribute '{name}'; did you mean `{meant}`?")):
        getattr(pb, name)
    assert eval(meant, {"pyro": pyro, **{name: getattr(pb, name) for name in pb.__all__}}) is not None


def test_the_remedies_for_data_name_the_arguments_of_python(tmp_path):
    with pytest.raises(pb.data.MissingDataError, match=r"pass its folder \(`root`, .*`download=True`"):
        pb.data.load_images("cifar10", root=tmp_path)
    with pytest.raises(pb.data.MissingDataError, match=r"contains uci/yacht \(`root`, "):
        pb.data.load_uci("yacht", 0, root=tmp_path)


def test_a_text_in_place_of_a_guide_is_told_what_a_guide_is():
    net, noise = nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=noise, num_data=5)
    with pytest.raises(ValueError, match=r"pass a Pyro guide, such as `MeanFieldGuide\(model\)`"):
        pb.fit(model, (torch.zeros(5, 1), torch.zeros(5, 1)), guide="lowrank")


def test_the_number_of_units_that_is_wrong_is_named_as_the_estimator_names_it():
    with pytest.raises(ValueError, match="`hidden_layer_sizes` must be a whole number of at least 1, got 0"):
        pb.BNNRegressor(hidden_layer_sizes=[10, 0]).fit(np.zeros((5, 1)), np.arange(5.0))


def test_a_fitted_estimator_prints_its_status():
    x = np.linspace(-1, 1, 20)[:, None]
    regressor = pb.BNNRegressor((2,), method="laplace", max_iter=200, random_state=0)
    assert str(regressor) == repr(regressor)
    printed = str(regressor.fit(x, x[:, 0]))
    assert printed.startswith(f"{regressor!r}\nFit: Laplace")
    assert "\n  ok: " in printed
