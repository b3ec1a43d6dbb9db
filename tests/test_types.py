"""Types of the results, as a type checker and completion see them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_bnn as pb
from pyro_bnn.scores.uncertainty import ClassificationPrediction, RegressionPrediction

ROOT = Path(__file__).parent.parent

PROGRAM = """
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import pyro_bnn as pb
from pyro_bnn.inference.history import History
from pyro_bnn.inference.laplace import LaplacePosterior
from pyro_bnn.results.pruning import prune
from pyro_bnn.scores.uncertainty import (
    ClassificationPrediction, MixtureDensityPrediction, Prediction, RegressionPrediction, ValuePrediction
)

net, x, y = nn.Linear(4, 3), torch.zeros(2, 4), torch.zeros(2)
optimizer = partial(torch.optim.Adam, lr=1e-3)
build = partial(pb.BayesianModel, net)


def own(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x


class Unnamed(pb.Likelihood): ...


class Named(pb.Likelihood[RegressionPrediction]): ...


def of(likelihood: pb.Likelihood[ClassificationPrediction]) -> pb.BayesianModel[ClassificationPrediction]:
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=2)


def mean_probs(model: pb.BayesianModel[ClassificationPrediction], posterior: pb.Posterior) -> Tensor:
    return pb.predict(model, posterior, x).probs


def of_any(model: pb.BayesianModel, posterior: pb.Posterior) -> Tensor:
    return pb.predict(model, posterior, x).expectation


def check(unnamed: Unnamed, named: Named, posterior: pb.Posterior, guide: pb.MeanFieldGuide) -> None:
    prior = pb.NormalPrior()
    categorical = pb.BayesianModel(net, prior=prior, likelihood=pb.CategoricalLikelihood(), num_data=2)
    bernoulli = pb.BayesianModel(net, prior=prior, likelihood=pb.BernoulliLikelihood(), num_data=2)
    gaussian = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(None), num_data=2)
    varying = pb.BayesianModel(net, prior=prior, likelihood=pb.HeteroscedasticGaussianLikelihood(), num_data=2)
    poisson = pb.BayesianModel(net, prior=prior, likelihood=pb.PoissonLikelihood(), num_data=2)
    mixture = pb.BayesianModel(net, prior=prior, likelihood=pb.MixtureDensityLikelihood(2), num_data=2)
    weighted = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(None).with_row_weights(), num_data=2)
    of_unnamed = pb.BayesianModel(net, prior=prior, likelihood=unnamed, num_data=2)
    of_named = pb.BayesianModel(net, prior=prior, likelihood=named, num_data=2)
    several = pb.EnsemblePosterior([posterior, pb.GuidePosterior(guide)])
