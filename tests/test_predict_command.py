"""`pyro-bnn predict`: a line for each row, in its order."""

import csv
import filecmp
import json
import re
import shutil

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.app import runs
from pyro_bnn.app.cli import main
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports.scores import in_units

from .own_data import NAMES, QUICK, houses, predictions_in, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on houses, made once."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [[f"h{number}", *row] for number, row in enumerate(houses())]
    table = write_table(folder / "houses.csv", rows, ("id", *NAMES))
    arguments = ["pyro-bnn", "train", table, "--target", "price", "--ignore", "id", "--out", folder / "run", *QUICK]
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(argument) for argument in arguments])
        torch.set_default_dtype(torch.float32)
        with pytest.raises(SystemExit) as stop:
            main()
        torch.set_default_dtype(before)
    assert not stop.value.code
    return folder


@pytest.fixture
def place(made, tmp_path):
    """A copy of the folder, to write into."""
    return shutil.copytree(made, tmp_path / "place")


def new_rows(path, num_rows=5, *, names=("id", *NAMES), **cells):
    """A table of other houses, in which columns hold other cells."""
    rows = [dict(zip(("id", *NAMES), [f"n{i}", *row], strict=True)) for i, row in enumerate(houses(num_rows, seed=9))]
    for name, cell in cells.items():
        rows[1][name] = cell
    return write_table(path, [[row[name] for name in names] for row in rows], names)


