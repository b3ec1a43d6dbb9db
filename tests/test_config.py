"""All settings are checked when they are read, and one message lists all faults."""

import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from pyro_bnn.app import runs
from pyro_bnn.app.config import RunConfig
from pyro_bnn.app.recipes import RECIPES

from .test_cli import pyro_bnn  # noqa: F401  # a fixture

DIGITS = RECIPES["digits", "default"]
VALUES = DIGITS.to_dict()


@pytest.mark.parametrize("key", RECIPES)
def test_every_recipe_is_valid_and_comes_back_from_its_file(key):
    config = RECIPES[key]
    config.check()
    assert RunConfig.from_json(json.dumps(config.to_dict())) == config


BAD = {
    "dataset": ["cifar", "table.xls", 3, None, ["digits"]],
    "prior": ["cauchy:1", "normal:-1", "normal:nan", 1.0, "", "**=", None],
    "guide": ["flow", 1, []],
    "init": ["zeros", "network:a", None, {}],
    "inputs": ["white", "scaled:0", "scaled:nan", 5],
    "hidden": [400, [0], [1.5], ["a"], None, [True]],
    "epochs": [0, -1, 1.0, "2", None, True, 2**63],
    "batch_size": [0, 0.5, None],
    "lr": [0, -1.0, float("nan"), float("inf"), "1e-3", None, True],
    "schedule": ["linear", None],
    "num_particles": [0, "1"],
    "kl_weight": [1, "-1", "nan", "warmup", "warmup:1.5", None],
    "hold_out": [7, [-1], ["7"]],
    "validation": [-1, 0.5, None],
    "seed": [-1, 0.5, None, 2**63],
    "optimizer": ["lion", "natural:", "natural:0.9", "natural:0.9,0", "natural:1,1", "naturally:0.9,1", 5],
    "accuracy": [1, "yes", None],
    "likelihood": ["gaussian", "cauchy", "bernoulli", "categorical:2", 3, None],
    "activation": ["cosine", 1, None],
    "method": ["auto", "nuts", "", None],
    "time_limit": [1.0, -1.0, "3", float("inf"), True, None],
    "net": ["lenet", "lenet.py", "lenet.py:1", ":make", 3, None],
    "estimator": ["", "reparameterized", None],
    "target": ["price", None],
    "features": [("a",), "a", [3], [""], None],
    "ignore": [("a",), "a", [3], None],
    "drop_missing": [True, 1, None],
    "header": [False, 1, None],
    "test_fraction": [0.5, 1, -0.1, "0.1", True, None],
    "calibrate": [0.5, 1, -0.1, "0.1", True, None],
    "split_seed": [1, -1, None],
    "split_by": ["day", 3, None],
}


LARGE = [
    *(f"--init=network:{number}{of}" for number in ("1e50", "1e-50") for of in ("", "*prior", "*weight")),
    *(f"--prior={prior}" for prior in ("normal:1e50", "laplace:1e-50", "mixture:.5,1e50,1", "**=fan-in:1e25")),
    *(
        "--kl-weight=1e50",
        "--kl-weight=warmup:3,1e50",
        "--lr=1e50",
        "--optimizer=natural:.9,1e50",
        "--inputs=scaled:1e50",
    ),
]


