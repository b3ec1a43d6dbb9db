"""The rows that surprised the model most, in the report on a table."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from pyro_bnn.app import sources
from pyro_bnn.app.own.columns import Column
from pyro_bnn.app.reports.drivers import Driver, Drivers
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.drivers import surprises_section
from pyro_bnn.app.reports.page.section import Headline
from pyro_bnn.app.starting import new_config

from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .test_messy_tables import config_of
from .test_report import Page
from .test_report_classifier import labelled
from .test_report_own import report, table  # noqa: F401  # a fixture
from .test_report_verdicts import NUM_ROWS, Measured, predicted, regressed


def section_of(kind, *, drivers=None, inputs=None, columns=(), **measured):
    subject = Measured(**measured)
    subject.drivers, subject.inputs, subject.columns = drivers, inputs, columns
    subject.config = SimpleNamespace(kind=kind)
    return surprises_section(subject)


def of_columns(*names):
    return Drivers(1.0, 0.0, [Driver(name, 1.0, 0.0, 1.0) for name in names])


def test_a_wrong_entry_comes_first():
    found = regressed().regressed
    y = found.y.clone()
    y[7] += 1000
    network = predicted(found.prediction.mean, found.prediction.aleatoric.sqrt(), y, num_draws=4, epistemic=1e-3)
    found = replace(found, y=y, prediction=network, rows=range(101, 101 + NUM_ROWS))
    section = section_of("table", regressed=found)
    (number, (observed, mean, interval, score)), *others = section.values["rows"]
    assert (number, len(others)) == (108, 9)
    low, high = (float(part[7]) for part in found.interval(0.9))
    assert float(observed.replace(",", "")) == pytest.approx(float(y[7]), rel=1e-5)
    assert float(mean) == pytest.approx(float(network.mean[7]), abs=0.01)
    assert [float(end) for end in interval.split(" to ")] == pytest.approx([low, high], abs=0.01)
    assert float(score.replace(",", "")) == pytest.approx(-float(network.log_density[7]), rel=1e-4)
    scores = [float(cells[-1].replace(",", "")) for _, cells in section.values["rows"]]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx((-network.log_density).sort(descending=True).values[:10].tolist(), rel=1e-3)
    words = Page(page_of("", "", Headline(""), [], [section])).words
    assert "Rows that surprised the model most" in words
    assert "10 of these 10 targets lie outside their 90 % interval" in words
    assert "first row below the names" in words
    assert "very narrow densities" not in words
    found = replace(found, prediction=replace(network, log_density=network.log_density - 1e4 * (y[:, 0] < 0)))
    between = section_of("table", regressed=replace(found, y=network.mean))  # each target lies inside its interval
    assert "very narrow densities" in Page(page_of("", "", Headline(""), [], [between])).words


def test_of_several_targets_the_one_with_the_largest_error_is_shown():
    found = regressed(num_outputs=2).regressed
    y = found.y.clone()
    y[3, 1] += 1000
    network = predicted(found.prediction.mean, found.prediction.aleatoric.sqrt(), y, num_draws=4, epistemic=1e-3)
    section = section_of("arrays", regressed=replace(found, y=y, prediction=network, rows=range(NUM_ROWS)))
    number, (name, observed, *_) = section.values["rows"][0]
    assert (number, name, float(observed.replace(",", ""))) == (3, "target 1", pytest.approx(float(y[3, 1]), rel=1e-5))
    assert "its score covers all targets" in Page(page_of("", "", Headline(""), [], [section])).words


def test_a_whole_number_of_the_file_is_whole_in_the_report():
    """Targets are standardised in single precision, and back: 5 becomes 4.99999."""
    found = regressed().regressed
    mean, y = found.prediction.mean.clone(), found.y.clone()
    mean[7], y[7], y[8] = 500.0, 4.99999, 977.0
    network = predicted(mean, found.prediction.aleatoric.sqrt(), y, num_draws=4, epistemic=1e-3)
    section = section_of("table", regressed=replace(found, y=y, prediction=network, rows=range(NUM_ROWS)))
    observed = {number: cells[0] for number, cells in section.values["rows"]}
    assert (observed[7], observed[8]) == ("5", "977")


def test_classes_have_their_probabilities():
    found = replace(labelled("good").classified, rows=range(NUM_ROWS))
    section = section_of("table", classified=found)
    probs = found.prediction.probs
    worst = int(probs.gather(1, found.y[:, None]).argmin())
    number, (observed, predicted_, own, score) = section.values["rows"][0]
    assert (number, observed) == (worst, "abc"[found.y[worst]])
    assert predicted_.startswith(f"{'abc'[probs[worst].argmax()]}: ")
    assert float(score.replace(",", "")) == pytest.approx(-float(probs[worst, found.y[worst]].log()), rel=1e-3)
    assert float(own.rstrip(" %")) == pytest.approx(100 * float(probs[worst, found.y[worst]]), abs=0.05)


def test_a_row_shows_the_inputs_that_matter_most():
    """Long texts are cut, long numbers rounded, a missing cell is named, and columns without an effect are left out."""
    names = ["none", "size", "name", "day", "mass", "number"]
    frame = pandas.DataFrame({name: [None] * NUM_ROWS for name in names}, dtype=object)
    found = replace(regressed().regressed, rows=range(NUM_ROWS))
    worst = int(found.prediction.log_density.argmin())
    frame.loc[worst, ["size", "name", "mass"]] = [0.1234567891, "x" * 40, "-7.129049230848e-01"]
    frame.loc[worst, ["number", "none"]] = "1234567890123", "1234567.0"
    drivers = of_columns("size", "name", "day", "mass", "none")
    section = section_of("table", regressed=found, drivers=drivers, inputs=frame)
    columns = [Column("none", "number", 0.0, "", "")]
    numbered = section_of(
        "table", regressed=found, drivers=of_columns("number", "none", "mass"), inputs=frame, columns=columns
    )
    assert numbered.values["rows"][0][1][4:] == ["1234567890123", "1,234,567", "-0.712905"]
    assert section.values["rows"][0][1][4:] == ["0.123457", "x" * 23 + "…", "missing"]
    words = Page(page_of("", "", Headline(""), [], [section])).words
    assert "score (NLL)sizenameday" in words
    assert "Beside the score are the inputs on which the predictions depend most." in words


def test_image_sets_have_no_rows():
    assert section_of("images", classified=labelled("good").classified) is None


def test_rows_are_counted_as_in_the_file(tmp_path):
    """A row without a target is left out, and still counts."""
    targets = [float(row) for row in range(1, 41)]
    path = tmp_path / "numbers.csv"
    cells = ["" if row % 10 == 3 else str(target) for row, target in enumerate(targets, 1)]
    path.write_text("\n".join(["a,y", *(f"{row % 7},{cell}" for row, cell in enumerate(cells))]) + "\n")
    data = sources.load(config_of(path))
    target = data.facts.target
    found = target.mean[0] + target.scale[0] * data.y_test[:, 0]
    assert len(data.test_rows) == len(found) > 5
    np.testing.assert_allclose(found, data.test_rows, rtol=1e-5)  # the target of row i is i


@pytest.mark.parametrize("has_tests", [False, True])
def test_rows_of_arrays(has_tests, tmp_path):
    y = np.arange(1.0, 41)
    tests = {"x_test": y[30:], "y_test": y[30:]} if has_tests else {}
    np.savez(tmp_path / "arrays.npz", x=y, y=y, **tests)
    data = sources.load(new_config(str(tmp_path / "arrays.npz"), None, {"likelihood": "gaussian"})[0])
    target = data.facts.target
    found = target.mean[0] + target.scale[0] * data.y_test[:, 0]
    np.testing.assert_allclose(found - (30 if has_tests else 0), data.test_rows, rtol=1e-5)
    np.testing.assert_allclose(data.test_inputs["input 0"], found, rtol=1e-5)  # x is y


@pytest.mark.nightly
def test_the_report_shows_the_rows_of_the_file(pyro_bnn, table):  # noqa: F811
    cells = [line.split(",") for line in table.read_text().splitlines()]
    page, _ = report(pyro_bnn, table, "y")
    shown = [text for text in page.text if text.strip()]
    start = shown.index("score (NLL)") + 1
    names = shown[start : start + 2]  # the columns, and the one on which the predictions depend most comes first
    assert sorted(names) == ["a", "b"]
    places = [cells[0].index(name) for name in names]
    rows = [shown[at : at + 7] for at in range(start + 2, start + 72, 7)]
    for number, observed, *_, first, second in rows:
        own = cells[int(number)]
        assert float(observed.replace(",", "")) == pytest.approx(float(own[2]), rel=1e-4)
        assert [float(first), float(second)] == pytest.approx([float(own[place]) for place in places], rel=1e-5)