def test_rows_keep_their_order_and_their_identifiers(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv"), place / "out.csv"
    code, said, err = pyro_bnn("predict", place / "run", rows, "--out", out)
    assert (code, said) == (0, "")
    assert f"5 predictions in {out}." in err
    assert "Scores of 5 rows: RMSE" in err
    found = predictions_in(out)
    assert list(found[0]) == ["id", "mean", "sd", "aleatoric_sd", "epistemic_sd", "lower_90", "upper_90", "outside"]
    assert [row["id"] for row in found] == [f"n{i}" for i in range(5)]
    code, said, _ = pyro_bnn("predict", place / "run", rows)
    assert (code, said) == (0, out.read_text())  # to standard output if no file is named


def test_a_terminal_shows_an_aligned_and_rounded_table(pyro_bnn, place, monkeypatch):  # noqa: F811
    rows, out = new_rows(place / "new.csv"), place / "out.csv"
    pyro_bnn("predict", place / "run", rows, "--out", out)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for columns in (120, 60, 40):
        monkeypatch.setenv("COLUMNS", str(columns))
        printed = pyro_bnn("predict", place / "run", rows)[1]
        lines = printed.splitlines()
        assert max(map(len, lines)) <= columns
        assert len({len(line) for line in lines[:6]}) == 1  # all end at the same place
        assert "," not in printed
        assert "\\" not in printed
        assert ("aleatoric" in printed) == (columns > 40)
        assert ("2 more columns; --out FILE writes all." in printed) == (columns == 40)
        cells = torch.tensor([float(cell) for cell in re.findall(r"-?\d+\.?\d*", printed)])
        for row in predictions_in(out):
            exact = torch.tensor([float(row[name]) for name in ("mean", "sd", "upper_90")])
            assert bool(((cells - exact[:, None]).abs().amin(1) < 0.01 * exact.abs()).all())


def test_predictions_are_those_of_the_library_in_the_targets_units(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv", 4), place / "out.csv"
    assert pyro_bnn("predict", place / "run", rows, "--out", out, "--seed", 7, "--num-samples", 20)[0] == 0
    facts = runs.read_facts(place / "run")
    cells = {name: [row[index] for row in houses(4, seed=9)] for index, name in enumerate(NAMES)}
    area, rooms = (np.array(cells[name], dtype=float) for name in ("area", "rooms"))
    means, scales = ([getattr(f, part) for f in facts.table.features[:2]] for part in ("mean", "scale"))
    x = [(area - means[0]) / scales[0], (rooms - means[1]) / scales[1]]
    x += [[float(c == city) for c in cells["city"]] for city in ("Lima", "Oslo", "Rome")]
    x += [[float(str(g) == word) for g in cells["garden"]] for word in ("False", "True")]
    torch.set_default_dtype(torch.float32)
    model, posterior = runs.load_run(place / "run")
    torch.set_default_dtype(torch.float64)
    inputs = torch.tensor(np.array(x).T, dtype=torch.float32)
    expected = pb.predict(model, posterior, inputs, num_samples=20, seed=7, keep_draws=True)
    mean, scale = facts.target.mean[0], facts.target.scale[0]
    for name, value in {
        "mean": mean + scale * expected.mean,
        "sd": scale * expected.total.sqrt(),
        "lower_90": mean + scale * expected.quantile(0.05),
    }.items():
        found = torch.tensor([[float(row[name])] for row in predictions_in(out)])
        torch.testing.assert_close(found, value.double(), rtol=1e-5, atol=0.05)  # the sds are above 10


UNITS = [([5.0, -1.0], [10.0, 0.5]), ([11.0, 0.0], [1.0, 1.0]), ([0.0, 0.0], [1.0, 2.0]), ([0.0, 0.0], [1.0, 1.0])]


@pytest.mark.parametrize(("means", "scales"), UNITS)
def test_a_density_in_other_units_is_that_of_the_standardised_target_over_the_scale(means, scales):
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    likelihood = pb.GaussianLikelihood(0.3)
    model = pb.BayesianModel(torch.nn.Linear(3, 2), prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
    prediction = pb.predict(model, pb.MeanFieldGuide(model), x, y=y, num_samples=4, keep_draws=True, seed=0)
    target = Target("y", [], means, scales)
    own = in_units(prediction, target)
    draws = torch.distributions.Normal(  # by hand: p(y) = mean over draws of the product over outputs
        torch.tensor(target.mean) + torch.tensor(target.scale) * prediction.components.loc,
        torch.tensor(target.scale) * prediction.components.scale,
    )
    by_hand = draws.log_prob(own.targets).sum(-1).logsumexp(0) - np.log(4)
    torch.testing.assert_close(own.log_density, by_hand)
    torch.testing.assert_close(own.log_prob(own.targets), by_hand)
    has_jacobian = scales[0] * scales[1] != 1
    assert torch.allclose(prediction.log_density, by_hand) != has_jacobian  # without it, it is another number
    torch.testing.assert_close(own.mean, draws.mean.mean(0))
    torch.testing.assert_close(own.targets, torch.tensor(means) + torch.tensor(scales) * y)
    torch.testing.assert_close(own.total, draws.variance.mean(0) + draws.mean.var(0))


def test_targets_of_standard_deviation_one_are_predicted_around_their_mean(pyro_bnn, tmp_path):  # noqa: F811
    rows = [[index % 2, repr(10.0 + 2 * (index % 2))] for index in range(20)]
    table, run, out = write_table(tmp_path / "t.csv", rows, ("x", "y")), tmp_path / "run", tmp_path / "out.csv"
    assert pyro_bnn("train", table, "--target", "y", "--test-fraction", 0, "--out", run, *QUICK)[0] == 0
    target = runs.read_facts(run).target
    assert (target.mean, target.scale) == ([11.0], [1.0])
    assert pyro_bnn("predict", run, table, "--out", out)[0] == 0
    for row, (_, y) in zip(predictions_in(out), rows, strict=True):
        assert abs(float(row["mean"]) - float(y)) < 2
        assert float(row["lower_90"]) < float(row["mean"]) < float(row["upper_90"])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["", ""], "has no value in column 'rooms'; fill some in, or train without the column (pyro-bnn train"),
        (["", "3"], "leave those rows out with --drop-missing, or train without the column (pyro-bnn train --ignore"),
        (["3", "many", "4"], "replace these texts by numbers or empty cells, or train without the column (pyro-bnn"),
    ],
)
def test_remedies_name_options_that_there_are(pyro_bnn, place, cells, message):  # noqa: F811
    rows = [[*row[:1], cell, *row[2:]] for row, cell in zip(houses(), cells, strict=False)]
    code, _, err = pyro_bnn("predict", place / "run", write_table(place / "new.csv", rows))
    assert (code, message in err) == (2, True), err
    command = err[err.index("pyro-bnn train") :].rstrip(").\n").split()
    assert command == ["pyro-bnn", "train", "--ignore", "rooms"]
    assert err.count("--ignore") == 1


def test_rows_that_all_lack_some_value_are_refused_with_the_columns(pyro_bnn, place):  # noqa: F811
    first, second = houses(2)
    rows = write_table(place / "new.csv", [["", *first[1:]], [second[0], "", *second[2:]]])
    code, _, err = pyro_bnn("predict", place / "run", rows, "--drop-missing")
    assert (code, "lacks a value; fill some in, or train without the columns" in err) == (2, True)
    assert "(pyro-bnn train --ignore area,rooms)" in err


