"""What `train` says of the data and of a fit, and that nothing of it is lost when an error follows."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import fcntl
import os
import pty
import struct
import sys
import termios
from dataclasses import replace
from unittest import mock

import pytest

from pyro_bnn.app import runs
from pyro_bnn.app.chains import Choice, on_choice
from pyro_bnn.app.cli import program, train
from pyro_bnn.app.recipes import OWN
from pyro_bnn.app.reports.page import fit
from pyro_bnn.app.reports.page.section import Verdict

from .own_data import QUICK, houses, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

LEFT_OUT = "70 % of the rows (42 of 60) are left out because they lack a value. Gaps by column: 'rooms' 42, 'area' 6."


@pytest.fixture
def holes(tmp_path):
    """A table of 60 rows, 42 of which have no `rooms`, and 6 of these no `area`."""
    rows = [["" if i < 6 else row[0], "" if i < 42 else row[1], *row[2:]] for i, row in enumerate(houses())]
    return write_table(tmp_path / "houses.csv", rows)


def test_it_is_a_warning_at_the_top_if_many_rows_are_left_out(pyro_bnn, holes, tmp_path):
    options = ("--target", "price", "--drop-missing", "--out", tmp_path / "run", *QUICK)
    code, out, err = pyro_bnn("train", holes, *options)
    assert (code, err) == (0, "")
    assert out.startswith(f"Warning: {LEFT_OUT}\nWarning: 14 rows to train on and 4 test rows are very few: ")


def test_notes_are_told_though_an_error_follows(pyro_bnn, holes, tmp_path):
    options = ("--target", "price", "--drop-missing", "--calibrate", 0.2, "--out", tmp_path / "run")
    code, out, err = pyro_bnn("train", holes, *options)
    assert code == 2
    assert out == ""
    assert "holds out 3 of 14 training rows" in err
    assert LEFT_OUT in err


def test_a_time_limit_does_not_count_imports(pyro_bnn, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(train, "import_module", lambda name, package="": loaded.append(name))
    monkeypatch.setattr(runs, "fit", mock.Mock(side_effect=ValueError("stop")))
    table = write_table(tmp_path / "houses.csv", houses())
    assert pyro_bnn("train", table, "--target", "price", "--time-limit", 9, "--out", tmp_path / "run")[0] == 2
    assert loaded == ["..reports.page", "torch._dynamo"]  # before the fit, in which the limit begins


def test_a_variational_fit_says_if_it_has_not_settled(pyro_bnn, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "has_settled", lambda *args: Verdict("note", "limit", "", "The loss still fell.", ""))
    table = write_table(tmp_path / "houses.csv", houses())
    code, out, _ = pyro_bnn("train", table, "--target", "price", "--out", tmp_path / "run", *QUICK)
    assert code == 0
    assert "\nThe loss still fell.\n" in out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_an_error_fits_the_terminal(monkeypatch, columns):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    message = " ".join(["there is no such folder as this one"] * 9)
    with os.fdopen(end, "w") as written:
        monkeypatch.setattr(sys, "stderr", written)
        with pytest.raises(SystemExit):
            program._fail(message, 2)
        written.flush()
        said = os.read(terminal, 999).decode()
    os.close(terminal)
    assert max(map(len, said.splitlines())) <= columns
    assert " ".join(said.split()) == f"error: {message}"


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("Chosen: 3 relu units (best of 5 networks, log-density ...).", ""),
        (
            "A linear model, gaussian; 4 networks not compared, for lack of time (a larger ...).",
            "Chosen: a linear model (4 of 5 networks not compared, for lack of time).",
        ),
    ],
)
def test_a_comparison_that_time_cut_short_is_said(sentence, said):
    assert on_choice(replace(OWN, hidden=(), time_limit=10.0), Choice(sentence)) == said