"""

CASES = {
    # expression in the function `check` -> its type
    "categorical": "pb.BayesianModel[ClassificationPrediction]",
    "pb.predict(categorical, posterior, x)": "ClassificationPrediction",
    "pb.predict(categorical, posterior, x).labels": "Tensor",
    "pb.predict(categorical, guide, x)[:1]": "ClassificationPrediction",
    "pb.predict_point(categorical, {}, x)": "ClassificationPrediction",
    "pb.predict(bernoulli, posterior, x)": "ClassificationPrediction",
    "pb.predict(gaussian, posterior, x)": "RegressionPrediction",
    "pb.predict(varying, posterior, x)": "RegressionPrediction",
    "pb.predict(poisson, posterior, x)": "RegressionPrediction",
    "pb.predict(mixture, posterior, x)": "MixtureDensityPrediction",
    "pb.predict(weighted, posterior, x)": "RegressionPrediction",
    "pb.predict(of_unnamed, posterior, x)": "Prediction",
    "pb.predict(of_named, posterior, x)": "RegressionPrediction",
    "pb.predict(own, posterior, x)": "Prediction",
    "pb.fit_svi(own, (x, y), own, optimizer=optimizer, num_epochs=1)": "pb.GuidePosterior",
    "of(pb.CategoricalLikelihood())": "pb.BayesianModel[ClassificationPrediction]",
    "mean_probs(categorical, posterior)": "Tensor",
    "of_any(categorical, posterior)": "Tensor",
    "pb.fit_svi(gaussian, (x, y), guide, optimizer=optimizer, num_epochs=1)": "pb.GuidePosterior",
    "pb.fit_svi(gaussian, (x, y), guide, optimizer=optimizer, num_epochs=1).history": "History",
    "pb.fit(gaussian, (x, y))": "pb.GuidePosterior | pb.MCMCPosterior",
    "pb.fit(gaussian, (x, y), time_limit=9)": "pb.GuidePosterior | pb.MCMCPosterior",
    "pb.fit(gaussian, (x, y), method='svi', guide=guide)": "pb.GuidePosterior",
    "pb.fit(gaussian, (x, y), method='mclmc', time_limit=9)": "pb.MCMCPosterior",
    "pb.fit(gaussian, (x, y), method='ensemble', guide=pb.MeanFieldGuide, num_members=3)": "pb.EnsemblePosterior",
    "pb.fit_nuts(gaussian, (x, y))": "pb.MCMCPosterior",
    "pb.fit_mcmc(gaussian, (x, y), sampler=pb.HMC())": "pb.MCMCPosterior",
    "pb.fit_laplace(gaussian, (x, y))": "LaplacePosterior",
    "several.members": "tuple[pb.Posterior, ...]",
    "pb.load_posterior('posterior.safetensors', gaussian)": "pb.Posterior",
    "prune(guide, fraction=0.5)": "pb.GuidePosterior",
    "posterior.sample(3)": "dict[str, Tensor]",
    "posterior.status": "pb.Status",
    "gaussian.likelihood": "pb.Likelihood[RegressionPrediction]",
}

WRONG = {
    # expression -> what a type checker must say
    "assert_type(pb.predict(gaussian, posterior, x), ClassificationPrediction)": 'type "RegressionPrediction", not',
    "pb.predict(gaussian, posterior, x).probs": 'has no attribute "probs"',
    "mean_probs(gaussian, posterior)": "incompatible type",
    "of(pb.PoissonLikelihood())": "incompatible type",
    "pb.fit(gaussian, (x, y)).guide": 'has no attribute "guide"',
    "pb.fit(gaussian, (x, y), method='best')": "No overload variant",
    "pb.BNNRegressor(method='best')": "incompatible type",
    "pb.BNNClassifier(activation='step')": "incompatible type",
}

NUM_LINES = len(PROGRAM.splitlines())


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """Messages of mypy on the program, ``{expression: message}``."""
    program = tmp_path_factory.mktemp("typed") / "program.py"
    checked = [*(f"assert_type({expression}, {kind})" for expression, kind in CASES.items()), *WRONG]
    program.write_text(PROGRAM + "".join(f"    {line}\n" for line in checked))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(program)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not result.stderr
    found = re.findall(rf"{program.name}:(\d+): error: (.*)", result.stdout)
    names = [*CASES, *WRONG]
    assert all(int(line) > NUM_LINES for line, _ in found), result.stdout
    return {names[int(line) - NUM_LINES - 1]: message for line, message in found}


@pytest.mark.nightly
@pytest.mark.parametrize("expression", CASES)
def test_a_result_has_its_precise_type(complaints, expression):
    assert expression not in complaints, complaints[expression]


@pytest.mark.nightly
@pytest.mark.parametrize("expression", WRONG)
def test_a_wrong_type_is_reported(complaints, expression):
    assert re.search(WRONG[expression], complaints[expression])


def test_type_parameters_may_stand_in_annotations_and_bases():
    def annotated(model: pb.BayesianModel[ClassificationPrediction]) -> pb.Likelihood[RegressionPrediction]: ...

    class Mine(pb.Likelihood[RegressionPrediction]): ...

    assert issubclass(Mine, pb.Likelihood)
    assert annotated.__annotations__["model"].__origin__ is pb.BayesianModel
