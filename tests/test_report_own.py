"""`pyro-bnn report` on tables of one's own."""

import json
import shlex

import numpy as np
import pytest

from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_report import Page


@pytest.fixture
def table(tmp_path):
    """A table whose columns y and kind follow from a and b; the column noise follows from nothing."""
    generator = np.random.default_rng(0)
    a, b, noise = generator.normal(size=(3, 160))
    y = 50 + 20 * a - 10 * b + generator.normal(size=160)
    kind = np.where(a > 0, "<up>", "down")
    rows = ["a,b,y,kind,noise", *(f"{p},{q},{r},{k},{n}" for p, q, r, k, n in zip(a, b, y, kind, noise, strict=True))]
    (tmp_path / "own table.csv").write_text("\n".join(rows))
    return tmp_path / "own table.csv"


def report(pyro_bnn, table, target, *options):  # noqa: F811
    run = table.parent / "run"
    given = ("--target", target, "--features", "a,b", "--hidden", 10, "--epochs", 300, "--lr", 0.03, *options)
    code, _, err = pyro_bnn("train", table, *given, "--out", run)
    assert (code, err) == (0, "")
    code, out, err = pyro_bnn("report", run, "--num-samples", 20)
    assert (code, err) == (0, "")
    return Page((run / "report.html").read_text(encoding="utf-8")), out


def test_numbers(pyro_bnn, table):  # noqa: F811
    page, printed = report(pyro_bnn, table, "y")
    assert "problem:" not in printed
    assert "of the variance is explained" in printed
    for part in ("Errors", "Intervals", "Training", "Weights", "Configuration", "A Bayesian regression of y"):
        assert part in page.words
    assert all(attributes["src"].startswith("data:image/") for attributes in page.find("img"))
    assert all(attributes["alt"] for attributes in page.find("img"))


def test_what_cannot_be_predicted_is_said_to_be_so(pyro_bnn, table):  # noqa: F811
    _, printed = report(pyro_bnn, table, "noise")
    assert printed.startswith("Not to be relied on as it is")
    assert "problem:  RMSE" in printed


def test_classes(pyro_bnn, table):  # noqa: F811
    page, printed = report(pyro_bnn, table, "kind")
    assert "good:     Accuracy" in printed
    assert "on 32 test rows" in page.words
    assert "<up>" in page.words
    assert "Unknown images" not in page.words


def test_the_command_to_repeat_is_the_run(pyro_bnn, table):  # noqa: F811
    page, _ = report(pyro_bnn, table, "y")
    run, again = table.parent / "run", table.parent / "again"
    [line] = [line for line in "".join(page.text).replace("\xa0", " ").splitlines() if "pyro-bnn train" in line]
    command = shlex.split(line[line.index("pyro-bnn train") :])
    command[command.index("--out") + 1] = str(again)
    code, _, err = pyro_bnn(*command[1:])
    assert (code, err) == (0, "")
    assert (again / "config.json").read_text() == (run / "config.json").read_text()
    elbos = [json.loads((folder / "history.json").read_text())["elbo"] for folder in (run, again)]
    assert elbos[0] == elbos[1]


def test_without_test_rows_there_is_nothing_to_report(pyro_bnn, table):  # noqa: F811
    run = table.parent / "run"
    assert pyro_bnn("train", table, "--target", "y", "--epochs", 1, "--test-fraction", 0, "--out", run)[0] == 0
    code, _, err = pyro_bnn("report", run)
    assert code == 2
    assert "none to report on" in err
