"""Which columns drive the predictions in a report, by permutation."""

import math
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
    facts = Facts("", len(x), len(x), [size], target, table, encoding)
    return Trained(model, guide, Dataset(x, torch.zeros(len(x)), x, torch.zeros(len(x)), facts), num_samples=50)


def regression(**changes):
    """Column 0 matters most, then column 1; only the weight of column 2, whose mean is 0, is uncertain."""
    return trained([[2.0, 1.0, 0.0]], [[1e-6, 1e-6, 0.05]], pb.GaussianLikelihood(1.0), **changes)


def test_changes_of_a_linear_regression():
    """A permuted column x_j of unit variance changes the mean by w_j (x_j - x'_j), of variance 2 w_j^2."""
    found = {driver.name: driver for driver in drivers.drivers_of(regression())}
    assert [*found] == ["input 0", "input 1", "input 2"]
    assert found["input 0"].mean == pytest.approx(2 * math.sqrt(2 / 5), rel=0.1)
    assert found["input 1"].mean == pytest.approx(math.sqrt(2 / 5), rel=0.1)
    assert found["input 2"].mean < 0.03
    assert max(found["input 0"].epistemic, found["input 1"].epistemic) < 1e-3
    assert all(driver.growth == pytest.approx(1) for driver in found.values())  # the columns are independent
    # E| |x| - |x'| | / E|x| of two independent normal numbers is 2 (sqrt(2) - 1)
    assert found["input 2"].epistemic == pytest.approx(2 * (math.sqrt(2) - 1), rel=0.15)


def test_classes():
    target = Target("y", ["a", "b"], [], [])
    location, scale = [[2.0, 0.0], [-2.0, 0.0]], [[1e-6, 1.0], [1e-6, 1.0]]
    sure, unsure = drivers.drivers_of(trained(location, scale, pb.CategoricalLikelihood(), target))
    assert (sure.name, unsure.name) == ("input 0", "input 1")
    assert sure.mean > 0.2 > unsure.mean
    assert unsure.epistemic > 0.3


def test_inputs_of_a_category_are_permuted_together():
    """Each permuted row still has exactly one category, so a network that only counts them does not change."""
    kind = Feature("kind", "category", "", [], [], [], ["a", "b"], False)
    number = Feature("size", "number", "", [0], [0.0], [1.0], [], False)
    x = torch.cat([torch.eye(2)[torch.randint(2, (500,))], torch.randn(500, 1)], 1)
    run = trained(
        [[3.0, 3.0, 1.0]], [[1e-6, 1e-6, 1e-6]], pb.GaussianLikelihood(1.0), table=TableEncoding([kind, number]), x=x
    )
    size, kind = drivers.drivers_of(run)
    assert (size.name, kind.name) == ("size", "kind")
    assert kind.mean < 1e-5
    assert size.mean == pytest.approx(math.sqrt(2), rel=0.1)


def test_a_column_with_one_value_in_the_test_rows_has_no_known_effect():
    x = torch.randn(100, 3)
    x[:, 1] = 2.0
    found = drivers.drivers_of(regression(x=x))
    assert {driver.name: driver.varies for driver in found} == {"input 0": True, "input 1": False, "input 2": True}
    subject = SimpleNamespace(drivers=found, classified=None)
    values = drivers_section(subject).values
    assert [ax.get_xlabel().split() for ax in values["picture"].ax.figure.axes] == [
        ["change", "of", "the", "prediction", "(%)"],
        ["change", "of", "the", "epistemic", "sd", "(%)"],
    ]
    assert (values["constant"], values["num_constant"]) == ("input 1", 1)
    assert (values["num_drawn"], values["num_varying"]) == (2, 2)
    assert "input 1" not in values["conclusion"]
    assert drivers_section(SimpleNamespace(drivers=[found[-1]], classified=None)) is None


def test_nothing_for_images_or_many_columns(monkeypatch):
    run = regression()
    monkeypatch.setattr(drivers, "MOST_COLUMNS", 2)
    assert drivers.drivers_of(run) == []
    assert drivers_section(SimpleNamespace(drivers=[])) is None


def test_new_combinations_of_equal_columns_raise_the_uncertainty():
    """E sqrt(x^2 + x'^2) / E sqrt(2 x^2) of two independent normal numbers is pi / (2 sqrt(2))."""
    x = torch.randn(500, 1).expand(-1, 2).contiguous()
    for driver in drivers.drivers_of(trained([[2.0, 1.0]], [[0.05, 0.05]], pb.GaussianLikelihood(1.0), x=x)):
        assert driver.growth == pytest.approx(math.pi / math.sqrt(8), rel=0.05)


@pytest.mark.parametrize(
    ("epistemic", "growth", "words"),
    [
        (0.1, 1.0, "The epistemic sd hardly depends on any single column."),
        (4.2, 5.2, "changes most with b: it grows by 420 % on average."),
        (
            0.8,
            1.04,
            "changes most with b: it becomes larger in some rows and smaller in others (by 80 % in a typical row, +4 %",
        ),
    ],
)
def test_the_drivers_are_concluded_in_words(epistemic, growth, words):
    found = [drivers.Driver("a", 1.0, 0.05, 1.0), drivers.Driver("b", 0.5, epistemic, growth)]
    said = conclusion_of(found, is_class=False)
    assert said.startswith("The predictions depend most on a. ")
    assert words in said


def test_all_changes_are_in_per_cent():
    found = [drivers.Driver("a", 1.36, 0.05, 0.96), drivers.Driver("b", 0.5, 6.5, 7.5)]
    section = drivers_section(SimpleNamespace(drivers=found, classified=None))
    words = Page(page_of("", "", "", [], [section])).words
    assert "a136 %5 %-4 % b50 %650 %+650 %" in words
