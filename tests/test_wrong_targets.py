"""Targets that are not what the options say."""

import string
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyro_bnn.app.recipes import OWN
from pyro_bnn.app.reports.page.fit import training_command

from .own_data import QUICK, predictions_in, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

WORDS = [f"text {first}{second}" for first in "abcde" for second in string.ascii_lowercase][:120]


@pytest.mark.parametrize(
    ("cells", "likelihood", "remedy"),
    [
        (
            WORDS,
            "categorical",
            "; choose another --target.\n",
        ),
        (
            WORDS,
            "gaussian",
            "needs numbers; choose another --target.\n",
        ),
        ([str(number) for number in range(120)], "categorical", "choose --likelihood gaussian, since they are numbers"),
        (
            [f"20{number:02}-01-01" for number in range(99)],
            "gaussian",
            "look like dates: write them as numbers",
        ),
        ([f"20{number:02}-01-01" for number in range(20)], "", "got dates such as '2000-01-01' in line 2; write"),
        (WORDS, "", "; choose another --target.\n"),
        (["a", "b", "c", "a", "b"] * 2, "gaussian", "needs numbers; choose --likelihood categorical for classes.\n"),
        (["$5", "€5"] * 5, "gaussian", "needs numbers; choose --likelihood categorical for classes.\n"),
        (
            ["1", "2", "3", "none", "few"] * 4,
            "gaussian",
            "'few' in line 6, 'none' in line 10 and 5 more; replace",
        ),
        (
            ["1", "2", "3", "none"] * 4,
            "gaussian",
            "replace these texts by numbers or empty cells, or choose --likelihood categorical for classes.\n",
        ),
        (
            [*map(str, range(110)), "odd"],
            "gaussian",
            "'odd' in line 112; replace these texts by numbers or empty cells.\n",
        ),
    ],
)
def test_the_remedy_for_a_wrong_target_is_no_circle(pyro_bnn, tmp_path, cells, likelihood, remedy):  # noqa: F811
    table = write_table(tmp_path / "t.csv", [((len(cells) - row) ** 2, y) for row, y in enumerate(cells)], ("x", "y"))
    options = ("--likelihood", likelihood) if likelihood else ()
    code, out, err = pyro_bnn("train", table, "--target", "y", *options, "--out", tmp_path / "run")
    assert (code, out, remedy in err) == (2, "", True)  # it announces no kind of fit


@pytest.mark.nightly
def test_amounts_are_predicted_in_their_unit(pyro_bnn, tmp_path):  # noqa: F811
    rows = [(row, f"${1000 * row + 7:,}") for row in range(1, 61)]
    table, out = write_table(tmp_path / "t.csv", rows, ("x", "y")), tmp_path / "p.csv"
    code, text, err = pyro_bnn(
        "train", table, "--target", "y", "--features", "x", "--out", tmp_path / "run", *QUICK, "--epochs", 400
    )
    assert (code, "Numbers in 'y' are read as in this example: $1,234.5" in text) == (0, True), err
    assert pyro_bnn("predict", tmp_path / "run", table, "--out", out)[0] == 0
    assert float(predictions_in(out)[30]["mean"]) == pytest.approx(31_007, abs=5_000)


@pytest.mark.parametrize("likelihood", [(), ("--likelihood", "gaussian")])
def test_amounts_with_one_text_among_them_are_no_classes(pyro_bnn, tmp_path, likelihood):  # noqa: F811
    rows = [(row % 7, "k.A." if row == 5 else f"{row}.500,00 €") for row in range(1, 31)]
    table = write_table(tmp_path / "t.csv", rows, ("x", "y"))
    code, _, err = pyro_bnn("train", table, "--target", "y", *likelihood, "--out", tmp_path / "run")
    said = "but not 'k.A.' in line 6; correct such cells or empty them, or choose --likelihood categorical for classes."
    assert (code, said in err) == (2, True), err


def test_a_target_with_a_few_texts_may_be_classes(pyro_bnn, tmp_path):  # noqa: F811
    rows = [(row % 7, ("1", "2", "3", "none")[row % 4]) for row in range(40)]
    table, options = write_table(tmp_path / "t.csv", rows, ("x", "y")), ("--likelihood", "categorical", *QUICK)
    assert pyro_bnn("train", table, "--target", "y", "--out", tmp_path / "run", *options)[0] == 0


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--target", "x,y"), "train once for each: --target x, then --target y."),
        (("--target", "x", "--target", "y"), "--target is given twice; train once for each target."),
        (("--target", "y", "--ignore", "x", "--ignore", "z"), "--ignore is given twice; separate several columns by c"),
    ],
)
def test_several_targets_or_options_are_refused_with_a_remedy(pyro_bnn, tmp_path, options, remedy):  # noqa: F811
    table = write_table(tmp_path / "t.csv", [(row, row % 3, row % 4) for row in range(20)], ("x", "y", "z"))
    code, _, err = pyro_bnn("train", table, *options, "--out", tmp_path / "run")
    assert (code, remedy in err) == (2, True), err


def test_a_repeated_share_is_not_called_a_column(pyro_bnn, tmp_path):  # noqa: F811
    code, _, err = pyro_bnn("prune", tmp_path / "run", "--keep", 0.1, "--keep", 0.2)
    assert (code, "--keep is given twice; choose one share." in err) == (2, True), err


def test_a_column_whose_name_ends_like_a_number_is_repeated_as_it_is():
    config = replace(OWN, dataset="t.csv", target="y.0")
    asked = {"target": "y.0", "time_limit": 60.0}
    command = training_command(SimpleNamespace(config=config, asked=asked, run=Path("run")), "2")
    assert command == "pyro-bnn train t.csv --target y.0 --time-limit 60 --seed 0 --out run-2"
