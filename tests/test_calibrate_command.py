"""`pyro-bnn train --calibrate`: rows that are not fitted correct the intervals and sets of a run."""

import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import binom

import pyro_bnn as pb
from pyro_bnn.app import runs, sources
from pyro_bnn.app.cli import main
from pyro_bnn.app.reports import trained
from pyro_bnn.app.reports.calibrated import BeforeAndAfter, limits_by_chance
from pyro_bnn.app.reports.page.fit import training_command

from .own_data import houses, predictions_in, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

pytestmark = pytest.mark.usefixtures("short_chains")

WRONG_NOISE = ("--likelihood", "gaussian:100", "--hidden", 4, "--epochs", 30)
"""Fifty times the noise of `houses`: the network's own intervals contain every target."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on houses whose intervals are calibrated, made once."""
    folder = tmp_path_factory.mktemp("runs")
    table = write_table(folder / "houses.csv", houses(400))
    arguments = ["train", table, "--target", "price", "--calibrate", 0.5, "--out", folder / "run", *WRONG_NOISE]
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["pyro-bnn", *map(str, arguments)])
        torch.set_default_dtype(torch.float32)
        with pytest.raises(SystemExit) as stop:
            main()
        torch.set_default_dtype(before)
    assert not stop.value.code
    return folder


@pytest.fixture
def place(made, tmp_path):
    """A copy of the folder, to write into."""
    return shutil.copytree(made, tmp_path / "place")


def inside(out, level):
    """The share of the prices of 2000 new houses inside of predicted intervals."""
    rows = predictions_in(out)
    prices = np.array([float(row[-1]) for row in houses(2000, seed=9)])
    low, high = (np.array([float(row[f"{end}_{level}"]) for row in rows]) for end in ("lower", "upper"))
    return float(((low <= prices) & (prices <= high)).mean())


def test_intervals_of_new_rows_contain_the_promised_share(pyro_bnn, place):  # noqa: F811
    rows, out = write_table(place / "new.csv", houses(2000, seed=9)), place / "out.csv"
    code, _, err = pyro_bnn("predict", place / "run", rows, "--level", ".5,.8", "--out", out)
    assert code == 0
    for level in (50, 80):
        rank = math.ceil(161 * level / 100)  # of 160 calibration rows: coverage is Beta(rank, 161 - rank)
        share = rank / 161
        error = math.sqrt(share * (1 - share) * (1 / 162 + 1 / 2000))
        assert inside(out, level) == pytest.approx(share, abs=4 * error)
    assert "The intervals (lower and upper) are calibrated; the mean and the standard deviations (sd) are not." in err
    said = float(re.search("in 50 %: ([0-9.]+) %", err)[1])  # the printed scores are those of the same intervals
    assert said == pytest.approx(100 * inside(out, 50), abs=0.3)  # whose ends are rounded


def test_before_and_after_are_measured_on_test_rows(pyro_bnn, place, monkeypatch):  # noqa: F811
    counted = mock.Mock(side_effect=trained.predict)
    monkeypatch.setattr(trained, "predict", counted)
    code, said, _ = pyro_bnn("evaluate", place / "run")
    assert code == 0
    assert counted.call_count == 1, "the headline uses the predictions that were scored"
    found = json.loads((place / "run" / "metrics.json").read_text())["calibration"]
    assert [row["level"] for row in found["rows"]] == [0.5, 0.5, 0.9, 0.9, 0.95, 0.95]
    assert "95 %, calibrated" in said
    assert "\nsmallest, middle and largest sd: the share inside in each third of the test rows, sorted by" in said
    assert "in 95 %" not in said  # one table has the shares in intervals
    assert "Calibration was needed: before it, the intervals of 50 % and 90 % were wrong by more than chance." in said
    assert re.search(r"\n[A-Z].*\.\n(- .*\.\n){1,3}Metrics and pictures in ", said)  # decision and findings
    before, after = found["rows"][2:4]
    assert (before["name"], after["name"], found["num_calibration"]) == ("network", "calibrated", 160)
    assert before["inside"] == 1
    low, high = limits_by_chance(0.9, 160, 80)
    assert low <= after["inside"] <= high
    assert after["width"] < 0.5 * before["width"]
    assert np.average(after["thirds"], weights=[27, 27, 26]) == pytest.approx(after["inside"])
    assert "100.0 %" in said
    code, said, _ = pyro_bnn("report", place / "run")
    assert code == 0
    assert "Too few rows to judge the intervals" in said
    page = (place / "run" / "report.html").read_text()
    assert "Before and after calibration" in page
    assert "the random choice of the 160 rows that calibrated" in page
    assert "largest sd" in page
    assert "Inside their calibrated 90\xa0% interval" in page


