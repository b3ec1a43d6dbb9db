"""One vocabulary: all inference functions are called alike, and a thing has one name in all signatures."""

import ast
import inspect
from collections import Counter
from pathlib import Path

import pytest

import pyro_bnn as pb

PACKAGE = Path(pb.__file__).parent

FITS = ["fit", "fit_svi", "fit_nuts", "fit_mcmc", "fit_sgmcmc", "fit_laplace", "fit_gauss_newton"]
LEADING = {name: ["model", "data"] for name in FITS} | {"fit_svi": ["model", "data", "guide"]}  # as Pyro's SVI
TAIL = ["callbacks", "progress", "execution", "checkpoint", "resume", "seed"]
"""What fits share, in this order, after what is the method's own."""

OTHER_NAMES = {
    "x": "data", "y": "data", "at": "init", "start": "init", "num_draws": "num_samples", "samples": "num_samples",
    "epochs": "num_epochs", "verbose": "progress", "random_state": "seed", "generator": "seed", "per_layer": "per",
}  # fmt: skip
"""A name that fits do not use -> theirs."""


def parameters(name):
    return inspect.signature(getattr(pb, name)).parameters


@pytest.mark.parametrize("name", FITS)
def test_fits_take_model_and_data_and_then_names(name):
    kinds = {parameter.name: parameter.kind for parameter in parameters(name).values()}
    leading = [n for n, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert leading == LEADING[name]
    assert set(kinds.values()) == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", FITS)
def test_what_fits_share_comes_last_and_in_one_order(name):
    names = [n for n in parameters(name) if n not in LEADING[name]]
    shared = [n for n in names if n in TAIL]
    assert shared == sorted(shared, key=TAIL.index)
    assert names[len(names) - len(shared) :] == shared


@pytest.mark.parametrize("name", FITS)
def test_fits_use_the_common_names(name):
    assert {n: OTHER_NAMES[n] for n in parameters(name) if n in OTHER_NAMES} == {}


@pytest.mark.parametrize("name", [*FITS, "predict", "compare", "gradient_noise", "refresh_batch_norm"])
def test_a_seed_is_none_unless_it_is_given(name):
    assert parameters(name)["seed"].default is None


@pytest.mark.parametrize("function", [pb.pruning.snr_report, pb.Posterior.to_arviz, pb.Posterior.moments])
def test_so_it_is_in_results_and_posteriors(function):
    assert inspect.signature(function).parameters["seed"].default is None


@pytest.mark.parametrize("name", FITS)
def test_every_fit_can_be_seeded_started_and_watched(name):
    assert "seed" in parameters(name)
    assert name in ("fit", "fit_svi") or "init" in parameters(name)  # a guide has its own start


def test_no_two_classes_have_one_name():
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1] == []


def test_few_names_are_at_the_top():
    assert len(pb.__all__) <= 80
