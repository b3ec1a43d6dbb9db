"""How the predictions of a report depend on the values of a column."""

from dataclasses import replace

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.app.own.encoding import Feature, TableEncoding
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports.dependence import dependence_of
from pyro_bnn.app.reports.drivers import drivers_of
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.section import Headline

from .test_report_drivers import regression, section_of, trained, words_of

SURE = 1e-6  # sd of a weight
NORMAL_90 = 2 * 1.645  # width of the 90 % interval of a standard normal number


def test_a_line_is_recovered_with_the_uncertainty_of_its_slope_and_a_column_without_effect_is_flat():
    x = torch.randn(500, 2)
    x[:, 0] = x[:, 0].abs()  # the limits of the slope are those of the line
    run = trained([[2.0, 0.0]], [[0.1, SURE]], pb.GaussianLikelihood(1.0), Target("y", [], [10.0], [3.0]), x=x)
    run = replace(run, num_samples=200)
    used, unused = (dependence_of(run, "", slice(i, i + 1)) for i in range(2))
    x_used, (low, mean, high) = torch.tensor(used.values), torch.tensor([used.lows, used.means, used.highs])
    assert x_used[[0, -1]].tolist() == pytest.approx(x[:, 0].quantile(torch.tensor([0.05, 0.95])).tolist(), abs=0.02)
    slope, lower, upper = (float((each - 10.0) @ x_used / (x_used @ x_used)) for each in (mean, low, high))
    assert lower < 3 * 2.0 < upper
    assert not lower < 3 * 2.4 < upper  # four standard deviations away
    assert not lower < 3 * 1.6 < upper
    assert upper - lower == pytest.approx(3 * 0.1 * NORMAL_90, rel=0.25)  # without the noise, whose sd is 3
    torch.testing.assert_close(mean, 10.0 + slope * x_used, rtol=1e-4, atol=0.0)  # all values have the same draws
    assert max(unused.means) - min(unused.means) < 1e-3
    assert len(used.values) <= 15
    assert used.num_rows == 200


def test_the_columns_of_a_table():
    """Categories, dates and missing numbers are shown as in the file; texts are not shown."""
    kind = Feature("kind", "category", "", [], [], [], [*"abcdefghij"], True)
    size = Feature("size", "number", "", [0], [100.0], [20.0], [], True)
    day = Feature("day", "date", "", [0, 1], [19000.0 - 1e-5, 0.0], [10.0, 1.0], [], False)  # less, by rounding
    text = Feature("text", "text", "", [], [], [], [], False)
    table = TableEncoding([kind, size, day, text])
    labels = torch.cat([torch.arange(11), torch.randint(2, (489,))])
    x = torch.cat([torch.eye(11)[labels], torch.randn(500, 4 + text.width)], 1)
    x[:, 12] = (torch.arange(500) < 50).float()  # marks missing sizes
    x[:50, 11] = 0.0
    x[:, 13] = torch.arange(500) % 4 - 1.0
    weights = torch.zeros(1, x.shape[1])
    weights[0, :11] = torch.arange(11.0)
    weights[0, 11], weights[0, 13] = 5.0, 1.0
    run = trained(weights.tolist(), [[SURE] * x.shape[1]], pb.GaussianLikelihood(1.0), table=table, x=x)
    kind, size, day, text = (dependence_of(run, name, part) for name, part in table.slices.items())
    assert text is None
    assert {*kind.words[:2]} == {"a", "b"}
    assert len(kind.words) == 8
    means = dict(zip(kind.words, kind.means, strict=True))
    assert means["b"] - means["a"] == pytest.approx(1.0, abs=1e-3)
    assert dict(zip(kind.words, kind.rows, strict=True))["a"] == int((labels == 0).sum()) / 500
    assert (size.means[-1] - size.means[0]) / (size.values[-1] - size.values[0]) == pytest.approx(5 / 20, rel=1e-3)
    assert len(size.rows) < 200  # without missing ones
    assert day.words == ["2021-12-29", "2022-01-08", "2022-01-18", "2022-01-28"]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_rarer_of_two_classes_or_the_class_that_changes_most(classes):
    location = [[0.0], [-4.0]] if classes == 2 else [[0.0], [0.5], [1.0]]
    target = Target("y", [*"abc"][:classes], [], [])
    x = torch.randn(500, 1) + (0.5 if classes == 2 else 0.0)
    run = trained(location, [[SURE]] * classes, pb.CategoricalLikelihood(), target, x=x)
    curve = dependence_of(run, "", slice(0, 1))
    probs = (torch.tensor(curve.values)[:, None] @ torch.tensor(location).T).softmax(1)
    label = 1 if classes == 2 else int((probs.amax(0) - probs.amin(0)).argmax())
    assert curve.output == f"probability of {target.classes[label]}"
    assert curve.means == pytest.approx(probs[:, label].tolist(), abs=1e-4)


def test_the_page_shows_the_columns_with_an_effect_and_says_that_the_column_that_splits_the_rows_may_have_more():
    found = drivers_of(regression())
    assert len(found.curves) == 3
    section = section_of(found)
    assert [curve.name for curve, _ in section.values["curves"]] == ["input 0", "input 1"]
    assert "the mean prediction of 200 training rows if all had the same value" in words_of(section)
    assert 'alt="Partial dependence of y on input 0: \u2212' in page_of("", "", Headline(""), [], [section])
    assert "How the predictions change" not in words_of(section_of(replace(found, curves=[])))
    said = "The rows are split by input 2: its values are shuffled only among the last"
    assert said in words_of(section_of(found, split_by="input 2"))
    assert "split by" not in words_of(section_of(found, split_by="another"))
