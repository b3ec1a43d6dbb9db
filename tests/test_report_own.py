"""`pyro-bnn report` on users' tables."""

import json
import math
import re
import shlex

import numpy as np
import pytest

from pyro_bnn.app.numbers import number, with_error
from pyro_bnn.app.reports.page import page_of, unbroken
from pyro_bnn.app.reports.page.section import Headline

from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_report import Page


@pytest.fixture
def table(tmp_path):
    """A table whose columns y, line and kind follow from a and b; the column noise follows from nothing."""
    generator = np.random.default_rng(0)
    a, b, noise = generator.normal(size=(3, 400))
    y, line = (50 + 20 * part - 10 * b + 5 * generator.normal(size=400) for part in (abs(a), a))
    kind = np.where(a > 0, "<up>", "down")
    cells = zip(a, b, y, line, kind, noise, strict=True)
    (tmp_path / "own table.csv").write_text(
        "\n".join(["a,b,y,line,kind,noise", *(",".join(map(str, row)) for row in cells)])
    )
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
    assert printed.startswith(
        "Usable, with notes. The training had only 300 epochs (600 steps; the default is 3,000); "
    )
    assert "problem:" not in printed
    assert "of the variance is explained" in printed
    assert "The network's probabilities are better than those of linear regression" in printed
    for part in ("Errors", "Intervals", "Training", "Weights", "Configuration", "A Bayesian regression of y"):
        assert part in page.words
    tags = [(name, attributes.get("class")) for name, attributes in page.tags]
    beside = tags.index(("div", "figures"))  # the table of scores is the left part of a row, and the picture the right
    assert beside < tags.index(("table", "")) < tags.index(("img", None))
    assert all(attributes["src"].startswith("data:image/") for attributes in page.find("img"))
    assert all(attributes["alt"] for attributes in page.find("img"))


def test_no_line_of_a_page_ends_within_an_option():
    page = unbroken("pyro-bnn train --time-limit 9 --ignore 'a<b' --out=air-2, x--y and a -- b")
    assert page.count("<span class=option>") == 3
    assert "<span class=option>--time-limit</span> 9 <span class=option>--ignore</span> &#39;a&lt;b&#39;" in page
    assert "nowrap" in page_of("", "", Headline(""), [], []).partition(".option {")[2].partition("}")[0]


@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf, math.nan, 5.88e-06, -3.2e8, 7.16])
@pytest.mark.parametrize("error", [0.0, 6.4e-3, 120.0, math.inf])
def test_a_number_has_four_digits_and_its_error_two_or_three(value, error):
    shown, error_shown = with_error(value, error).split(" ± ")
    places = len(error_shown.partition(".")[2])
    if 0 < error < math.inf and math.isfinite(value):
        assert float(error_shown) == pytest.approx(error, rel=0.05)
        assert len(shown.partition(".")[2]) == places <= 5
    if value == 7.16 and error < 1:
        assert shown.startswith(number(value))


@pytest.mark.nightly
def test_a_straight_line_is_no_worse_than_a_network_where_the_truth_is_one(pyro_bnn, table):  # noqa: F811
    """The baselines are those of `evaluate`, with its numbers."""
    page, printed = report(pyro_bnn, table, "line")
    assert re.search("Linear regression (predicts better|has the)|not clearly better than those of linear", printed)
    assert pyro_bnn("evaluate", table.parent / "run", "--num-samples", 20)[0] == 0
    rows = json.loads((table.parent / "run" / "metrics.json").read_text())["rows"]
    scores = {row["name"]: row["scores"] for row in rows}
    for name in ("mean of 20 draws", "baseline: linear regression"):
        cells = (number(scores[name][score]) for score in ("rmse", "nll", "crps"))
        assert f"{name} {' '.join(cells)}".replace(" ", "") in page.words.replace(" ", "")


@pytest.mark.nightly
def test_what_cannot_be_predicted_is_said_to_be_so(pyro_bnn, table):  # noqa: F811
    _, printed = report(pyro_bnn, table, "noise")
    assert printed.startswith(
        "Not usable as it is. The training had only 300 epochs (600 steps; the default is 3,000); no better than "
    )
    assert "no better than the mean of the targets" in printed.splitlines()[0]
    assert "problem:  RMSE" in printed


def test_classes(pyro_bnn, table):  # noqa: F811
    page, printed = report(pyro_bnn, table, "kind", "--epochs", 60)
    assert "of 80 test rows are right" in printed
    assert "AUROC of “" in page.words
    assert "” is most probable" in page.words
    assert "<up>" in page.words
    assert "Unknown images" not in page.words


@pytest.mark.nightly
def test_the_command_to_repeat_is_the_run(pyro_bnn, table):  # noqa: F811
    page, _ = report(pyro_bnn, table, "y")
    run, again = table.parent / "run", table.parent / "again"
    *_, line = [line for line in "".join(page.text).replace("\xa0", " ").splitlines() if "pyro-bnn train" in line]
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
    assert "there are no test rows" in err
