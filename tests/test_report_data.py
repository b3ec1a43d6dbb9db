"""The report's table of columns, its numbers and its ticks."""

import re

import pytest

from pyro_bnn.app.numbers import number, six_digits, with_error
from pyro_bnn.app.own.columns import values_in_words
from pyro_bnn.app.reports.page.section import Verdict
from pyro_bnn.app.reports.pictures import panel, panels, readable

from .test_amounts import cells_of
from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_report import Page

ROWS = 60


def test_the_report_says_how_each_column_is_used(pyro_bnn, tmp_path):  # noqa: F811
    lines = ["id,sold,area,city,note,same,mine,odd,late,price"]
    for i in range(ROWS):
        area = "" if i % 4 == 0 else f"{50 + 7 * (i % 11)}.5"
        sold = f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}"
        odd, late = i % 7 or "n/k", sold if i % 9 else "soon"
        lines.append(f"{i},{sold},{area},{'ABC'[i % 3]},flat no {i},1,{i % 5},{odd},{late},{1000 * (i % 11) + i}")
    (tmp_path / "houses.csv").write_text("\n".join(lines))
    run = tmp_path / "run"
    options = ("--target", "price", "--ignore", "mine,odd,late", "--method", "svi", "--epochs", 2, "--out", run)
    assert pyro_bnn("train", tmp_path / "houses.csv", *options)[0] == 0
    assert pyro_bnn("report", run, "--num-samples", 5)[0] == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    table = page.partition('<h2 id="data">')[2].partition("</table>")[0]
    rows = re.findall("<tr><th scope=.row.>.*?</tr>", table)
    found = [re.sub("<[^>]+>", "|", row).replace("\xa0", " ") for row in rows]
    cells = {row[0]: row[1:] for row in ([cell for cell in line.split("|") if cell] for line in found)}
    assert list(cells) == ["id", "sold", "area", "city", "note", "same", "mine", "odd", "late", "price"]
    assert cells["id"] == ["number", "0.0 %", "left out: it names or counts the rows"]
    assert cells["sold"][0] == "date"
    dates = "2020-01-01 to 2020-12-24"  # each on one line
    assert "".join(cells["sold"][2:]) == f"{dates}5 inputs: number of days, time of year, time of week"
    assert cells["area"][1:] == [
        "25.0 %",
        "50.5 to 120.5, median 85.5",
        "standardised; missing ones become the mean, and an input marks them",
    ]
    assert cells["city"] == ["category", "0.0 %", "3 different, most often “A” (33 %)", "one-hot with 3 values"]
    assert cells["note"] == ["text", "0.0 %", "left out: it names or counts the rows"]
    assert cells["same"] == ["number", "0.0 %", "left out: the same in all training rows"]
    assert "".join(cells["mine"]) == "number0.0 %left out by --ignore"
    assert cells["odd"][0] == cells["late"][0] == "text"  # a few cells do not fit the others
    assert cells["price"][3] == "target, standardised"
    assert "10 columns of the file, of which the network does not use 6" in Page(page).words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1,234,567"),
        (197300.0, "197,300"),
        (0.5, "0.5"),
        (-1234.5678, "-1,234.57"),
        (0.0, "0"),
        (2e-6, "2e-06"),
    ],
)
def test_six_digits_of_a_number_are_shown_without_a_power_of_ten(value, text):
    assert six_digits(value) == text


def test_the_range_of_a_column_keeps_its_sign():
    assert values_in_words(cells_of("$1,990.00", "$990.50", "$90"), "number") == "$90 to $1,990, median $990.5"


def test_thousands_are_separated():
    assert number(169848.2) == "169,848"
    assert with_error(169848.0, 23232.0) == "169,848 ± 23,232"


@pytest.mark.parametrize(
    ("most", "texts"), [(4.0, {"0", "1", "2", "3", "4"}), (4e4, {"10,000", "20,000"}), (1e6, {"0", "500k", "1M"})]
)
def test_ticks_are_short_and_without_an_offset(most, texts):
    ax = panel()
    ax.plot([0, most], [0, most])
    readable(ax)
    ax.figure.canvas.draw()
    assert texts <= {label.get_text() for label in ax.get_xticklabels()}
    assert not ax.xaxis.get_offset_text().get_text()


def test_narrow_axes_have_few_ticks():
    axes = panels(2, 2.0)
    for ax in axes:
        ax.plot([0, 0.0069], [0, 1])
    readable(axes[0])
    low, high = axes[1].get_xlim()
    assert sum(low <= tick <= high for tick in axes[1].get_xticks()) <= 3


@pytest.mark.parametrize(
    ("level", "short", "expected"),
    [
        ("note", "too few rows to judge the intervals", True),
        ("note", "too few epochs to tell whether training had settled", False),
        ("problem", "too few rows", False),
    ],
)
def test_what_the_rows_cannot_tell_is_grey(level, short, expected):
    assert Verdict(level, "uncertainty", short, "", "").word == ("unclear" if expected else level)
