"""Tables without a line of names, and tables with few rows."""

import numpy as np
import pytest

from pyro_bnn.app import sources
from pyro_bnn.app.own.reading import read_table

from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_messy_tables import QUICK
from .test_tables import columns_of, predictions_in

HEADLESS = ("--target", "c3", "--no-header", *QUICK)


def headless(path, num_rows=40, separator=" "):
    """A table of two columns of numbers and their sum, as `numpy.savetxt` writes it."""
    x = np.random.default_rng(0).normal(size=(num_rows, 2)).round(2)
    np.savetxt(path, np.column_stack([x, x.sum(1)]), delimiter=separator, fmt="%.2f")
    return path


@pytest.mark.parametrize("ending", [".data", ".dat", ".txt", ".csv"])
@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("1.5,a,3", ["1.5", "a", "3"]),
        ("1.5;a;3", ["1.5", "a", "3"]),
        ("1.5\ta\t3", ["1.5", "a", "3"]),
        (" 1.5  a 3", ["1.5", "a", "3"]),
        ("1,5;2,5;3,5;4", ["1,5", "2,5", "3,5", "4"]),  # decimal commas
        ("1,2,3", ["1", "2", "3"]),
    ],
)
def test_the_separator_is_found(tmp_path, ending, line, cells):
    path = tmp_path / f"t{ending}"
    path.write_text(f"{line}\n{line}\n")
    found = columns_of(read_table(path, header=False))
    assert found == {f"c{number}": [cell, cell] for number, cell in enumerate(cells, 1)}


def test_new_rows_are_read_as_in_training(pyro_bnn, tmp_path):  # noqa: F811
    table, run = headless(tmp_path / "t.data"), tmp_path / "run"
    assert pyro_bnn("train", table, "--out", run, *HEADLESS)[0] == 0
    assert pyro_bnn("evaluate", run)[0] == 0
    new, out = tmp_path / "new.data", tmp_path / "out.csv"
    for text, num_rows in (("1 2\n3 4\n", 2), ("1 2 ?\n", 1), ("1 2 3\n", 1)):  # with and without the target
        new.write_text(text)
        assert pyro_bnn("predict", run, new, "--out", out, "--force")[0] == 0
        assert len(predictions_in(out)) == num_rows
    new.write_text("1\n2\n")
    code, _, err = pyro_bnn("predict", run, new)
    assert (code, "has 1 column, and the table of training had 3; without a header" in err) == (2, True)


def test_a_missing_header_is_noticed(pyro_bnn, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    code, _, err = pyro_bnn("train", headless(tmp_path / "t.data"), "--out", run)
    remedy = "or train with --no-header, which names the columns c1, c2 and so on."
    assert (code, f"its first line holds numbers; put a line of names above it, {remedy}" in err) == (2, True)
    code, _, err = pyro_bnn("train", tmp_path / "t.data", "--target", 3, "--no-header", "--out", run)
    assert (code, "has no column '3'; without a header, its columns are c1 to c3." in err) == (2, True)
    (tmp_path / "iris.data").write_text("5.1,3.5,setosa\n4.9,3.0,virginica\n")
    for target in ((), ("--target", "species")):
        code, _, err = pyro_bnn("train", tmp_path / "iris.data", *target, "--out", run)
        hint = "If its first line is data, pass --no-header; the columns are then named c1, c2 and so on."
        assert (code, hint in err) == (2, True)


def test_a_short_line_is_named_by_its_place(tmp_path):
    (tmp_path / "t.data").write_text("1,2\n3\n")
    with pytest.raises(ValueError, match=r"has 2 cells in line 1, but 1 in line 2; correct line 2\."):
        read_table(tmp_path / "t.data", header=False)


def test_classes_in_powers_of_ten_have_short_names(pyro_bnn, tmp_path):  # noqa: F811
    table = tmp_path / "t.data"
    np.savetxt(table, np.column_stack([np.random.default_rng(0).normal(size=60), np.arange(60) % 3]))
    code, out, _ = pyro_bnn("train", table, "--target", "c2", "--no-header", "--out", tmp_path / "run", *QUICK)
    assert (code, "Target 'c2' holds whole numbers with 3 different values: classification" in out) == (0, True)
    rows = pyro_bnn("predict", tmp_path / "run", table)[1]
    assert {"p(0)", "p(1)", "p(2)"} < {*rows.splitlines()[0].split(",")}


@pytest.mark.parametrize(("num_rows", "is_few"), [(40, True), (50, False)])
def test_few_rows_are_warned_of(pyro_bnn, tmp_path, num_rows, is_few):  # noqa: F811
    code, out, _ = pyro_bnn("train", headless(tmp_path / "t.data", num_rows), "--out", tmp_path / "run", *HEADLESS)
    said = "Warning: 32 rows to train on and 8 test rows are very few: neither the predictions nor their scores are"
    assert (code, said in out) == (0, is_few)


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="there are too few rows to learn from: at least 10 are needed, got 9"):
        sources.split_rows(9, 0.2, seed=0)