def test_intervals_of_several_levels_contain_each_other(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv"), place / "out.csv"
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", out, "--level", ".5,.9", "--keep", "city")
    assert code == 0
    assert re.findall("in [0-9]+ %", err) in ([], ["in 50 %", "in 90 %"])
    for row in predictions_in(out):
        ends = [float(row[name]) for name in ("lower_90", "lower_50", "mean", "upper_50", "upper_90")]
        assert ends == sorted(ends)
        assert row["city"] in ("Rome", "Oslo", "Lima")
        assert "id" not in row


def test_a_copied_column_that_is_named_like_a_prediction_gets_another_name(pyro_bnn, place):  # noqa: F811
    names = (*NAMES, "mean", "row", "mean (input)")
    rows = write_table(place / "new.csv", [[*row, "a", f"r{i}", "b"] for i, row in enumerate(houses(3))], names)
    out, plain = place / "out.csv", place / "plain.csv"
    assert pyro_bnn("predict", place / "run", rows, "--out", plain)[0] == 0
    assert pyro_bnn("predict", place / "run", rows, "--out", out, "--keep", "mean,row,mean (input)")[0] == 0
    with out.open() as file:
        header = next(csv.reader(file))
    assert header[:4] == ["mean (input) (input)", "row (input)", "mean (input)", "mean"]  # a copied one identifies rows
    assert len({*header}) == len(header)
    for found, expected in zip(predictions_in(out), predictions_in(plain), strict=True):
        number = int(expected.pop("row")) - 1
        assert expected.items() <= found.items()
        copied = [found[name] for name in ("mean (input) (input)", "row (input)", "mean (input)")]
        assert copied == ["a", f"r{number}", "b"]


def test_the_training_file_is_not_needed(pyro_bnn, place):  # noqa: F811
    (place / "houses.csv").unlink()
    assert pyro_bnn("predict", place / "run", new_rows(place / "new.csv"), "--out", place / "out.csv")[0] == 0


def test_rows_without_the_target_or_with_other_columns_are_predicted(pyro_bnn, place):  # noqa: F811
    rows = new_rows(place / "new.csv", names=("city", "garden", "rooms", "area"))
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", place / "out.csv")
    assert (code, "Scores" in err) == (0, False)
    other = new_rows(place / "other.csv", names=("id", *NAMES))
    assert pyro_bnn("predict", place / "run", other, "--out", place / "other-out.csv")[0] == 0
    means = [[row["mean"] for row in predictions_in(place / name)] for name in ("out.csv", "other-out.csv")]
    assert means[0] == means[1]


@pytest.mark.parametrize(
    ("num_rows", "message"), [(5, "No scores: column 'price'"), (2, "No scores: the target 'price' in")]
)
def test_targets_that_cannot_be_used_are_not_needed(pyro_bnn, place, num_rows, message):  # noqa: F811
    rows, out = new_rows(place / "new.csv", num_rows, price="dear"), place / "out.csv"
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", out)
    assert (code, message in err, "Scores of" in err) == (0, True, False)
    assert len(predictions_in(out)) == num_rows


@pytest.mark.parametrize(("options", "chunk"), [((), 2000), (("--drop-missing",), 1)])
def test_rows_that_lack_the_target_are_predicted_and_the_others_scored(
    pyro_bnn,  # noqa: F811
    place,
    monkeypatch,
    options,
    chunk,
):
    monkeypatch.setattr("pyro_bnn.app.reports.scores.CHUNK", chunk)
    rows, others, out = new_rows(place / "new.csv", price=""), place / "others.csv", place / "out.csv"
    lines = rows.read_text().splitlines()
    others.write_text("\n".join([*lines[:2], *lines[3:]]))
    found = {}
    for path in (rows, others):
        code, text, err = pyro_bnn("predict", place / "run", path, "--out", out, "--force", "--json", *options)
        assert (code, "Scores of 4 rows: RMSE" in err) == (0, True)
        assert ("Rows without the target 'price' are predicted, but not scored: 1." in err) == (path == rows)
        found[path] = (json.loads(text), predictions_in(out))
    assert [len(predictions) for _, predictions in found.values()] == [5, 4]
    assert found[rows][0]["scores"] == pytest.approx(found[others][0]["scores"], rel=1e-5)


def test_no_scores_are_told_where_no_row_has_the_target(pyro_bnn, place):  # noqa: F811
    rows = write_table(place / "new.csv", [[*row[:-1], ""] for row in houses(3)])
    code, out, err = pyro_bnn("predict", place / "run", rows)
    assert (code, out.count("\n"), "Scores of" in err) == (0, 4, False)
    assert f"No scores: no row of {rows} has the target 'price'." in err


def test_results_as_json(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv"), place / "out.csv"
    code, text, _ = pyro_bnn("predict", place / "run", rows, "--out", out, "--json")
    document = json.loads(text)
    assert (code, document["num_rows"], document["file"]) == (0, 5, str(out))
    assert document["scores"]["rmse"] > 0
    assert document["predictions"] is None
    code, text, err = pyro_bnn("predict", place / "run", rows, "--json")
    document = json.loads(text)  # one object, and nothing else
    assert (code, document["num_rows"], document["file"], "Scores of 5 rows" in err) == (0, 5, None, True)
    for listed, written in zip(document["predictions"], predictions_in(out), strict=True):
        assert listed.keys() == written.keys()
        assert listed["mean"] == pytest.approx(float(written["mean"]), rel=1e-8)
    code, text, _ = pyro_bnn("evaluate", place / "run", "--data", place / "houses.csv", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(text)["rows"]][1] == "mean of 100 draws"


def test_an_unseen_category_is_refused_or_counts_as_none(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv", city="Paris"), place / "out.csv"
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", out)
    assert (code, "holds categories that training did not have: column 'city' holds 'Paris'" in err) == (2, True)
    assert not out.exists()
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", out, "--allow-unseen")
    assert (code, "count as unknown: column 'city' holds 'Paris'" in err) == (0, True)
    assert len(predictions_in(out)) == 5


def test_rows_that_lack_a_value_are_refused_or_left_out(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv", rooms=""), place / "out.csv"
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", out)
    assert (code, "lacks values in column 'rooms', in 1 of 5 rows (the first is line 3)" in err) == (2, True)
    assert pyro_bnn("predict", place / "run", rows, "--out", out, "--drop-missing")[0] == 0
    assert [row["id"] for row in predictions_in(out)] == ["n0", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("options", "cells", "message"),
    [
        ({"names": ("id", "area", "city")}, {}, "has no columns 'rooms', 'garden'"),
        ({"names": ("id", "area")}, {}, "is not a table like the one that the run was trained on. Columns expected: "),
        ({}, {"area": "large"}, "holds numbers, but also texts: 'large' in line 3;"),
        ({"num_rows": 2}, {"area": "large"}, "must hold numbers, as in training, but holds texts such as 'large' in"),
    ],
)
def test_rows_that_do_not_fit_the_run_are_refused(pyro_bnn, place, options, cells, message):  # noqa: F811
    rows = new_rows(place / "new.csv", **options, **cells)
    code, out, err = pyro_bnn("predict", place / "run", rows, "--out", place / "out.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (place / "out.csv").exists()


def test_a_file_that_is_there_is_replaced_only_if_that_is_wanted(pyro_bnn, place):  # noqa: F811
    rows, out = new_rows(place / "new.csv"), place / "out.csv"
    out.write_text("mine")
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", out)
    assert (code, "exists; choose another --out, or pass --force" in err, out.read_text()) == (2, True, "mine")
    assert pyro_bnn("predict", place / "run", rows, "--out", out, "--force")[0] == 0
    assert len(predictions_in(out)) == 5
    code, _, err = pyro_bnn("predict", place / "run", rows, "--out", rows, "--force")
    assert (code, "is a file that the run needs" in err) == (2, True)
    for other, message in ((place, "got the folder"), (place / "no" / "out.csv", "in an existing folder")):
        code, _, err = pyro_bnn("predict", place / "run", rows, "--out", other)
        assert (code, message in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--level", "95"), "must be probabilities strictly between 0 and 1, got '95'; did you mean 0.95?"),
        (("--level", "1.5"), "must be probabilities strictly between 0 and 1, got '1.5'.\n"),
        (("--level", ""), "must be probabilities"),
        (("--num-samples", 1), "--num-samples must be at least 2"),
        (("--keep", "name"), "has no column 'name'"),
    ],
)
def test_mistakes_are_named(pyro_bnn, place, options, message):  # noqa: F811
    code, out, err = pyro_bnn("predict", place / "run", new_rows(place / "new.csv"), *options)
    assert (code, out, message in err) == (2, "", True)
    code, _, err = pyro_bnn("predict", place / "nowhere", place / "new.csv")
    assert (code, "holds no training run" in err) == (2, True)
    code, _, err = pyro_bnn("predict", place / "run", place / "no.csv")
    assert (code, "there is no file" in err) == (2, True)


def test_images_are_predicted_from_arrays(pyro_bnn, tmp_path):  # noqa: F811
    run, path, out = tmp_path / "run", tmp_path / "new.npz", tmp_path / "out.csv"
    assert pyro_bnn("train", "digits", "--epochs", 1, "--hidden", 8, "--out", run)[0] == 0
    images = pb.data.load_images("digits").x_test[:4].numpy()
    np.savez(path, x=images)
    assert pyro_bnn("predict", run, path, "--out", out)[0] == 0
    row = predictions_in(out)[0]
    assert sum(float(row[f"p({digit})"]) for digit in range(7)) == pytest.approx(1, abs=1e-3)
    np.savez(path, x=16 * images)
    code, _, err = pyro_bnn("predict", run, path)
    assert (code, "must be numbers in [0, 1], or bytes" in err) == (2, True)
    np.savez(path, x=images[:, :5])
    code, _, err = pyro_bnn("predict", run, path)
    assert (code, "must hold images of shape (N, 8, 8), got float32 of shape (4, 5, 8)" in err) == (2, True)


def test_rows_with_fewer_targets_than_the_run_are_refused(pyro_bnn, tmp_path):  # noqa: F811
    x = np.random.default_rng(0).normal(size=(20, 2))
    data, run, new, out = (tmp_path / name for name in ("data.npz", "run", "new.npz", "out.csv"))
    np.savez(data, x=x, y=np.stack([x[:, 0], 100 + x[:, 1]], 1))
    assert pyro_bnn("train", data, "--out", run, *QUICK)[0] == 0
    np.savez(new, x=x, y=x[:, :1])
    code, _, err = pyro_bnn("predict", run, new, "--out", out)
    assert (code, "must have shape (N, 2), as in training, got (20, 1)" in err, out.exists()) == (2, True, False)
    np.savez(new, x=x)
    assert pyro_bnn("predict", run, new, "--out", out)[0] == 0  # targets are not needed


@pytest.mark.parametrize("command", ["predict", "report"])
@pytest.mark.parametrize(
    "name", ["run/posterior.safetensors", "run/config.json", "run/manifest.json", "link.pt", "houses.csv"]
)
def test_an_output_in_the_place_of_a_runs_own_file_is_refused(pyro_bnn, place, command, name):  # noqa: F811
    """With --force too, through links, and for the table that the run was trained on."""
    run = place / "run"
    (place / "link.pt").symlink_to(run / "posterior.safetensors")
    table = shutil.copy(runs.load_config(run).dataset, place / "old.csv")
    out = runs.load_config(run).dataset if name == "houses.csv" else place / name
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    arguments = (new_rows(place / "new.csv"),) if command == "predict" else ()
    code, said, err = pyro_bnn(command, run, *arguments, "--num-samples", 2, "--out", out, "--force")
    assert (code, said, f"{out} is a file " in err) == (2, "", True)
    assert filecmp.cmp(table, runs.load_config(run).dataset, shallow=False)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    if command == "predict" or name == "houses.csv":  # one twin for reports, which take seconds
        assert pyro_bnn(command, run, *arguments, "--num-samples", 2, "--out", run / "mine.html")[0] == 0


def test_scores_of_rows_that_were_trained_on_say_so(pyro_bnn, place):  # noqa: F811
    old = [[f"h{number}", *row] for number, row in enumerate(houses())]
    num, run = json.loads((place / "run" / "data.json").read_text())["num_train"], place / "run"
    mixed = write_table(place / "mixed.csv", [["new", *houses(1, seed=9)[0]], *old], ("id", *NAMES))
    assert f"trained on {num} of these rows" in pyro_bnn("predict", run, mixed)[2]
    assert "trained on" not in pyro_bnn("predict", run, new_rows(place / "new.csv"))[2]
