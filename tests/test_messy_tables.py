"""Real-world tables: missing values, dates, texts of many values, identifiers, rows ordered in time."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.app import runs, sources
from pyro_bnn.app.own.reading import read_table
from pyro_bnn.app.starting import new_config

from .folders import train_run
from .own_data import NAMES, QUICK, columns_of, houses, predictions_in, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture


def config_of(path, **settings):
    return new_config(str(path), None, {"target": "y", **settings})[0]


def loaded(path, **settings):
    """The data of a run on a table."""
    return sources.load(config_of(path, **settings))


def table_of(tmp_path, num_rows=40, **columns):
    """A table with a number `a`, a target `y` of 2 a, and more columns."""
    a = np.random.default_rng(0).normal(size=num_rows)
    frame = pd.DataFrame({"a": a, **columns, "y": 2 * a})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def kinds_in(data):
    return {feature.name: feature.kind for feature in data.facts.table.features}


def test_rows_are_encoded_from_the_file_of_a_run_as_in_training(tmp_path):
    """The file holds numbers and names, no code, and gives bit for bit the same inputs."""
    days = pd.date_range("2024-01-01", periods=220, freq="7h").strftime("%d.%m.%Y %H:%M")
    columns = {
        "b": [None if i % 4 == 0 else i % 7 for i in range(220)],
        "c": ["", *"pqr" * 73],
        "t": [f"{i // 2} street" for i in range(220)],
        "n": [f"{1000.5 + i % 9:,.1f}" for i in range(220)],
        "day": days,
    }
    config = config_of(table_of(tmp_path, 220, **columns), epochs=1)
    data = sources.load(config)
    assert [*kinds_in(data).values()] == ["number", "number", "category", "text", "number", "date"]
    train_run(config, data, tmp_path / "run")
    again = sources.load(config, facts=runs.read_facts(tmp_path / "run"))
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(data, name), getattr(again, name))


# --- missing values ---------------------------------------------------------------------------------------------------


def test_missing_values_become_the_mean_and_one_more_input_says_so(tmp_path):
    b = [None if i % 4 == 0 else float(i % 7) for i in range(40)]
    c = [None if i % 5 == 0 else "pq"[i % 2] for i in range(40)]
    data = loaded(table_of(tmp_path, b=b, c=c), test_fraction=0.0)
    assert data.facts.input_shape == [1 + 2 + 3]
    _, numbers, lacks_b, first, second, lacks_c = data.x_train.T
    assert lacks_b.tolist() == [float(i % 4 == 0) for i in range(40)]
    assert lacks_c.tolist() == [float(i % 5 == 0) for i in range(40)]
    assert not numbers[lacks_b == 1].any()
    assert float(numbers[lacks_b == 0].mean()) == pytest.approx(0, abs=1e-6)
    assert float(numbers[lacks_b == 0].std(correction=0)) == pytest.approx(1)
    assert (first + second).tolist() == (1 - lacks_c).tolist()
    said = "Missing values in 'b', 'c' become the mean (numbers and dates) or zeros (texts). One more input marks them."
    assert said in data.notes


def test_rows_without_the_target_are_left_out_and_said(tmp_path):
    path = table_of(tmp_path)
    frame = pd.read_csv(path)
    frame.loc[[3, 8], "y"] = np.nan
    frame.to_csv(path, index=False)
    data = loaded(path)
    assert len(data.x_train) + len(data.x_test) == 38
    assert "Rows left out because they lack the target: 2 (lines 5, 10)." in data.notes


def test_new_rows_may_lack_what_rows_of_training_lacked(pyro_bnn, tmp_path):  # noqa: F811
    rows = houses()
    for i in range(0, 60, 6):
        rows[i][1] = ""
    run, new, out = tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv"
    options = ("--target", "price", "--out", run, *QUICK)
    assert pyro_bnn("train", write_table(tmp_path / "t.csv", rows), *options)[0] == 0
    write_table(new, [[*row[:1], "", *row[2:]] for row in houses(3)])
    assert pyro_bnn("predict", run, new, "--out", out)[0] == 0
    assert len(predictions_in(out)) == 3
    code, _, err = pyro_bnn("predict", run, write_table(new, [["", *row[1:]] for row in houses(2)] + houses(2)))
    assert (code, "lacks values in column 'area'" in err, "but training lacked none" in err) == (2, True, True)
    write_table(new, [["", *row[1:]] for row in houses(2)] + [[*row[:1], "", *row[2:]] for row in houses(3)])
    assert pyro_bnn("predict", run, new, "--out", out, "--force", "--drop-missing")[0] == 0
    assert [row["row"] for row in predictions_in(out)] == ["3", "4", "5"]


def test_evaluate_names_no_option_that_it_lacks(pyro_bnn, tmp_path):  # noqa: F811
    path, run = write_table(tmp_path / "t.csv", houses()), tmp_path / "run"
    assert pyro_bnn("train", path, "--target", "price", "--out", run, *QUICK)[0] == 0
    rows = houses()
    rows[4][1] = ""
    write_table(path, rows)
    for command in ("evaluate", "report", "prune"):
        code, _, err = pyro_bnn(command, run)
        assert (code, "--drop-missing" in err, "its rows have changed" in err) == (2, False, True), err


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%S"])
def test_dates_become_days_and_times_of_year_and_week(tmp_path, written):
    days = pd.date_range("2022-11-20", periods=40, freq="13D")
    data = loaded(table_of(tmp_path, day=days.strftime(written)), test_fraction=0.0)
    assert kinds_in(data) == {"a": "number", "day": "date"}
    inputs = data.x_train[:, 1:]
    assert inputs.shape == (40, 5)  # days, and sines and cosines of year and week; the time of day is always the same
    steps = inputs[:, 0].diff()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-4, atol=1e-5)
    assert torch.allclose(inputs.mean(0), torch.zeros(5), atol=1e-5)
    year = data.facts.table.features[1]
    assert year.written == {"%d": "day first", "%m": "month first"}.get(written[:2], "year first")


def test_the_time_of_day_is_an_input_where_it_changes(tmp_path):
    times = pd.date_range("2024-01-01", periods=40, freq="7h")
    assert loaded(table_of(tmp_path, t=times.strftime("%Y-%m-%d %H:%M"))).facts.input_shape == [1 + 7]


def test_new_dates_are_read_as_in_training(tmp_path):
    """03/04 may be in March or April; the training rows decide which."""
    days = pd.date_range("2024-01-01", periods=40, freq="5D")
    path = table_of(tmp_path, day=days.strftime("%d/%m/%Y"))
    config = config_of(path)
    facts = sources.load(config).facts
    new = tmp_path / "new.csv"
    new.write_text("a,day\n0,03/04/2024\n0,02/01/2024\n")
    other = tmp_path / "other.csv"
    other.write_text("a,day\n0,2024-04-03\n0,2024-01-02\n")
    samples = [sources.read_sample(config, facts, file).x for file in (new, other)]
    assert torch.equal(*samples)
    assert float(samples[0][0, 1]) > float(samples[0][1, 1])


def test_the_latest_rows_are_set_aside_if_that_is_wanted(tmp_path):
    order = np.random.default_rng(1).permutation(40)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(order, unit="D")
    path = table_of(tmp_path, day=days.strftime("%Y-%m-%d"), **{"the day": days.strftime("%Y-%m-%d")})
    said = "to test on the latest rows, pass --split-by 'the day'."
    assert any(said in note for note in loaded(path, ignore=("day",)).notes)
    data = loaded(path, split_by="day", ignore=("the day",))
    assert "Test rows: 8, from 2024-02-02; dates read year first." in data.notes
    assert data.facts.columns[1].use.endswith("test rows: 8, from 2024-02-02; dates read year first")
    assert not any("--split-by" in note for note in data.notes)
    assert len(data.x_test) == 8
    assert float(data.x_test[:, 1].min()) > float(data.x_train[:, 1].max())
    data = loaded(path, split_by="day", ignore=("day", "the day"))  # a column need not be an input
    a = torch.tensor(pd.read_csv(path)["y"][order >= 32].to_numpy())
    torch.testing.assert_close(
        data.facts.target.mean[0] + data.facts.target.scale[0] * data.y_test[:, 0].double(), a, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("column", "message"), [("c", "must hold a number or a date in each row"), ("no", "has no column")]
)
def test_rows_are_split_only_by_what_can_be_ordered(tmp_path, column, message):
    path = table_of(tmp_path, c=["p", "q"] * 20)
    with pytest.raises(ValueError, match=message):
        loaded(path, split_by=column)


# --- texts and identifiers --------------------------------------------------------------------------------------------


def test_texts_of_many_values_become_numbers_in_which_like_texts_are_like(tmp_path):
    names = [f"{town} {i // 2}" for i in range(120) for town in ("Lima north", "Oslo harbour", "Rome centre")]
    data = loaded(table_of(tmp_path, len(names), place=names), test_fraction=0.0)
    assert kinds_in(data)["place"] == "text"
    assert "Texts in 'place' have many values: their letters become 32 numbers." in data.notes
    inputs = data.x_train[:, 1:]
    assert inputs.shape == (360, 32)
    nearest = (torch.cdist(inputs, inputs) + 1e9 * torch.eye(360)).argmin(1)
    assert (nearest % 3 == torch.arange(360) % 3).double().mean() > 0.95
    sample = sources.read_sample(config_of(tmp_path / "t.csv"), data.facts, _new(tmp_path, "a,place\n0,Turin 3\n"))
    assert bool(sample.x.isfinite().all())  # a text that training did not have is no mistake


def _new(tmp_path, text):
    (tmp_path / "new.csv").write_text(text)
    return tmp_path / "new.csv"


@pytest.mark.parametrize(
    ("values", "is_left_out"),
    [
        (list(range(40)), True),
        (list(range(1, 41)), True),
        ([i for i in range(60) if i % 3], True),  # rows were dropped
        ([f"h{i}" for i in range(40)], True),
        ([1980 + i for i in range(40)], False),  # years
        ([2 * i for i in range(40)], True),
        ([100 * i for i in range(40)], False),
        ([i // 2 for i in range(40)], False),
        ([i + 0.5 for i in range(40)], False),
        ([39 - i for i in range(40)], True),
        ([10_000 + 7 * i % 40 for i in range(40)], True),  # consecutive numbers in another order
        ([10_000 + 7 * i % 41 for i in range(40)], False),
    ],
)
def test_columns_that_count_or_name_the_rows_are_left_out_unless_they_are_wanted(tmp_path, values, is_left_out):
    path = table_of(tmp_path, k=values)
    data = loaded(path)
    assert ("k" in kinds_in(data)) != is_left_out
    notes = [note for note in data.notes if note.startswith("Column 'k'")]
    assert len(notes) == is_left_out
    assert all(note.endswith("To predict from it, name it in --features.") for note in notes)
    assert data.facts.table.identifiers == ["k"] * is_left_out
    assert "k" in kinds_in(loaded(path, features=("a", "k")))


def test_columns_that_training_left_out_are_copied_and_others_named(pyro_bnn, tmp_path):  # noqa: F811
    names = ("patient", "number", "same", "alike", "equal", *NAMES)
    rows = [[f"Ann {i}", str(i), *"xxx", *row] for i, row in enumerate(houses())]
    table, run, out = write_table(tmp_path / "t.csv", rows, names), tmp_path / "run", tmp_path / "out.csv"
    start = ("train", table, "--target", "price", "--method", "svi", "--epochs", 1)
    _, said, _ = pyro_bnn(*start, "--out", run)
    assert "Columns left out, since each is the same in all training rows: 'same', 'alike', 'equal'.\n" in said
    only = (
        "Column 'patient' has a different text in each row and column 'number' counts the rows: they are left out, and"
    )
    assert f"{only} `predict` only copies them." in " ".join(said.split())
    new = write_table(tmp_path / "new.csv", [["extra", *row] for row in rows[:3]], ("comment", *names))
    code, _, err = pyro_bnn("predict", run, new, "--out", out)
    assert code == 0
    assert [(row["patient"], row["number"]) for row in predictions_in(out)] == [(f"Ann {i}", f"{i}") for i in range(3)]
    assert (
        "Not used and not copied: 'comment', 'same', 'alike', 'equal'. To copy columns, name all of them in --keep.\n"
        in err
    )
    assert pyro_bnn("predict", run, new, "--keep", "comment,same", "--out", out, "--force")[0] == 0
    assert (row := predictions_in(out)[0])["comment"] == "extra"
    assert "patient" not in row


def test_texts_that_all_differ_are_categories_in_a_small_table(tmp_path):
    """Ten texts are too few to tell names from categories."""
    path = tmp_path / "t.csv"
    pd.DataFrame({"c": [*"qrstuvwxyz"], "y": np.arange(10.0)}).to_csv(path, index=False)
    config = config_of(path, epochs=1)
    data = loaded(path)
    assert kinds_in(data) == {"c": "category"}
    train_run(config, data, tmp_path / "run")
    assert bool((data.x_train.sum(1) == 1).all())


def test_a_column_may_say_no_more_than_where_it_lacks_a_value(tmp_path):
    """All rows that have a value have the same one, so only the indicator is an input."""
    path = table_of(tmp_path, k=[5 if i % 3 else None for i in range(40)])
    data = loaded(path, test_fraction=0.0)
    assert data.x_train[:, 1:].tolist() == [[float(i % 3 == 0)] for i in range(40)]


def test_an_index_from_which_rows_were_dropped_is_left_out_and_said(tmp_path):
    path = table_of(tmp_path)
    frame = pd.read_csv(path)
    frame[frame["a"] > -1].to_csv(path)  # with its index
    data = loaded(path)
    assert list(kinds_in(data)) == ["a"]
    assert f"The first column of {path} has no name and holds row numbers: it is left out." in data.notes


def test_a_column_without_values_is_left_out_and_said(tmp_path):
    data = loaded(table_of(tmp_path, k=[None] * 40))
    assert list(kinds_in(data)) == ["a"]
    assert "Column 'k' holds no value: it is left out." in data.notes


# --- cells ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [("{:.1f}", ".", ","), ("{:,.1f}", "", "")])
def test_numbers_with_commas_in_quotes_are_numbers_and_said(tmp_path, texts):
    form, old, new = texts
    values = 1500 + 100 * np.arange(40) % 700 + 0.5
    k = [form.format(value).replace(old, new) if old else form.format(value) for value in values]
    data = loaded(table_of(tmp_path, k=k), test_fraction=0.0)
    assert kinds_in(data)["k"] == "number"
    feature = data.facts.table.features[1]
    assert feature.mean[0] == pytest.approx(values.mean())
    example = "1234,5" if new else "1,234.5"
    assert f"Numbers in 'k' are read as in this example: {example} is 1234.5." in data.notes


def test_new_rows_whose_numbers_are_written_otherwise_are_read_and_said(tmp_path):
    config = config_of(table_of(tmp_path, k=[1000.5 + i for i in range(40)]))
    facts = sources.load(config).facts
    plain = sources.read_sample(config, facts, _new(tmp_path, "a,k\n0,1020.5\n"))
    other = sources.read_sample(config, facts, _new(tmp_path, 'a,k\n0,"1020,5"\n'))
    assert torch.equal(plain.x, other.x)
    assert other.notes == ("Numbers in 'k' are read as in this example: 1234,5 is 1234.5.",)
    assert plain.notes == ()


def test_line_breaks_within_cells_are_said(pyro_bnn, tmp_path):  # noqa: F811
    rows = houses()
    rows[4][2] = "Rome\n1,2,3"
    path, run = write_table(tmp_path / "t.csv", rows), tmp_path / "run"
    code, out, _ = pyro_bnn("train", path, "--target", "price", "--out", run, *QUICK)
    said = f"Cells of column 'city' of {path} hold line breaks, the first in line 6; if this is a mistake"
    assert (code, said in out) == (0, True)
    code, _, err = pyro_bnn("predict", run, path, "--out", tmp_path / "out.csv")
    assert (code, said in err) == (0, True)


def test_new_rows_with_an_unclosed_quote_are_refused(pyro_bnn, tmp_path):  # noqa: F811
    path, run = write_table(tmp_path / "t.csv", houses()), tmp_path / "run"
    assert pyro_bnn("train", path, "--target", "price", "--out", run, *QUICK)[0] == 0
    new = tmp_path / "new.csv"
    new.write_text(",".join(NAMES) + '\n60,3,Oslo,True,"150\n70,2,Oslo,True,150\n80,2,Rome,True,150\n')
    code, out, err = pyro_bnn("predict", run, new)
    assert (code, out, "a quotation mark is opened and never closed" in err) == (2, "", True)


@pytest.mark.parametrize("value", ["1e20", "-1e20", "1e12"])
def test_rows_far_from_those_of_training_are_predicted_with_a_warning(pyro_bnn, tmp_path, value):  # noqa: F811
    """In single precision the squares of the values would be infinite: sd = inf beside finite quantiles."""
    path, run = write_table(tmp_path / "t.csv", houses()), tmp_path / "run"
    assert pyro_bnn("train", path, "--target", "price", "--out", run, *QUICK)[0] == 0
    new = write_table(tmp_path / "new.csv", [*houses(2), [value, *houses()[0][1:]]])
    code, out, err = pyro_bnn("predict", run, new)
    said = "The number in column 'area' is far outside of the training data in line 4: do not trust these predictions"
    assert (code, out.count("\n"), said in err, "inf" in out, "nan" in out) == (0, 4, True, False, False)
    assert [line.split(",")[-1] for line in out.splitlines()] == ["outside", "", "", "area"]
    out = tmp_path / "out.csv"
    write_table(new, [*houses(2), [*houses()[0][:-1], value]])  # a target is not needed
    code, _, err = pyro_bnn("predict", run, new, "--out", out)
    assert (code, "No scores: the target 'price'" in err, "inf" in out.read_text()) == (0, True, False)


def test_a_number_whose_distance_from_those_of_training_overflows_is_far(tmp_path):
    config = config_of(table_of(tmp_path, k=[1e-3 * (i % 7) for i in range(40)]))
    facts = sources.load(config).facts
    sample = sources.read_sample(config, facts, _new(tmp_path, "a,k\n0,0\n0,-1e308\n"))
    assert bool(sample.x.isfinite().all())
    [note] = sample.notes
    assert note.startswith("The number in column 'k' is far outside of the training data in line 3: ")


def test_a_target_far_from_those_of_training_is_named_by_its_row_in_the_file(tmp_path):
    config = config_of(table_of(tmp_path))
    sample = sources.read_sample(config, sources.load(config).facts, _new(tmp_path, "a,y\n0,1\n0,\n0,1e20\n"))
    assert sample.y is None
    assert any("is much larger in row 3 than in training; correct it" in note for note in sample.notes)


@pytest.mark.parametrize("inputs", ["standardized", "raw"])
def test_arrays_far_from_those_of_training_are_refused(pyro_bnn, tmp_path, inputs):  # noqa: F811
    x = np.random.default_rng(0).normal(size=(40, 2))
    path, run = tmp_path / "data.npz", tmp_path / "run"
    np.savez(path, x=x, y=x[:, 0])
    assert pyro_bnn("train", path, "--inputs", inputs, "--out", run, *QUICK)[0] == 0
    x[3, 1] = 1e20
    np.savez(path, x=x)
    code, out, err = pyro_bnn("predict", run, path)
    assert (code, out, "too large, the first in row 4" in err) == (2, "", True)


def test_columns_may_be_separated_by_white_space(tmp_path):
    (tmp_path / "t.txt").write_text('a "b c"   y\n  1.5 2  3 \n4\t"x y" 6\n')
    assert columns_of(read_table(tmp_path / "t.txt")) == {"a": ["1.5", "4"], "b c": ["2", "x y"], "y": ["3", "6"]}
    (tmp_path / "t.txt").write_text("engine size\n1\n2\n")  # a column with a name of two words
    assert columns_of(read_table(tmp_path / "t.txt")) == {"engine size": ["1", "2"]}


WITHOUT = "Correct the table, or train without the column (pyro-bnn train --ignore frequency)."


@pytest.mark.parametrize(
    ("renamed", "hint"),
    [
        (("freq", "price"), "rename the column 'freq' if it is meant."),
        (("frequency_hz", "price"), "rename the column 'frequency_hz' if it is meant."),
        (("freq", "freque"), "rename the column 'freque' if it is meant."),  # the nearest
        (("f", "fr"), f"its columns are 'frequency_angle', 'f', 'fr'. {WITHOUT}"),  # either may be meant
        (("hertz", "price"), f"its columns are 'frequency_angle', 'hertz', 'price'. {WITHOUT}"),
    ],
)
def test_a_renamed_column_is_found_by_its_beginning(tmp_path, renamed, hint):
    table = read_table(write_table(tmp_path / "t.csv", [[1, 2, 3]], ("frequency_angle", *renamed)))
    with pytest.raises(ValueError, match=re.escape(f"has no column 'frequency'; {hint}") + "$"):
        table.require(["frequency", "frequency_angle"], is_typed=False)