@pytest.mark.parametrize("option", LARGE)
def test_numbers_whose_squares_single_precision_does_not_hold_are_refused(pyro_bnn, tmp_path, option):  # noqa: F811
    code, out, err = pyro_bnn("train", "digits", "--epochs", 1, "--hidden", 3, "--out", tmp_path / "run", option)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(r"1e-18|10{18}", err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", ["1e50", "1e-50"])
def test_a_noise_scale_too_large_or_too_small_is_refused(number):
    table = replace(DIGITS, dataset="t.csv", target="y", hold_out=(), validation=0, inputs="raw")
    replace(table, likelihood="gaussian:0.1").check()
    with pytest.raises(ValueError, match="from 1e-18 to 1e18"):
        replace(table, likelihood=f"gaussian:{number}").check()


def test_there_are_bad_values_of_every_setting():
    assert BAD.keys() == {field.name for field in fields(RunConfig)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_refused_wherever_it_comes_from(name, value):
    with pytest.raises(ValueError, match=r"\.$") as from_file:
        RunConfig.from_json(json.dumps({**VALUES, name: value}))
    said = str(from_file.value)
    assert "\n" not in said
    with pytest.raises(ValueError, match=r"\.$"):
        replace(DIGITS, **{name: tuple(value) if isinstance(value, list) else value}).check()


def test_every_likelihood_that_the_message_names_is_accepted():
    table = replace(DIGITS, dataset="t.csv", target="y", hold_out=(), validation=0, inputs="raw")
    with pytest.raises(ValueError, match="unknown likelihood 'normal'; choose ") as refused:
        replace(table, likelihood="normal").check()
    names = re.findall(
        r"\w+", re.sub(r"\[.*?\]|,| or ", " ", str(refused.value).partition("choose")[2].partition(" (did")[0])
    )
    assert names == ["categorical", "gaussian", "heteroscedastic", "mixture", "poisson"]
    for name in names:
        replace(table, likelihood=name).check()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1], "must be an object with settings by name, got list"),
        ({**VALUES, "version": 3}, "`version` must be 2, got 3; install a later pyro-bnn"),
        ({**VALUES, "version": "one"}, "`version` must be 2, got 'one'; train the run again"),
        ({**VALUES, "version": None}, "`version` must be 2, got None"),
        ({**VALUES, "colour": 1}, r"`colour` is unknown\.$"),
        ({**VALUES, "batchsize": 1}, r"`batchsize` is unknown \(nearest: `batch_size`\)\.$"),
        ({**VALUES, "init": "zeros"}, "^`init`: unknown initialisation 'zeros'"),
        ({key: value for key, value in VALUES.items() if key != "lr"}, "`lr` is missing"),
        ({**VALUES, "hidden": [4, 0]}, r"^`hidden\.1` must be at least 1, got 0\.$"),
        (
            {"colour": 1, **{k: v for k, v in VALUES.items() if k != "lr"}, "epochs": 0, "seed": "x"},
            (
                r"^`epochs` must be at least 1, got 0; `lr` is missing; `seed` must be a whole number, got 'x'; "
                r"`colour` is unknown\.$"
            ),
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 100_000, "\x00", "NaN"])
def test_what_is_no_configuration_is_refused(text):
    with pytest.raises(ValueError, match=r"JSON|EOF|recursion limit|expected|must be an object"):
        RunConfig.from_json(text)


def test_all_wrong_options_are_named_before_a_folder_is_made(pyro_bnn, tmp_path):  # noqa: F811
    code, out, err = pyro_bnn(
        "train", "digits", "--epochs", 0, "--lr", -1, "--guide", "x", "--seed", -1, "--out", tmp_path / "run"
    )
    assert (code, out) == (2, "")
    for word in ("--epochs", "--lr", "--guide must be 'mean-field' or 'auto-normal', got 'x'", "--seed"):
        assert word in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (
            "net.9.*=normal:1;**=normal:0.1",
            "net.9.* of the prior chooses none of the parameters net.1.weight,",
        ),
        ("**=normal:1;net.1.*=normal:0.1", "net.1.* of the prior chooses none"),  # the first that matches wins
        ("**=normal:1;**=normal:0.1", "has the same glob twice"),
    ],
)
def test_a_glob_that_chooses_nothing_is_refused(pyro_bnn, tmp_path, prior, message):  # noqa: F811
    options = ("--epochs", 1, "--hidden", 3, "--out", tmp_path / "r")
    code, _, err = pyro_bnn("train", "digits", "--prior", prior, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (tmp_path / "r").exists()
    code, _, err = pyro_bnn("train", "digits", "--prior", "net.1.*=normal:1;**=normal:0.1", *options)  # the twin
    assert (code, err) == (0, "")


@pytest.mark.parametrize("option", ["--test-fraction", "--split-seed"])
def test_shares_of_test_rows_are_refused_beside_given_ones(pyro_bnn, tmp_path, option):  # noqa: F811
    numbers = np.random.default_rng(0)
    sets = {f"{name}_{part}": numbers.normal(size=n) for part, n in (("train", 300), ("test", 5)) for name in "xy"}
    np.savez(tmp_path / "both.npz", **sets)
    arguments = ("train", tmp_path / "both.npz", "--hidden", 3, "--epochs", 1, "--out", tmp_path / "r")
    code, _, err = pyro_bnn(*arguments, option, 0)
    assert (code, f"holds its test rows (x_test and y_test); leave out {option}" in err) == (2, True)
    code, out, err = pyro_bnn(*arguments)  # the twin
    assert (code, err) == (0, "")
    assert "Trained on 300 rows" in out
    config = runs.load_config(tmp_path / "r")
    assert (config.test_fraction, config.batch_size) == (0.0, 150)  # of 300 rows, and not of a share of them
