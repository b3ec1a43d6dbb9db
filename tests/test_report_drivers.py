"""Which columns drive the predictions in a report, by permutation."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.app.datasets import Dataset, Facts
from pyro_bnn.app.own.arrays import ArrayEncoding
from pyro_bnn.app.own.encoding import Feature, TableEncoding
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports import drivers
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.drivers import conclusion_of, drivers_section
from pyro_bnn.app.reports.page.section import Headline
from pyro_bnn.app.reports.trained import Trained

from .test_report import Page

NUMBER = Target("y", [], [0.0], [1.0])


def trained(location, scale, likelihood, target=NUMBER, *, table=None, x=None):
    """A linear network with a given mean-field posterior, on independent standard normal inputs."""
    location, scale = torch.tensor(location), torch.tensor(scale)
    size = location.shape[1]
    net = nn.Linear(size, len(location), bias=False)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=500)
    guide = pb.MeanFieldGuide(model)
    guide.load_state_dict({"loc.net.weight": location, "rho.net.weight": scale.expm1().log()})
    x = torch.randn(500, size) if x is None else x
    encoding = None if table else ArrayEncoding([size], [], [], False)
    facts = Facts("", len(x), len(x), [size], target, table, encoding, [])
    outputs = x @ location.T
    y = outputs.argmax(-1) if target.is_class else outputs
    return Trained(model, guide, Dataset(x, y, x, y, facts), num_samples=50)


def regression(**changes):
    """Column 0 matters most, then column 1; only the weight of column 2, whose mean is 0, is uncertain."""
    return trained([[2.0, 1.0, 0.0]], [[1e-6, 1e-6, 0.05]], pb.GaussianLikelihood(1.0), **changes)


def section_of(found, *, is_class=False, num_columns=2, split_by=""):
    """The section on effects of columns."""
    subject = SimpleNamespace(drivers=found, classified=is_class or None, num_columns=num_columns)
    subject.config = SimpleNamespace(split_by=split_by)
    return drivers_section(subject)


def words_of(section):
    """The texts of a page with one section."""
    return Page(page_of("", "", Headline(""), [], [section])).words


def test_a_linear_regression():
    """A shuffled column x_j of unit variance changes the mean by w_j (x_j - x'_j), of variance 2 w_j^2."""
    found = drivers.drivers_of(regression(target=Target("y", [], [10.0], [3.0])))
    columns = {driver.name: driver for driver in found.columns}
    assert [*columns] == ["input 0", "input 1", "input 2"]
    assert found.score < 0.05
    assert columns["input 0"].score == pytest.approx(3 * 2 * math.sqrt(2), rel=0.1)
    assert columns["input 1"].score == pytest.approx(3 * math.sqrt(2), rel=0.1)
    assert columns["input 2"].score == pytest.approx(found.score, rel=0.5)
    for column in columns.values():  # the columns are independent
        assert column.epistemic == pytest.approx(found.epistemic, rel=1e-3)
    assert found.epistemic == pytest.approx(3 * 0.05 * math.sqrt(2 / math.pi), rel=0.15)  # of sd * |x|


def test_classes():
    target = Target("y", ["a", "b"], [], [])
    location, scale = [[2.0, 0.0], [-2.0, 0.0]], [[1e-6, 1.0], [1e-6, 1.0]]
    found = drivers.drivers_of(trained(location, scale, pb.CategoricalLikelihood(), target))
    used, unused = found.columns
    assert (used.name, unused.name) == ("input 0", "input 1")
    assert found.score < 0.3 * used.score  # the NLL
    assert used.score - found.score > 5 * used.error > 0
    assert unused.score - found.score < 2 * unused.error
    values = section_of(found, is_class=True).values
    assert [driver.name for driver in values["shown"]] == ["input 0"]
    assert values["no_effect"] == "input 1"


@pytest.mark.parametrize("is_class", [False, True])
def test_the_error_of_a_rise_is_that_of_the_jackknife(is_class):
    """Also if a few rows have large losses before and after, and so determine both scores."""
    before = torch.randn(200, dtype=torch.double).square()
    before[:2] = 100.0
    after = before + 3 * torch.rand(200, dtype=torch.double)
    scores = [(losses.sum() - losses) / 199 for losses in (before, after)]  # without each row in turn
    rises = scores[1] - scores[0] if is_class else scores[1].sqrt() - scores[0].sqrt()
    expected = float(rises.std(correction=0)) * 199**0.5
    assert drivers._error_of_rise(before, after, is_class=is_class) == pytest.approx(expected, rel=0.2)


def test_inputs_of_a_category_are_permuted_together():
    """Each permuted row still has exactly one category, so a network that only counts them does not change."""
    kind = Feature("kind", "category", "", [], [], [], ["a", "b"], False)
    number = Feature("size", "number", "", [0], [0.0], [1.0], [], False)
    x = torch.cat([torch.eye(2)[torch.randint(2, (500,))], torch.randn(500, 1)], 1)
    run = trained(
        [[3.0, 3.0, 1.0]], [[1e-6, 1e-6, 1e-6]], pb.GaussianLikelihood(1.0), table=TableEncoding([kind, number]), x=x
    )
    size, kind = drivers.drivers_of(run).columns
    assert (size.name, kind.name) == ("size", "kind")
    assert kind.moved < 1e-3
    assert size.score == pytest.approx(math.sqrt(2), rel=0.1)


def test_a_column_with_one_value_in_the_test_rows_has_no_known_effect():
    x = torch.randn(100, 3)
    x[:, 1] = 2.0
    found = drivers.drivers_of(regression(x=x))
    assert {driver.name: driver.varies for driver in found.columns} == {
        "input 0": True,
        "input 1": False,
        "input 2": True,
    }
    values = section_of(found).values
    assert values["picture"] is None  # a single bar says nothing
    [first, *others] = found.columns
    twice = replace(found, columns=[first, first, *others])
    shown = section_of(twice).values["picture"]
    assert [ax.get_xlabel() for ax in shown.ax.figure.axes] == ["RMSE"]  # the other bars would be equal
    raised = replace(found, columns=[replace(first, name="$_{x$", epistemic=2 * found.epistemic), first, *others])
    shown = section_of(raised).values["picture"]
    assert [ax.get_xlabel() for ax in shown.ax.figure.axes] == ["RMSE", "epistemic sd"]
    assert str(shown)  # a name with signs of formulas is drawn as it is
    assert {bar.get_x() for bar in shown.ax.patches} == {found.score}  # bars start at the score before shuffling
    assert (values["constant"], values["no_effect"], len(values["shown"])) == ("input 1", "input 2", 1)
    assert "input 1" not in values["conclusion"]
    constant = replace(found, columns=[driver for driver in found.columns if not driver.varies])
    assert section_of(constant) is None


def test_nothing_for_images_or_many_columns(monkeypatch):
    run = regression()
    monkeypatch.setattr(drivers, "MOST_COLUMNS", 2)
    assert drivers.drivers_of(run) is None
    assert section_of(None, num_columns=0) is None  # images
    words = words_of(section_of(None, num_columns=51))
    assert "The data have 51 columns. This section is only for data with at most 50" in words


def test_new_combinations_of_equal_columns_raise_the_uncertainty():
    """E sqrt(x^2 + x'^2) / E sqrt(2 x^2) of two independent normal numbers is pi / (2 sqrt(2))."""
    x = torch.randn(500, 1).expand(-1, 2).contiguous()
    found = drivers.drivers_of(trained([[2.0, 1.0]], [[0.05, 0.05]], pb.GaussianLikelihood(1.0), x=x))
    for driver in found.columns:
        assert driver.epistemic / found.epistemic == pytest.approx(math.pi / math.sqrt(8), rel=0.05)


def effects(*columns, before=(2.0, 0.5)):
    """Effects of columns named a, b, ... with a score and an epistemic uncertainty each."""
    return drivers.Drivers(
        *before, [drivers.Driver("abcdefghijkl"[i], *pair, 0.0, 0.012) for i, pair in enumerate(columns)]
    )


@pytest.mark.parametrize(
    ("columns", "is_class", "words"),
    [
        (
            [(3.4, 0.5), (2.1, 0.55)],
            False,
            "The network relies most on a: shuffling it raises the RMSE from 2.000 to 3.400.",
        ),
        ([(3.4, 0.5), (2.1, 1.25)], False, "to 3.400. The epistemic sd rises most with b, from 0.500 to 1.250: the"),
        ([(2.01, 0.5)], False, "No single column has a measurable effect: whichever is shuffled, the RMSE rises no"),
        ([(2.5, 0.5)], True, "relies most on a: shuffling it raises the NLL from 2.000 to 2.500."),
    ],
)
def test_the_drivers_are_concluded_in_words(columns, is_class, words):
    found = effects(*columns)
    said, few = (conclusion_of(each, each.columns, is_class=is_class) for each in (found, replace(found, num_rows=19)))
    assert words in said
    caveat = "With only 19 test rows, these effects are very uncertain."
    assert (caveat in said, caveat in few) == (False, True)


def test_the_table_begins_with_the_score_before_and_counts_the_columns():
    found = effects(*[(4.0 - number / 10, 0.5) for number in range(12)])
    words = words_of(section_of(found))
    assert "(before: RMSE 2.000, epistemic sd 0.500)" in words
    assert "a+2.000 ± 0.0120.500 b+1.900 ± 0.0120.500" in words
    assert words.index("The other columns") < words.index("k+1.000") < words.index("l+0.900")
