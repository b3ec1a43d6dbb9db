"""Runs on users' tables and arrays."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.app import runs, sources
from pyro_bnn.app.own.cells import Cells
from pyro_bnn.app.own.reading import read_table
from pyro_bnn.app.own.targets import MOST_GUESSED_CLASSES, guessed
from pyro_bnn.app.sources import split_rows

from .own_data import NAMES, QUICK, columns_of, houses, predictions_in, scores_in, write_table
from .test_cli import PNG, pyro_bnn  # noqa: F401  # a fixture


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "houses.csv", houses())


def cells_of(*texts, separator=",", name="c"):
    return Cells(name, "t.csv", pd.Series(texts, range(1, len(texts) + 1), dtype=object), separator)


def trained(pyro_bnn, table, run, *options):  # noqa: F811
    code, out, err = pyro_bnn("train", table, "--target", "price", "--out", run, *QUICK, *options)
    assert (code, err) == (0, err if "--json" in options else "")
    return out


# --- regression -------------------------------------------------------------------------------------------------------


def test_a_table_is_trained_on_and_measured_on_rows_that_were_set_aside(pyro_bnn, table, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    out = trained(pyro_bnn, table, run, "--epochs", 500)
    assert "Target 'price' holds numbers: regression." in out
    assert "Trained on 48 rows of 7 inputs from 4 columns for 'price'. Held out: 12 test rows." in out
    code, out, err = pyro_bnn("evaluate", run)
    assert (code, err) == (0, "")
    assert "price of 12 test rows" in out
    scores = scores_in(run)
    assert scores["mean of 100 draws"]["rmse"] < scores["baseline: mean of the targets"]["rmse"] / 3
    assert scores["mean of 100 draws"]["coverage_95"] > 0.7
    assert all((run / name).read_bytes().startswith(PNG) for name in ("loss.png", "predicted.png"))
    facts = json.loads((run / "data.json").read_text())
    features = {feature["name"]: feature["categories"] for feature in facts["table"]["features"]}
    assert features == {"area": [], "rooms": [], "city": ["Lima", "Oslo", "Rome"], "garden": ["False", "True"]}


def test_scores_are_in_the_units_of_the_target(pyro_bnn, tmp_path):  # noqa: F811
    """In other units the fit is bit for bit the same, errors are multiplied by a factor, and log-densities shifted."""
    factor = 1024.0
    scores, costs = [], []
    for name, unit in (("one", 1.0), ("other", factor)):
        table = write_table(tmp_path / f"{name}.csv", houses(factor=unit))
        said = trained(pyro_bnn, table, tmp_path / name, "--likelihood", "heteroscedastic", "--json")
        costs.append(-json.loads(said)["last_epoch"]["elbo"] / 48)
        assert pyro_bnn("evaluate", tmp_path / name, "--num-samples", 10)[0] == 0
        scores.append(scores_in(tmp_path / name))
    assert costs[1] - costs[0] == pytest.approx(math.log(factor), abs=2e-4)
    for row, first in scores[0].items():
        for score, value in first.items():
            other = scores[1][row][score]
            if score in ("rmse", "crps"):
                assert other == pytest.approx(factor * value, rel=1e-6)
            elif score == "nll":
                assert other == pytest.approx(value + math.log(factor), rel=1e-6)
            else:
                assert other == value


def test_a_known_noise_scale_is_in_the_units_of_the_target(pyro_bnn, table, tmp_path):  # noqa: F811
    trained(pyro_bnn, table, tmp_path / "run", "--likelihood", "gaussian:2.5")
    out = tmp_path / "predictions.csv"
    assert pyro_bnn("predict", tmp_path / "run", table, "--out", out)[0] == 0
    assert [float(row["aleatoric_sd"]) for row in predictions_in(out)] == pytest.approx([2.5] * 60, rel=1e-5)


@pytest.mark.daily("mixture:2")  # `test_scores_are_in_the_units_of_the_target` trains with another one
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", "mixture:2", "poisson"])
def test_every_likelihood_of_numbers_is_trained_evaluated_and_predicts(pyro_bnn, tmp_path, likelihood):  # noqa: F811
    rows = [[*row[:-1], round(float(row[-1]))] for row in houses()]
    table, run, out = write_table(tmp_path / "counts.csv", rows), tmp_path / "run", tmp_path / "out.csv"
    trained(pyro_bnn, table, run, "--likelihood", likelihood)
    assert pyro_bnn("evaluate", run, "--num-samples", 5)[0] == 0
    code, _, err = pyro_bnn("predict", run, table, "--out", out, "--num-samples", 5)
    assert (code, "NLL" in err) == (0, True)
    for row in predictions_in(out):
        parts = float(row["aleatoric_sd"]) ** 2 + float(row["epistemic_sd"]) ** 2
        assert float(row["sd"]) ** 2 == pytest.approx(parts, rel=0.02)
        assert float(row["lower_90"]) <= float(row["mean"]) <= float(row["upper_90"])


# --- classification ---------------------------------------------------------------------------------------------------


def test_classes_are_predicted_from_a_table(pyro_bnn, tmp_path):  # noqa: F811
    rows = [[a, b, "dear" if float(price) > 210 else "cheap"] for a, b, _, _, price in houses(80)]
    table = write_table(tmp_path / "classes.csv", rows, ("area", "rooms", "price"))
    run, out = tmp_path / "run", tmp_path / "out.csv"
    said = trained(pyro_bnn, table, run, "--epochs", 300)
    assert "Target 'price' holds texts (2 different values): classification." in said
    code, text, err = pyro_bnn("evaluate", run)
    assert (code, err) == (0, "")
    assert "\nlogistic regression " in text
    scores = scores_in(run)
    assert scores["mean of 100 draws"]["accuracy"] > 0.75 > scores["baseline: shares of the classes"]["accuracy"]
    assert (run / "reliability.png").read_bytes().startswith(PNG)
    assert pyro_bnn("predict", run, table, "--out", out)[0] == 0
    for row in predictions_in(out):
        probs = {name: float(row[f"p({name})"]) for name in ("cheap", "dear")}
        assert sum(probs.values()) == pytest.approx(1, abs=1e-3)
        assert row["class"] == max(probs, key=probs.get)
        assert float(row["entropy"]) == pytest.approx(float(row["aleatoric"]) + float(row["epistemic"]), abs=2e-4)


@pytest.mark.parametrize(
    ("cells", "likelihood"),
    [
        (["a", "b", "a"], "categorical"),
        (["True", "False"], "categorical"),
        (["0", "1", "1"], "categorical"),
        (["3", "8", "5"], "categorical"),
        ([str(i) for i in range(30)], "gaussian"),
        (["1.0", "0.0", "1.0"], "gaussian"),
        (["$142.92", "$20", "-3"], "gaussian"),
        (["€142.92", "20 €"], "categorical"),
        (["€142.92", "$20"], "categorical"),
        (["€142.92", "none"], "categorical"),
    ],
)
def test_the_kind_of_target_is_guessed_and_said(cells, likelihood):
    found, reason = guessed(cells_of(*cells, name="y"))
    assert found == likelihood
    are_few_numbers = likelihood == "gaussian" and len({*cells}) <= MOST_GUESSED_CLASSES
    assert ("classification" in reason, "(for classes" in reason) == (likelihood == "categorical", are_few_numbers)


# --- reading and encoding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("separator", "ending"), [(",", ".csv"), (";", ".csv"), ("\t", ".tsv"), ("|", ".txt")])
def test_separators_are_found(tmp_path, separator, ending):
    table = read_table(write_table(tmp_path / f"t{ending}", [[1, "a b"], [2, "c"]], ("x", "y"), separator))
    assert columns_of(table) == {"x": ["1", "2"], "y": ["a b", "c"]}


def test_a_byte_order_mark_blank_lines_quotes_and_missing_values_are_understood(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf"x","y, z"\r\n1, NA \r\n\r\n?,"a, b"\r\n')
    assert columns_of(read_table(path)) == {"x": ["1", None], "y, z": [None, "a, b"]}


def test_parquet_gives_the_same_cells(tmp_path):
    frame = pd.DataFrame({"x": [0.1, float("nan")], "n": [1, 2], "t": ["a", None], "b": [True, False]})
    frame.to_parquet(tmp_path / "t.parquet")
    found = columns_of(read_table(tmp_path / "t.parquet"))
    assert found == {"x": ["0.1", None], "n": ["1", "2"], "t": ["a", None], "b": ["True", "False"]}


def test_the_index_that_pandas_writes_is_no_column(tmp_path):
    path = write_table(tmp_path / "t.csv", [[0, 5, 1], [1, 6, 2]], ("", "x", "y"))
    assert read_table(path).names == ["x", "y"]


def test_huge_whole_numbers_are_numbers():
    assert cells_of("1" + 30 * "0", "2").numbers()[0].tolist() == [1e30, 2.0]


@pytest.mark.daily(";*")
@pytest.mark.parametrize(("separator", "ending"), [(";", ".csv"), ("\t", ".tsv")])
def test_decimal_commas_are_read_as_numbers_and_said(pyro_bnn, tmp_path, separator, ending):  # noqa: F811
    rows, runs_of = houses(), {}
    with_commas = [[cell.replace(".", ",") if isinstance(cell, str) else cell for cell in row] for row in rows]
    for name, cells in (("points", rows), ("commas", with_commas)):
        table = write_table(tmp_path / f"{name}{ending}", cells, NAMES, separator)
        out = trained(pyro_bnn, table, tmp_path / name)
        said = "Numbers in 'area', 'price' are read as in this example: 1234,5 is 1234.5."
        assert (said in out) == (name == "commas")
        runs_of[name] = runs.read_facts(tmp_path / name)
    for one, other in zip(*(facts.table.features for facts in runs_of.values()), strict=True):
        assert replace(one, written="") == replace(other, written="")
    assert replace(runs_of["commas"].target, written="") == runs_of["points"].target
    out = tmp_path / "out.csv"
    means = []
    for name in ("points", "commas"):  # either form of new rows, whatever that of the run
        code, _, err = pyro_bnn("predict", tmp_path / "commas", tmp_path / f"{name}{ending}", "--out", out, "--force")
        assert (code, "Scores of 60 rows" in err) == (0, True)
        means.append([row["mean"] for row in predictions_in(out)])
    assert means[0] == means[1]


@pytest.mark.parametrize(
    ("texts", "numbers", "written"),
    [
        (["1,5", "2", None, "-3,5e2"], [1.5, 2.0, np.nan, -350.0], "1234,5"),
        (["1.234,5", "2,5", "999", "1.234"], [1234.5, 2.5, 999.0, 1234.0], "1.234,5"),
        (["1,234.5", "2.5", "1,234,567"], [1234.5, 2.5, 1234567.0], "1,234.5"),
        (["1 234,5", "2,5"], [1234.5, 2.5], "1 234,5"),
        (["1'234.5", "2.5"], [1234.5, 2.5], "1 234.5"),
        (["1e5", "-.5", "2.", "+3"], [1e5, -0.5, 2.0, 3.0], ""),
        (["1.234", "2.5"], [1.234, 2.5], ""),
        (["0,123", "0,456"], [0.123, 0.456], "1234,5"),  # no thousand begins with 0
        (["1_1", "12_1"], None, None),  # codes, though Python reads 11 and 121
        (["0x10", "x"], None, None),
        (["a,1", "b,2"], None, None),
    ],
)
@pytest.mark.parametrize("separator", [",", ";"])
def test_what_is_a_number(texts, numbers, written, separator):
    found = cells_of(*texts, separator=separator).numbers()
    if numbers is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found[0], numbers)
        assert found[1] == written


def test_a_comma_before_three_digits_may_be_of_two_kinds():
    """A comma groups thousands or is the decimal separator; if commas also separate cells, the file is ambiguous."""
    with pytest.raises(
        ValueError, match=r"such as '1,234', which may be written as in 1234,5 or as in 1,234\.5; write"
    ):
        cells_of("1,234", "2").numbers()
    assert cells_of("1,234", "2", separator=";").numbers()[0].tolist() == [1.234, 2.0]
    assert cells_of("1,234", "2").numbers("1,234.5")[0].tolist() == [1234.0, 2.0]  # as in training
    assert cells_of("1.234", "2").numbers("1.234,5")[0].tolist() == [1234.0, 2.0]
    assert cells_of("53.483", "2.5").numbers("1234,5")[0].tolist() == [53.483, 2.5]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["1", "2", "1_1"], "holds numbers, but also texts: '1_1' in row 3"),
        (["1", "2", "-nan"], "holds numbers, but also texts: '-nan' in row 3"),
        (["1,5", "2,5", "many"], "holds numbers, but also texts: 'many' in row 3"),
        (["1,5", "2,5", "2.5"], "written in several ways, such as '1,5', '2.5'|written in several ways, such as '2,5'"),
        (["1", "2", "Infinity"], "holds an infinite number in row 3"),
    ],
)
def test_cells_among_numbers_that_are_none_are_named(texts, message):
    with pytest.raises(ValueError, match=message):
        cells_of(*texts).numbers()


def test_codes_with_underscores_are_categories(pyro_bnn, tmp_path):  # noqa: F811
    rows = [[["1_1", "12_1", "1_2"][i % 3], *row[1:]] for i, row in enumerate(houses())]
    trained(pyro_bnn, write_table(tmp_path / "t.csv", rows, ("1_0", *NAMES[1:])), tmp_path / "run")
    code = runs.read_facts(tmp_path / "run").table.features[0]
    assert (code.name, code.categories) == ("1_0", ["12_1", "1_1", "1_2"])


def config_of(pyro_bnn, table, run, *options):  # noqa: F811
    trained(pyro_bnn, table, run, *options)
    return runs.load_config(run)


def test_inputs_are_standardised_by_the_training_rows(pyro_bnn, table, tmp_path):  # noqa: F811
    data = sources.load(config_of(pyro_bnn, table, tmp_path / "run"))
    numbers = data.x_train[:, :2]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(2), atol=1e-12, rtol=0)
    torch.testing.assert_close(numbers.std(0, correction=0), torch.ones(2))
    assert float(data.x_test[:, :2].mean(0).abs().max()) > 1e-3  # these have means of their own
    assert set(data.x_train[:, 2:].unique().tolist()) == {0.0, 1.0}
    assert bool((data.x_train[:, 2:5].sum(1) == 1).all())


@pytest.mark.parametrize("labels", [None, [i % 3 for i in range(40)], ["rare"] + 39 * ["common"]])
def test_rows_are_divided_once_for_all_and_each_class_is_trained_on(labels):
    training, testing = split_rows(40, 0.25, seed=3, labels=labels)
    assert sorted(training + testing) == list(range(40))
    assert abs(len(testing) - 10) <= 1
    assert (training, testing) == split_rows(40, 0.25, seed=3, labels=labels)
    assert testing != split_rows(40, 0.25, seed=4, labels=labels)[1]
    assert labels is None or {labels[i] for i in training} == {*labels}


def test_messages_on_files_in_the_current_folder_have_short_paths(pyro_bnn, tmp_path, monkeypatch):  # noqa: F811
    write_table(tmp_path / "t.csv", houses())
    monkeypatch.chdir(tmp_path)
    code, _, err = pyro_bnn("train", "t.csv", "--target", "pirce", "--out", "run")
    assert (code, err) == (2, "error: t.csv has no column 'pirce'; did you mean 'price'?\n")


def test_columns_that_never_change_are_left_out_and_said(pyro_bnn, tmp_path):  # noqa: F811
    rows = [[7, "same", number, 7000 - 3 * number, *row] for number, row in enumerate(houses())]
    table = write_table(tmp_path / "t.csv", rows, ("seven", "word", "number", "house_id", *NAMES))
    out = pyro_bnn("train", table, "--target", "price", "--out", tmp_path / "run", *QUICK, "--json")[1]
    assert "Columns left out, since each is the same in all training rows: 'seven', 'word'." in out
    name = "has the name of an identifier and a different number in each row"
    assert f"Column 'number' counts the rows and column 'house_id' {name}: they are left out" in out
    names = [f["name"] for f in json.loads((tmp_path / "run" / "data.json").read_text())["table"]["features"]]
    assert names == ["area", "rooms", "city", "garden"]


def test_features_are_chosen(pyro_bnn, table, tmp_path):  # noqa: F811
    for run, options in (("a", ("--features", "area, city")), ("b", ("--ignore", "rooms,garden"))):
        trained(pyro_bnn, table, tmp_path / run, *options)
        features = json.loads((tmp_path / run / "data.json").read_text())["table"]["features"]
        assert [feature["name"] for feature in features] == ["area", "city"]


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.daily("images", "test rows beside x")
@pytest.mark.parametrize(
    "kind", ["vectors", "images", "targets", "given test rows", "test rows beside x", "integers for numbers"]
)
def test_arrays_are_trained_on(pyro_bnn, tmp_path, kind):  # noqa: F811
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(60, 4, 4) if kind == "images" else (60, 3)).astype(np.float32)
    score = x.reshape(60, -1).sum(1)
    arrays, options = {"x": x, "y": np.where(score > 0, "up", "down")}, ()
    if kind == "targets":
        arrays["y"] = np.stack([score, 10 * x[:, 0]], 1)
    if kind == "integers for numbers":
        arrays["y"], options = np.round(10 * score).astype(int), ("--likelihood", "gaussian")
    if kind == "given test rows":
        arrays = {"x_train": x[:40], "y_train": score[:40] > 0, "x_test": x[40:], "y_test": score[40:] > 0}
    if kind == "test rows beside x":
        arrays = {"x": x[:40], "y": score[:40] > 0, "x_test": x[40:], "y_test": score[40:] > 0}
    path, run, out = tmp_path / "data.npz", tmp_path / "run", tmp_path / "out.csv"
    np.savez(path, **arrays)
    code, said, err = pyro_bnn("train", path, "--out", run, *QUICK, *options)
    assert (code, err) == (0, "")
    assert ("regression" if kind == "targets" else "40 rows" if "test" in kind else "rows") in said
    code, said, err = pyro_bnn("evaluate", run, "--num-samples", 5)
    assert (code, err) == (0, "")
    assert f"y of {20 if 'test' in kind else 12} test rows" in said
    code, _, err = pyro_bnn("predict", run, path, "--out", out, "--num-samples", 5)
    assert code == 0, err
    assert ("Rows of `x` are predicted, not those of `x_test`." in err) == (kind == "test rows beside x")
    names = predictions_in(out)[0].keys()
    assert ("mean_1" in names) == (kind == "targets")
    assert ("p(up)" in names) == (kind in ("vectors", "images"))


# --- other commands ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_other_commands_take_such_runs(pyro_bnn, table, tmp_path):  # noqa: F811
    run, small = tmp_path / "run", tmp_path / "small"
    trained(pyro_bnn, table, run)
    code, out, err = pyro_bnn("weights", run)
    assert (code, err) == (0, "")
    assert "net.0.weight" in out
    code, out, err = pyro_bnn("prune", run, "--fractions", "0,.5", "--keep", 0.5, "--out", small, "--num-samples", 5)
    assert (code, err) == (0, "")
    rmse = json.loads((run / "pruning.json").read_text())["report"]["rows"][0]["rmse"]
    assert pyro_bnn("evaluate", run, "--num-samples", 5)[0] == 0
    assert rmse == pytest.approx(scores_in(run)["mean of 5 draws"]["rmse"], rel=1e-5)  # in the target's units
    assert pyro_bnn("evaluate", small, "--num-samples", 5)[0] == 0


def test_a_file_that_moved_is_found_by_data_and_one_that_changed_is_refused(pyro_bnn, table, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    trained(pyro_bnn, table, run)
    moved = table.rename(tmp_path / "moved.csv")
    code, _, err = pyro_bnn("evaluate", run)
    assert (code, "pass the file with the run's data (--data FILE)" in err) == (2, True)
    assert pyro_bnn("evaluate", run, "--data", moved, "--num-samples", 5)[0] == 0
    moved.write_text(moved.read_text().replace("Oslo", "Rome", 1))
    code, _, err = pyro_bnn("evaluate", run, "--data", moved)
    assert (code, "its rows have changed" in err) == (2, True)


def test_no_rows_are_set_aside_if_none_are_wanted(pyro_bnn, table, tmp_path):  # noqa: F811
    assert "Trained on 60 rows" in trained(pyro_bnn, table, tmp_path / "run", "--test-fraction", 0)
    code, _, err = pyro_bnn("evaluate", tmp_path / "run")
    assert (code, "all rows were trained on (--test-fraction 0)" in err) == (2, True)
