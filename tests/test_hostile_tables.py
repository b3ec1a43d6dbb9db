"""Any fault of a table or of arrays is reported in one message, and no files are left behind."""

import io
import os
import signal
import sys

import numpy as np
import pytest

from pyro_bnn.app.own.arrays import read_arrays

from .own_data import NAMES, QUICK, houses, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture


def text(*lines):
    return "\n".join(lines).encode()


def edited(row, column, cell):
    """The houses with one cell changed."""
    rows = houses(20)
    rows[row][NAMES.index(column)] = cell
    return text(",".join(NAMES), *(",".join(map(str, row)) for row in rows))


def with_column(name, cells):
    """The houses with one column more."""
    rows = [[*row, next(cells)] for row in houses(20)]
    return text(",".join([*NAMES, name]), *(",".join(map(str, row)) for row in rows))


GOOD = text(",".join(NAMES), *(",".join(map(str, row)) for row in houses(20)))

MEMORY = io.BytesIO()
np.savez(MEMORY, x=np.zeros(2))
ARCHIVE = MEMORY.getvalue()

TABLES = {
    "empty": (b"", (), "is empty; pass a table with a line of names"),
    "blank": (b"\n\n  \n", (), "is empty"),
    "names only": (text("area,price"), (), "holds no rows"),
    "one row": (text("area,price", "1,2.5"), (), "there are too few rows to learn from: at least 10 are needed, got 1"),
    "no such target": (GOOD, ("--target", "rent"), "has no column 'rent'; its columns are 'area', 'rooms', 'city'"),
    "a typing error": (GOOD, ("--target", "pirce"), "has no column 'pirce'; did you mean 'price'?"),
    "a short form": (GOOD, ("--target", "pri"), "has no column 'pri'; did you mean 'price'?"),
    "capital letters": (GOOD, ("--target", "PRICE"), "has no column 'PRICE'; did you mean 'price'?"),
    "no such feature": (GOOD, ("--features", "area,size"), "has no column 'size'"),
    "no such ignored": (GOOD, ("--ignore", "size"), "has no column 'size'"),
    "target as feature": (GOOD, ("--features", "price,area"), "the target 'price' cannot be among --features"),
    "target ignored": (GOOD, ("--ignore", "price"), "the target 'price' cannot be among --ignore"),
    "all ignored": (GOOD, ("--ignore", "area,rooms,city,garden"), "has no column to predict 'price' from"),
    "no target": (GOOD, ("--target", ""), "--target must name the column to predict"),
    "two equal names": (text("a,a,price", "1,2,3"), (), "has two columns named 'a'; give them different names"),
    "no name": (text("a,,price", "1,5,3", "1,9,4"), (), "column 2 of"),
    "sep= and ends of Excel": (text("sep=;", "a;price;;", "1;x;;", "2;3;;", "3;4;;"), (), "'x' in line 3"),
    "no header": (text("1,2", "3,4", "5,6"), (), "its first line holds numbers; put a line of names above it"),
    "no header, spaces": (text("1 2.5", "3 4"), (), "its first line holds numbers; put a line of names above it"),
    "long line, spaces": (
        text("a price", "1 2", "3 4 5"),
        (),
        "2 cells in line 1, but 3 in line 3; correct line 3, or",
    ),
    "short line, spaces": (
        text("a b price", "1 2 3", "4 5"),
        (),
        "3 cells in line 1, but 2 in line 3; correct line 3.",
    ),
    "unclosed quote, spaces": (text("a price", '1 "2', "3 4"), (), "a quotation mark is opened and never closed;"),
    "ragged": (text("a,price", "1,2", "3,4,5"), (), "2 cells in line 1, but 3 in line 3; correct line 3, or quote"),
    "all lines longer": (text("a,price", "1,2,3", "4,5,6"), (), "has 2 cells in line 1, but 3 in line 2"),
    "short line": (text("a,b,price", "", '1,"2\n",3', "4,5"), (), "3 cells in line 1, but 2 in line 5; correct line"),
    "unclosed quote": (text("a,price", '1,"2', "3,4", "5,6"), (), "a quotation mark is opened and never closed"),
    "quote within a cell": (text("a,price", '"1"x,2', "3,4"), (), "because of line 2: ',' expected after"),
    "two bad columns": (
        edited(3, "area", "<10").replace(b",2,", b",two,", 1),
        (),
        (
            "(pyro-bnn train --ignore area,rooms):\n- column 'area' holds numbers, but also texts: '<10' in line 5; "
            "replace these texts by numbers (if '<10' is below a detection limit, often half of it: 5) or empty cells\n"
            "- column 'rooms' holds numbers, but also texts: 'two' in line "
        ),
    ),
    "not UTF-8": (
        "größe,price\n1,2\n".encode("latin-1"),
        (),
        "If it is in latin1, this command does so: iconv -f latin1",
    ),
    "not UTF-8, euro": (
        "a,price €\n1,2\n".encode("cp1252"),
        (),
        "If it is in cp1252, this command does so: iconv -f cp1252",
    ),
    "UTF-16": ("area,price\n1,2\n".encode("utf-16"), (), "is not text in UTF-8"),
    "workbook": (b"PK\x03\x04\x14\xe6", (), "table.csv is a workbook or an archive; save the sheet as"),
    "Parquet": (b"PAR1\x15\xe6", (), "table.csv is a Parquet file; rename it to table.parquet."),
    "gzip": (b"\x1f\x8b\x08\0", (), "is compressed by gzip; unpack it: gunzip -c "),
    "JSON": (b'[\n {"area": 1, "price": 2}]', (), "table.csv').to_csv('table-table.csv', index=False)` makes a table"),
    "arrays": (ARCHIVE, (), "table.csv is a file of arrays; rename it to table.npz."),
    "web page": (b"<!DOCTYPE html>\n<html>", (), "is a web page or XML; download the table itself"),
    "binary": (bytes(range(128)) * 4, (), "is not t"),
    "no value of the target": (
        with_column("none", iter([""] * 20)),
        ("--target", "none"),
        "has no value; fill some in, or choose another --target.",
    ),
    "dates": (
        with_column("day", (f"2024-02-{i:02d}" for i in range(1, 21))),
        ("--target", "day", "--likelihood", "gaussian"),
        "look like dates: write them as numbers, such as days since the first",
    ),
    "infinite": (edited(5, "area", "inf"), (), "column 'area' of"),
    "infinite target": (edited(5, "price", "-inf"), (), "holds an infinite number in line 7"),
    "too large": (edited(5, "area", "1e308"), ("--test-fraction", 0), "holds numbers that are too large; divide them"),
    "mixed": (edited(5, "area", "large"), (), "holds numbers, but also texts: 'large' in line 7; replace these texts"),
    "mixed target": (
        edited(5, "price", "dear"),
        (),
        "'dear' in line 7; replace these texts by numbers or empty cells, or choose --likelihood categorical",
    ),
    "dates of two kinds": (with_column("day", (f"{i}.2.24" for i in range(1, 21))), (), "column 'day' of"),
    "month or day": (
        with_column("day", (f"{i % 9 + 1}/2/2024" for i in range(20))),
        (),
        "where day and month are ambiguous",
    ),
    "only names": (
        with_column("id", (f"id{i}" for i in range(20))),
        ("--features", "id", "--ignore", "id"),
        "id is in both --features and --ignore",
    ),
    "infinite class": (
        edited(3, "rooms", "inf"),
        ("--target", "rooms", "--likelihood", "categorical"),
        "an infinite number",
    ),
    "target constant": (with_column("same", iter(["2.5"] * 20)), ("--target", "same"), "is '2.5' in all rows"),
    "one class": (with_column("same", iter(["yes"] * 20)), ("--target", "same"), "is 'yes' in all rows"),
    "only constants": (
        with_column("same", iter(["2.5"] * 20)),
        ("--features", "same"),
        "has no column to predict from. Column 'same' is the same in all training rows: it is left out.",
    ),
    "texts as numbers": (
        GOOD,
        ("--target", "city", "--likelihood", "gaussian"),
        "texts such as 'Rome' in line 2, and this likelihood needs numbers; choose --likelihood categorical",
    ),
    "numbers as counts": (GOOD, ("--likelihood", "poisson"), "must hold counts for --likelihood poisson"),
    "no likelihood": (GOOD, ("--likelihood", "cauchy"), "unknown likelihood 'cauchy'"),
    "a share of one": (GOOD, ("--test-fraction", 1), "--test-fraction must be at least 0 and below 1, got 1.0"),
    "a recipe": (GOOD, ("--recipe", "article"), "recipes are for image sets; leave out --recipe article"),
    "held-out classes": (GOOD, ("--hold-out", "7"), "--hold-out goes with image sets only"),
    "a folder of data": (GOOD, ("--data", "."), "--data and --download are for image sets"),
    "pixels": (GOOD, ("--inputs", "scaled:2"), "--inputs of tables and arrays must be standardized or raw"),
    "accuracy": (GOOD, ("--accuracy",), "--accuracy is recorded for classes only"),
    "estimator": (GOOD, ("--guide", "auto-normal", "--estimator", "local"), "--estimator local needs the guide"),
    "natural": (
        GOOD,
        ("--optimizer", "natural", "--guide", "auto-normal"),
        "--optimizer natural needs the guide mean",
    ),
    "its draws": (GOOD, ("--optimizer", "natural", "--estimator", "local"), "natural needs the estimator weights"),
}