def measured(level, name, inside, width, num_calibration):
    """A row of a table of 200 test rows with independent errors."""
    own = tuple(part / 200 for part in binom.interval(0.99, 200, level))
    limits = own if name == "network" else limits_by_chance(level, num_calibration, 200)
    return {"level": level, "name": name, "inside": inside, "limits": limits, "width": width, "thirds": [inside] * 3}


@pytest.mark.parametrize(
    ("shares", "kind", "size", "is_needed"),
    [
        ((0.92, 0.96), "", 1.0, False),
        ((0.8, 0.96), "", 1.0, True),
        ((0.99, 1.0), "", 1.0, True),
        ((0.99, 1.0), "count", 1.0, False),
        ((0.99, 1.0), "class", 1.3, True),  # sets that could be smaller
        ((0.99, 1.0), "class", 1.0, False),  # sets of one class
    ],
)
def test_it_is_said_whether_calibration_was_needed(shares, kind, size, is_needed):
    """Of 200 rows, correct intervals of 90 % hold 84 % to 95 % in 99 % of the cases; those of counts may hold more."""
    rows = [
        measured(level, name, inside, width, 100)
        for level, share in zip((0.9, 0.95), shares, strict=True)
        for name, inside, width in (("network", share, size), ("calibrated", level, 1.0))
    ]
    said = str(BeforeAndAfter(100, 200, kind == "class", kind == "count", rows)).splitlines()[-1]
    assert said.startswith("Calibration was needed: " if is_needed else "Calibration was not needed: ")
    assert ("held at least the promised shares" in said) == (bool(kind) and not is_needed)


@pytest.mark.parametrize(
    ("before", "after", "width", "said", "share"),
    [
        (0.565, 0.52, 1.4, "", 0.2),
        (0.565, 0.9, 1.4, "made right intervals worse (50 %: 56.5 % inside before and 90.0 % after): train w", None),
        (0.565, 0.52, 1.9, "made right intervals worse (50 %: 1.9 times as wide): train without --calibrate.", None),
        (0.9, 0.52, 1.9, "", 0.2),  # intervals that are wrong may change
        (0.9, 0.9, 1.0, "made the intervals worse, though those of 50 % were not right before (50 %: 90.0 %", 0.4),
        (0.95, 0.9, 1.0, "was needed for the intervals of 50 %, but did not suffice (50 %: 95.0 %", 0.4),
    ],
)
def test_one_conclusion_is_drawn_and_the_command_follows_it(before, after, width, said, share):
    rows = [
        measured(level, name, inside, size, 20)
        for level, *own in ((0.5, before, after), (0.9, 0.9, 0.9))
        for name, inside, size in zip(
            ("network", "calibrated"), own, (1.0, width if level == 0.5 else 1.0), strict=True
        )
    ]
    found = BeforeAndAfter(20, 200, False, False, rows)
    assert said in found.conclusion
    assert ({"calibrate": 0.2} | found.changes(0.2)) == {"calibrate": share}
    assert found.changes(0.5) == ({} if share else {"calibrate": None})  # no more rows than half of them
    config = SimpleNamespace(seed=0, net="mlp", kind="table", dataset="houses.csv")
    subject = SimpleNamespace(config=config, asked={"calibrate": 0.2}, run=Path("run"))
    assert ("--calibrate" in training_command(subject, "2", found.changes(0.2))) == (share is not None)


def test_rows_are_fitted_calibrate_or_test_and_encodings_are_learned_from_those_that_are_fitted(made):
    config, facts = runs.load_config(made / "run"), runs.read_facts(made / "run")
    data = sources.load(config, facts=facts)
    x_held, y_held = data.held_out
    parts = [(data.x_train, data.y_train), (x_held, y_held), (data.x_test, data.y_test)]
    assert [len(x) for x, _ in parts] == [160, 160, 80]
    rows = {tuple(row.tolist()) for x, y in parts for row in torch.cat([x, y], 1)}
    assert len(rows) == 400
    assert facts.num_train == 160
    torch.testing.assert_close(data.x_train[:, 0].mean(), torch.tensor(0.0), atol=1e-10, rtol=0)
    assert abs(float(x_held[:, 0].mean())) > 1e-3
    torch.testing.assert_close(data.y_train.mean(), torch.tensor(0.0), atol=1e-10, rtol=0)


def test_the_latest_training_rows_calibrate_if_rows_are_split_by_time(tmp_path):
    rows = [[row, *house] for row, house in enumerate(houses(100))]
    np.random.default_rng(0).shuffle(rows)
    table = write_table(tmp_path / "t.csv", rows, ("day", "area", "rooms", "city", "garden", "price"))
    given = {"target": "price", "features": ("day",), "split_by": "day", "calibrate": 0.25, "method": "svi"}
    config, _ = sources_config(table, given)
    data = sources.load(config)
    days = [part[:, 0] for part in (data.x_train, data.held_out[0], data.x_test)]
    assert [len(part) for part in days] == [60, 20, 20]
    assert days[0].max() < days[1].min()
    assert days[1].max() < days[2].min()


