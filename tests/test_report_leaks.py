"""Columns from which a linear formula computes the target, in a report."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyro_bnn.app.datasets import Facts
from pyro_bnn.app.own.encoding import Feature, TableEncoding
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports.drivers import Leak, leak_of

from .own_data import write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture


def run_on(formula):
    """A run on three columns of numbers in other units and a category; the formula takes the numbers in their units."""
    x, kind = torch.randn(200, 3), torch.eye(2)[torch.randint(2, (200,))]
    units = torch.tensor([[2.0, 5.0, 10.0], [3.0, 0.5, 70.0]])  # means and scales
    y = formula(units[0] + units[1] * x, kind[:, 0])
    features = [
        *(
            Feature(name, "number", "", [0], [float(a)], [float(b)], [], False)
            for name, a, b in zip("abc", *units, strict=True)
        ),
        Feature("kind", "category", "", [], [], [], ["yes", "no"], False),
    ]
    target = Target("y", [], [float(y.mean())], [float(y.std())])
    facts = Facts("", 200, 0, [5], target, TableEncoding(features), None, [])
    y = ((y - y.mean()) / y.std())[:, None]
    return SimpleNamespace(rows=SimpleNamespace(facts=facts, x_train=torch.cat([x, kind], 1), y_train=y))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (lambda x, kind: x[:, 0] + x[:, 2], Leak(("a", "c"), True)),
        (lambda x, kind: x[:, 1], Leak(("b",), True)),
        (lambda x, kind: 2 * x[:, 0] - x[:, 1], Leak(("a", "b"), False)),
        (lambda x, kind: x[:, 0] + kind, Leak(("a", "kind"), False)),
        (lambda x, kind: x[:, 0] + 0.1 * torch.randn(len(x)), None),
        (lambda x, kind: x[:, 0] * x[:, 1], None),
    ],
)
def test_the_columns_of_a_formula_are_found(formula, expected):
    assert leak_of(run_on(formula)) == expected


def test_a_sum_of_columns_begins_the_report_and_problems_come_before_notes(pyro_bnn, tmp_path):
    numbers = np.random.default_rng(0)
    rows = [[*numbers.integers(1, 100, 2).tolist(), repr(numbers.normal())] for _ in range(100)]
    table = write_table(tmp_path / "t.csv", [[a, b, c, a + b] for a, b, c in rows], ("casual", "member", "wind", "all"))
    options = ("--target", "all", "--epochs", 3, "--kl-weight", 0.5, "--ignore", "wind")
    code, trained, printed = pyro_bnn("train", table, *options, "--out", tmp_path / "run", "--json")
    hint = (
        "Linear regression is almost exact: columns casual and member add up to the target. If these columns are "
        "unknown when you predict, train without them (--ignore wind,casual,member)."
    )
    assert (code, json.loads(trained)["notes"].count(hint)) == (0, 1)
    assert f"\n{hint}\n" in printed
    found = json.loads(pyro_bnn("report", tmp_path / "run", "--json")[1])
    said = "columns casual and member add up to the target (leave them out: --ignore wind,casual,member)"
    assert found["headline"].startswith(f"Not usable as it is. C{said[1:]}; ")
    levels = [
        (verdict["level"] != "problem", not verdict["is_cause"], verdict["level"] == "good")
        for verdict in found["verdicts"]
    ]
    assert levels == sorted(levels)  # problems come first, then possible causes
    assert {False, True} == {is_right for *_, is_right in levels}
    assert found["verdicts"][0]["text"].startswith("Columns casual and member add up to the target: ")


@pytest.mark.nightly
def test_one_command_has_the_changes_of_all_verdicts(pyro_bnn, tmp_path):
    numbers = np.random.default_rng(0).integers(1, 100, (100, 2))
    table = write_table(tmp_path / "t.csv", [[a, b, a + b] for a, b in numbers.tolist()], ("casual", "member", "all"))
    assert pyro_bnn("train", table, "--target", "all", "--epochs", 3, "--out", tmp_path / "run")[0] == 0
    _, found, printed = pyro_bnn("report", tmp_path / "run", "--json")
    changed = [verdict for verdict in json.loads(found)["verdicts"] if verdict["changes"]]
    changes = {name: value for verdict in changed for name, value in verdict["changes"].items()}
    assert changes.keys() == {"ignore", "epochs"}  # intervals are corrected after the causes of faults are mended
    [command] = {verdict["command"] for verdict in changed}
    for option in ("--ignore casual,member", f"--epochs {changes['epochs']}", "--target all"):
        assert f" {option} " in command
    assert command.endswith(f" --out {tmp_path / 'run-2'}")
    said = "To train again with the next changes to try:"
    assert f"\n\n{said}\n{command}\n\nReport, with" in printed
    page = (tmp_path / "run" / "report.html").read_text()
    page = page.replace("<span class=option>", "").replace("</span>", "")
    assert (printed.count("pyro-bnn train"), page.count(f"Train again:</p>\n<pre>{command}</pre>")) == (1, 1)