def refused(pyro_bnn, path, *options):  # noqa: F811
    """The message with which training on a file is refused."""
    run = path.parent / "run"
    code, out, err = pyro_bnn("train", path, "--out", run, *QUICK, *options)
    assert code == 2
    assert "Trained" not in out
    assert err.startswith("error: ")
    assert err.count("\n") == 1 + err.count("\n- ")
    assert sorted(found.name for found in path.parent.iterdir()) == [path.name]
    return err


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_used_is_refused_with_a_remedy(pyro_bnn, tmp_path, case):  # noqa: F811
    content, options, message = TABLES[case]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    target = () if "--target" in options else ("--target", "price")
    assert message in refused(pyro_bnn, path, *target, *options)


def test_a_file_that_is_none_is_refused(pyro_bnn, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.csx").write_text("a,y\n")
    for name, message in (
        ("nothing.csv", "there is no file nothing.csv and no table in its folder; correct the path."),
        ("nowhere/a.csv", "there is no file nowhere/a.csv, since there is no folder nowhere; correct the path."),
        ("text.csx", "text.csx is text; rename it to text.csv if it holds a table."),
        ("texts.csv", "there is no file texts.csv (did you mean 'text.csx'?)."),
        ("text.cvs", "there is no file text.cvs (did you mean 'text.csx'?)."),
    ):
        code, _, err = pyro_bnn("train", name, "--target", "y", "--out", "run")
        assert (code, message in err) == (2, True), err
    write_table(tmp_path / "table.csv", houses(20))
    code, _, err = pyro_bnn("train", "table.csv", "--out", "run")
    said = "Missing --target. Its columns are 'area', 'rooms', 'city', 'garden', 'price'. Example: pyro-bnn train "
    assert (code, said in err) == (2, True)
    code, _, err = pyro_bnn("train", "houses2.csv", "--target", "y", "--out", "run")
    assert (code, "there is no file houses2.csv; its folder holds table.csv: name one of them." in err) == (2, True)
    code, _, err = pyro_bnn("train", "digits", "--target", "y", "--test-fraction", 0.5, "--out", "run")
    assert (code, "--target goes with tables only; --test-fraction goes with tables and arrays" in err) == (2, True)


X = np.random.default_rng(0).normal(size=(20, 3))
ARRAYS = {
    "no arrays": ({}, (), "must hold arrays x and y, or x_train and y_train"),
    "other names": ({"a": X}, (), "but it holds 'a'"),
    "no targets": ({"x": X}, (), "must hold arrays x and y"),
    "test without targets": ({"x_train": X, "y_train": X[:, 0], "x_test": X}, (), "holds 'x_test' but no 'y_test'"),
    "test rows without targets": ({"x": X, "y": X[:, 0], "x_test": X}, (), "holds 'x_test' but no 'y_test'; add it"),
    "test targets without rows": ({"x": X, "y": X[:, 0], "y_test": X[:, 0]}, (), "holds 'y_test' but no 'x_test'"),
    "two pairs to train on": (
        {"x": X, "y": X[:, 0], "x_train": X, "y_train": X[:, 0]},
        (),
        "the rows to train on are x and y, or x_train and y_train; leave one pair out",
    ),
    "half of a pair": ({"x_train": X, "y_test": X[:, 0]}, (), "must hold arrays x and y, or x_train and y_train"),
    "fewer targets": ({"x": X, "y": X[:5, 0]}, (), "must have equally many rows, got 20 and 5"),
    "no rows": ({"x": X[:0], "y": X[:0, 0]}, (), "has no rows, got shape (0, 3)"),
    "NaN": ({"x": np.where(X > 1, np.nan, X), "y": X[:, 0]}, (), "in 7 of 20 rows (the first is row 3); correct"),
    "NaN target": ({"x": X, "y": np.full(20, np.nan)}, (), "`y` in"),
    "texts": ({"x": np.full((20, 2), "a"), "y": X[:, 0]}, (), "must be an array of numbers, got <U1"),
    "objects": ({"x": X, "y": np.array([None] * 20)}, (), "holds Python objects, which are not read"),
    "deep targets": ({"x": X, "y": np.zeros((20, 2, 2))}, (), "must have shape (N,) or (N, O), got ("),
    "several labels": ({"x": X, "y": np.zeros((20, 2), int)}, (), "must be whole numbers or texts of shape (N,)"),
    "many classes": ({"x": np.arange(300.0), "y": np.arange(300)}, (), "has 300 different values"),
    "constant": ({"x": np.ones((20, 2)), "y": X[:, 0]}, (), "holds the same number in all rows"),
    "other test rows": (
        {"x_train": X, "y_train": X[:, 0], "x_test": X[:, :2], "y_test": X[:, 0]},
        (),
        "`x_test` in",
    ),
    "fewer test targets": (
        {"x_train": X, "y_train": X[:, :2], "x_test": X, "y_test": X[:, 0]},
        (),
        "must have shape (N, 2), as in training, got (20,); give every row the targets of training",
    ),
    "more test targets": (
        {"x_train": X, "y_train": X[:, 0], "x_test": X, "y_test": X[:, :2]},
        (),
        "must have shape (N,) or (N, 1), as in training, got (20, 2)",
    ),
    "target": ({"x": X, "y": X[:, 0]}, ("--target", "y"), "--target goes with tables only"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_cannot_be_used_are_refused_with_a_remedy(pyro_bnn, tmp_path, case):  # noqa: F811
    arrays, options, message = ARRAYS[case]
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    assert message in refused(pyro_bnn, path, *options)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_a_file_that_holds_no_arrays_is_refused(pyro_bnn, tmp_path, content):  # noqa: F811
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert str(path) in refused(pyro_bnn, path)


def test_a_single_array_that_was_renamed_is_told(pyro_bnn, tmp_path):  # noqa: F811
    np.save(tmp_path / "data.npy", np.zeros((20, 2)))
    path = (tmp_path / "data.npy").rename(tmp_path / "data.npz")
    assert "data.npz is a single array, as in a *.npy file; write x and y with `numpy.savez`" in refused(pyro_bnn, path)


LABELS = ["a", "b"] * 10
INFINITE = np.where(np.arange(20) == 3, np.inf, np.arange(20) % 2)


@pytest.mark.parametrize("name", ["y", "y_test"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([*LABELS[:-1], ""]), "lacks a label in 1 of 20 rows (the first is row 20)"),
        (np.array([*LABELS[:-1], "nan"]), "lacks a label in 1 of 20 rows"),
        (np.where(np.arange(20) < 2, np.nan, 1.0), "lacks a label in 2 of 20 rows (the first is row 1)"),
        (INFINITE, "holds an infinite number in 1 of 20 rows (the first is row 4)"),
        (-INFINITE, "holds an infinite number in 1 of 20 rows"),
    ],
)
def test_labels_that_are_none_are_no_class(pyro_bnn, tmp_path, name, labels, message):  # noqa: F811
    path = tmp_path / "data.npz"
    good = {"x": X, "y": np.array(LABELS) if labels.dtype.kind == "U" else np.arange(20.0) % 2}
    np.savez(path, **{**good, "x_test": X, "y_test": good["y"], name: labels})
    assert message in refused(pyro_bnn, path, "--likelihood", "categorical")


@pytest.mark.parametrize("options", [("--test-fraction", 0.5), ("--split-seed", 3)])
def test_a_share_of_test_rows_is_refused_where_they_are_given(pyro_bnn, tmp_path, options):  # noqa: F811
    path = tmp_path / "data.npz"
    np.savez(path, x=X, y=X[:, 0], x_test=X, y_test=X[:, 0])
    assert f"holds its test rows (x_test and y_test); leave out {options[0]}" in refused(pyro_bnn, path, *options)


@pytest.mark.parametrize("name", ["data.npz", "table.csv", "table.parquet"])
def test_a_pipe_is_no_file(pyro_bnn, tmp_path, name):  # noqa: F811
    def give_up(*_):
        raise AssertionError("it waits for ever")

    path = tmp_path / name
    os.mkfifo(path)
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        message = refused(pyro_bnn, path, *(() if name == "data.npz" else ("--target", "y")))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "is a folder; pass a table" in message or "is no regular file; pass" in message


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_arrays_are_named_whatever_is_wrong_with_them(tmp_path, save):
    path = tmp_path / "data.npz"
    save(path, x=np.arange(12.0).reshape(4, 3), y=np.arange(4))
    good, kinds = path.read_bytes(), set()
    for place in range(len(good)):
        for value in (0, 57, 255):
            path.write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
            try:
                read_arrays(path)
            except ValueError as error:
                assert str(path) in str(error)  # noqa: PT017  # most damages are harmless or found; each must be named
                kinds.add(type(error.__cause__).__name__)
    assert {"BadZipFile", "ValueError"} < kinds


def test_a_damaged_parquet_file_is_named(pyro_bnn, tmp_path):  # noqa: F811
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + 50 * b"x" + b"PAR1")
    assert "table.parquet is a damaged Parquet file (" in refused(pyro_bnn, path, "--target", "y")


def test_a_parquet_file_without_pyarrow_names_the_extra(pyro_bnn, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = pyro_bnn("train", tmp_path / "table.parquet", "--target", "y", "--out", tmp_path / "run")
    assert (code, err.partition(",")[0]) == (1, "error: this needs PyArrow")
    assert "run `pip install -e '.[parquet]'`" in err


def test_rows_that_lack_values_are_left_out_if_wanted(pyro_bnn, tmp_path):  # noqa: F811
    path = tmp_path / "table.csv"
    path.write_bytes(edited(3, "rooms", "?"))
    options = ("--target", "price", "--drop-missing", "--out", tmp_path / "run", *QUICK)
    code, out, err = pyro_bnn("train", path, *options)
    assert (code, err) == (0, "")
    assert "Rows left out because they lack a value: 1 (line 5)." in out
    assert "Trained on 15 rows" in out