def sources_config(table, given):
    from pyro_bnn.app.starting import new_config

    return new_config(str(table), None, given)


def kinds(num_rows, seed):
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(num_rows, 2))
    labels = (x[:, 0] + numbers.normal(size=num_rows) > 0).astype(int) + (x[:, 1] > 1)
    return [[repr(u), repr(v), "abc"[label]] for (u, v), label in zip(x.tolist(), labels, strict=True)]


def test_classes_get_sets(pyro_bnn, tmp_path):  # noqa: F811
    table, run = write_table(tmp_path / "kinds.csv", kinds(400, 0), ("u", "v", "kind")), tmp_path / "run"
    rows, out = write_table(tmp_path / "new.csv", kinds(1000, 1), ("u", "v", "kind")), tmp_path / "out.csv"
    trained = pyro_bnn("train", table, "--target", "kind", "--calibrate", 0.4, "--out", run, "--epochs", 40, "--json")
    assert json.loads(trained[1])["num_calibration"] == 128
    assert "coverage   calibrated 90 % sets of classes hold" in trained[2]
    assert pyro_bnn("predict", run, rows, "--level", ".8,.95", "--out", out)[0] == 0
    found, labels = predictions_in(out), [row[-1] for row in kinds(1000, 1)]
    assert [name for name in found[0] if name.startswith("set_")] == [
        f"set_{level}({name})" for level in (80, 95) for name in "abc"
    ]
    sizes = {}
    for level in (80, 95):
        held = np.mean([row[f"set_{level}({label})"] == "1" for row, label in zip(found, labels, strict=True)])
        share = level / 100
        assert held > share - 4 * math.sqrt(share * (1 - share) * (1 / 130 + 1 / 1000))
        sizes[level] = np.mean([sum(int(row[f"set_{level}({name})"]) for name in "abc") for row in found])
    assert 1 < sizes[80] < sizes[95] <= 3
    assert sizes[80] < 2.6
    assert pyro_bnn("report", run)[0] == 0
    page = (run / "report.html").read_text()
    assert "Too few rows to judge the sets" in page
    assert "largest entropy" in page
    code, said, _ = pyro_bnn("evaluate", run)
    assert (code, said.startswith("sets of classes  "), "\n90 %, calibrated  " in said) == (0, True, True)


def doubtful(num_rows, seed):
    """Labels of three classes, of which the inputs tell little."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(num_rows, 3))
    labels = (x + numbers.gumbel(size=x.shape)).argmax(1)
    return [[*map(repr, row), "abc"[label]] for row, label in zip(x.tolist(), labels, strict=True)]


def test_sets_from_few_rows_are_neither_all_full_nor_empty(pyro_bnn, tmp_path):  # noqa: F811
    table, run = write_table(tmp_path / "t.csv", doubtful(120, 0), ("u", "v", "w", "kind")), tmp_path / "run"
    rows, out = write_table(tmp_path / "new.csv", doubtful(1000, 1), ("u", "v", "w", "kind")), tmp_path / "out.csv"
    trained = pyro_bnn("train", table, "--target", "kind", "--calibrate", 0.5, "--out", run, "--epochs", 40, "--json")
    assert json.loads(trained[1])["num_calibration"] == 48
    assert pyro_bnn("predict", run, rows, "--level", ".5,.9", "--out", out)[0] == 0
    found, labels = predictions_in(out), [row[-1] for row in doubtful(1000, 1)]
    sizes = {level: [sum(int(row[f"set_{level}({name})"]) for name in "abc") for row in found] for level in (50, 90)}
    assert min(sizes[50]) == min(sizes[90]) == 1
    assert np.mean(np.array(sizes[90]) == 3) < 0.9
    for level, share in ((50, 0.5), (90, 0.9)):
        held = np.mean([row[f"set_{level}({label})"] == "1" for row, label in zip(found, labels, strict=True)])
        assert held > share - 4 * math.sqrt(share * (1 - share) * (1 / 50 + 1 / 1000))


@pytest.mark.nightly
def test_counts_have_whole_ends(pyro_bnn, tmp_path):  # noqa: F811
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=300)
    rows = [[repr(float(u)), int(count)] for u, count in zip(x, numbers.poisson(np.exp(x)), strict=True)]
    table, run, out = write_table(tmp_path / "t.csv", rows, ("u", "count")), tmp_path / "run", tmp_path / "out.csv"
    options = ("--likelihood", "poisson", "--calibrate", 0.3, "--hidden", 4, "--epochs", 30)
    assert pyro_bnn("train", table, "--target", "count", *options, "--out", run)[0] == 0
    assert pyro_bnn("predict", run, table, "--level", ".9", "--out", out)[0] == 0
    ends = np.array([[float(row["lower_90"]), float(row["upper_90"])] for row in predictions_in(out)])
    assert (ends == ends.round()).all()
    assert ends.min() == 0
    assert pyro_bnn("report", run)[0] == 0


NETWORK = """
import torch

def make(input_shape, num_outputs):
    return torch.nn.Sequential(torch.nn.Linear(input_shape[0], 4), torch.nn.Tanh(), torch.nn.Linear(4, num_outputs))
"""


@pytest.mark.nightly
def test_arrays_a_network_of_ones_own_and_chains_are_calibrated_too(pyro_bnn, tmp_path):  # noqa: F811
    (tmp_path / "net.py").write_text(NETWORK)
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(260, 2))
    y = x @ [[1.0, 2.0], [0.0, 1.0]] + [0.1, 1.0] * numbers.standard_t(3, (260, 2))
    np.savez(tmp_path / "data.npz", x=x[:200], y=y[:200], x_test=x[200:], y_test=y[200:])
    options = ("--net", f"{tmp_path / 'net.py'}:make", "--method", "mclmc", "--calibrate", 0.3)
    code, said, err = pyro_bnn("train", tmp_path / "data.npz", *options, "--out", tmp_path / "run")
    assert (code, "60 test rows, and 60 rows for calibration." in said) == (0, True), err
    code, said, _ = pyro_bnn("evaluate", tmp_path / "run", "--json")
    _, _, before, after, *_ = json.loads(said)["calibration"]["rows"]
    assert code == 0
    assert 0.75 < after["inside"] < 1
    assert before["width"] != after["width"]
    found = runs.calibration_of(tmp_path / "run", runs.load_config(tmp_path / "run"))
    assert isinstance(found, pb.calibration.ConformalIntervals)
    assert found.num_rows == 60


def test_a_pruned_copy_is_calibrated_anew(pyro_bnn, place):  # noqa: F811
    code, _, err = pyro_bnn("prune", place / "run", "--keep", 0.2, "--out", place / "small")
    assert code == 0, err
    config = runs.load_config(place / "run")
    scores = [runs.calibration_of(place / name, config).to_record()["scores"] for name in ("run", "small")]
    assert scores[0].shape == scores[1].shape
    assert not torch.equal(*scores)
    assert pyro_bnn("evaluate", place / "small")[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--calibrate", 0.02),
            "holds out 6 of 320 training rows, and intervals of 95 % need 19; raise it, or leave it out",
        ),
        (
            ("--calibrate", 0.999),
            "--calibrate must leave a row to calibrate and two to fit, got 0.999 for 320 rows; choose at most 0.99.",
        ),
        (("--calibrate", 1), "--calibrate must be at least 0 and below 1, got 1.0."),
        (("--calibrate", 20), "--calibrate must be at least 0 and below 1, got 20.0 (did you mean 0.2?)."),
        (("--calibrate", 2), "--calibrate must be at least 0 and below 1, got 2.0."),
    ],
)
def test_shares_that_cannot_be_are_refused_before_the_fit(pyro_bnn, place, options, message):  # noqa: F811
    code, _, err = pyro_bnn("train", place / "houses.csv", "--target", "price", "--out", place / "x", *options)
    assert (code, message in err) == (2, True), err
    assert not (place / "x").exists()


def test_images_and_levels_that_need_more_rows_are_refused(pyro_bnn, place):  # noqa: F811
    code, _, err = pyro_bnn("train", "digits", "--calibrate", 0.2, "--out", place / "x")
    assert (code, "--calibrate goes with tables and arrays only" in err) == (2, True)
    code, _, err = pyro_bnn("predict", place / "run", place / "houses.csv", "--level", ".999")
    assert (code, "`level` 0.999 needs at least 999 calibration rows, got 160" in err) == (2, True)


def test_limits_by_chance_are_those_of_simulated_calibrations():
    numbers = np.random.default_rng(0)
    scores, new = numbers.uniform(size=(4000, 40)), numbers.uniform(size=(4000, 100))
    radius = np.sort(scores, 1)[:, math.ceil(0.9 * 41) - 1]
    shares = (new <= radius[:, None]).mean(1)
    low, high = limits_by_chance(0.9, 40, 100)
    assert ((low <= shares) & (shares <= high)).mean() == pytest.approx(
        0.99, abs=5 * 0.0016 + 0.005
    )  # shares are discrete
    too_narrow = [part / 100 for part in binom.interval(0.99, 100, 0.9)]  # as if calibration had no chance
    assert ((too_narrow[0] <= shares) & (shares <= too_narrow[1])).mean() < 0.97
