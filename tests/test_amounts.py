"""Columns of amounts and times are read as numbers, and whole numbers are guessed to be counts or classes."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import re
import time

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.app import runs, sources
from pyro_bnn.app.own.amounts import TIME, numbers_or_amounts
from pyro_bnn.app.own.cells import Cells
from pyro_bnn.app.own.targets import Target, guessed, target_numbers
from pyro_bnn.app.starting import new_config
from pyro_bnn.auto.choosing import Deadline, UnsuitableError, longer_limit

from .folders import train_run
from .own_data import QUICK, houses, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture


def cells_of(*texts):
    return Cells("a", "t.csv", pd.Series(texts, index=range(1, len(texts) + 1), dtype=object))


@pytest.mark.parametrize(
    ("texts", "numbers", "form"),
    [
        (("$1,990.00", "-$5.50"), [1990, -5.5], "$1,234.5"),
        (("$1,990", "$990"), [1990, 990], "$1,234.5"),
        (("1.990 €", "990 €"), [1990, 990], "1.234,5 €"),
        (("CHF 1,000,211", "CHF 4,000"), [1000211, 4000], "CHF 1,234.5"),
        (("1'200.50 CHF", "3.00CHF"), [1200.5, 3], "1 234.5 CHF"),
        (("37%", "5 %", "0"), [37, 5, 0], "1234.5%"),
        (("12 kg", "3.5 kg", None), [12, 3.5, np.nan], "1234.5 kg"),
        (("5 m2", "7 m2"), [5, 7], "1234.5 m2"),
        (("09:30", "17:45:36", None), [9.5, 17.76, np.nan], TIME),
        (("1234.5", "2"), [1234.5, 2], ""),
    ],
)
def test_amounts_and_times_are_numbers(texts, numbers, form):
    found, written = numbers_or_amounts(cells_of(*texts))
    np.testing.assert_allclose(found, numbers)
    assert written == form
    np.testing.assert_allclose(numbers_or_amounts(cells_of(*texts), form)[0], numbers)


@pytest.mark.parametrize(
    "texts", [("Q1", "Q2"), ("zone 3", "zone 4"), ("3 street", "4 street"), ("5 kg", "5 g"), ("$5", "€5"), ("a", "b")]
)
def test_other_texts_stay_texts(texts):
    assert numbers_or_amounts(cells_of(*texts)) is None


def test_another_sign_than_in_training_is_not_read():
    assert numbers_or_amounts(cells_of("€5", "€6"), "$1,234.5") is None
    assert numbers_or_amounts(cells_of("09:30"), "$1,234.5") is None
    assert numbers_or_amounts(cells_of("$5"), TIME) is None
    assert "$" not in numbers_or_amounts(cells_of("5", "6"), "$1,234.5")[1]


def amounts(path, num_rows=40, *, odd=None):
    """A table whose columns are amounts and times; `odd` replaces the first amount."""
    x = np.random.default_rng(0).normal(size=num_rows)
    frame = pd.DataFrame(
        {
            "money": [f"${2000 + 100 * a:,.2f}" for a in x],
            "pct": [f"{50 + 10 * a:.0f}%" for a in x],
            "when": [f"{i % 24:02d}:{7 * i % 60:02d}" for i in range(num_rows)],
            "y": x,
        }
    )
    if odd:
        frame.loc[0, "money"] = odd
    frame.to_csv(path, index=False)
    return path


def test_new_rows_are_read_as_in_training(tmp_path):
    config = new_config(str(amounts(tmp_path / "t.csv")), None, {"target": "y", "epochs": 1})[0]
    data = sources.load(config)
    assert [feature.kind for feature in data.facts.table.features] == ["number"] * 3
    assert "Numbers in 'money' are read as in this example: $1,234.5 is 1234.5." in data.notes
    assert "Times in 'when' are read as hours: 09:30 is 9.5." in data.notes
    train_run(config, data, tmp_path / "run")
    facts = runs.read_facts(tmp_path / "run")
    again = sources.read_sample(config, facts, tmp_path / "t.csv")
    pd.testing.assert_frame_equal(pd.DataFrame(again.x[[row - 1 for row in data.test_rows]]), pd.DataFrame(data.x_test))
    new = tmp_path / "new.csv"
    new.write_text("money,pct,when\n2000.5,50,9:30\n")
    sample = sources.read_sample(config, facts, new)
    assert any("lack '%', which they had in training" in note for note in sample.notes)
    new.write_text("money,pct,when\n€2000.5,50%,9:30\n")
    with pytest.raises(ValueError, match=r"must hold numbers, as in training \(\$1,234.5\), but holds texts such as"):
        sources.read_sample(config, facts, new)


def test_a_target_in_another_unit_is_refused_by_name_and_one_without_its_unit_is_told():
    cells = cells_of("50.1 kg", "51.2 kg", "52.3 kg")
    target = Target("y", [], [50.0], [1.0], target_numbers(cells)[1])
    assert target.on_unit(cells) == []
    bare = cells_of("50.6", "50.7")
    torch.testing.assert_close(target.encoded(bare), torch.tensor([[0.6], [0.7]]))
    said = "Numbers in 'y' lack 'kg', which they had in training: they are read as if they had it."
    assert target.on_unit(bare) == [said]
    with pytest.raises(ValueError, match=r"must hold numbers, as in training \(1234.5 kg\), got '50.6 lb' in row"):
        target.encoded(cells_of("50.6 lb"))


def test_a_cell_that_hides_amounts_is_named(tmp_path):
    path = amounts(tmp_path / "t.csv", odd="call us")
    data = sources.load(new_config(str(path), None, {"target": "y"})[0])
    assert any(note.startswith("Warning: Most cells of column 'money' are numbers with a unit") for note in data.notes)
    assert any("but not 'call us' in line 2" in note for note in data.notes)


@pytest.mark.parametrize("rate", [0.8, 1.5, 3.0])
def test_whole_numbers_with_a_falling_tail_are_counts(rate):
    counts = np.random.default_rng(1).poisson(rate, 1500).clip(max=9)
    counts = counts[counts < 9] if (counts == 9).sum() > 20 else counts
    likelihood, reason = guessed(cells_of(*map(str, counts)))
    is_long = len({*counts}) >= 6
    assert likelihood == ("poisson" if is_long else "categorical"), reason
    assert ("--likelihood categorical" if is_long else "poisson for counts") in reason


@pytest.mark.parametrize(
    "sizes", [[50] * 10, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], [164, 55, 36, 35, 13], [0, 9, 80, 60, 9]]
)
def test_labels_of_classes_stay_classes(sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    likelihood, reason = guessed(cells_of(*map(str, labels)))
    assert (likelihood, "--likelihood gaussian, or poisson for counts" in reason) == ("categorical", True)


def test_small_digits_stay_classes():
    for seed in range(50):
        labels = np.random.default_rng(seed).integers(10, size=100)
        assert guessed(cells_of(*map(str, labels)))[0] == "categorical"


def test_a_column_that_is_both_used_and_ignored_is_named(tmp_path):
    path = write_table(tmp_path / "houses.csv", houses())
    with pytest.raises(ValueError, match="area is in both --features and --ignore"):
        new_config(str(path), None, {"target": "price", "features": ("area",), "ignore": ("area",)})


def test_a_name_without_its_umlaut_is_recognised(tmp_path):
    rows = [[2000 + i, i % 7, 2.0 * i] for i in range(20)]
    path = write_table(tmp_path / "t.csv", rows, ("TÜV", "x", "y"))
    config = new_config(str(path), None, {"target": "y", "split_by": "TUEV"})[0]
    with pytest.raises(ValueError, match="has no column 'TUEV'; did you mean 'TÜV'"):
        sources.load(config)


def test_the_share_inside_of_sets_is_told(pyro_bnn, tmp_path):
    rows = [[*house[:4], "high" if float(house[4]) > 220 else "low"] for house in houses(200)]
    table, run = write_table(tmp_path / "t.csv", rows), tmp_path / "run"
    assert pyro_bnn("train", table, "--target", "price", "--calibrate", 0.3, "--out", run, *QUICK)[0] == 0
    code, _, err = pyro_bnn("predict", run, table, "--level", "0.8", "--out", tmp_path / "p.csv")
    assert (code, "in 80 %: " in err) == (0, True), err


@pytest.mark.parametrize(
    ("start", "seconds", "times", "limit"),
    [
        (17, 0, 4, 40),  # at least the time of a fit without a limit, which is 20 s for 40 rows on one core
        (17, 60, 2, 140),
        (17, 60, 4.1, 0),  # more than four times: unlikely to suffice
        (3, 1, 99, 30),  # a very short fit tells little
    ],
)
def test_an_advised_limit_counts_the_start_and_is_not_too_long(start, seconds, times, limit):
    assert longer_limit(start, seconds, 40, times) == limit
    if not seconds:
        deadline = Deadline(8.0, time.perf_counter() - start)  # here, the imports took longer than the limit
        assert min(deadline.longer(40), deadline.rest().longer(40)) >= limit


def test_options_are_written_in_one_way(pyro_bnn, tmp_path):
    for typed in (("predict", "r", "t.csv", "--num-samples", "x"), ("train", "digits", "--lr", "x")):
        code, _, err = pyro_bnn(*typed)
        assert (code, "'--" in err, "`--" in err) == (2, False, False), err


@pytest.mark.daily("90-*")
@pytest.mark.parametrize(
    ("enough", "remedy"),
    [
        (90, r"For chains, which are often more accurate, pass --time-limit (\d+)\."),
        (0, r"Train longer: --method svi --time-limit (\d+) should suffice for all 3,000 epochs\."),
    ],
)
def test_the_report_on_a_fit_that_was_cut_short_repeats_the_remedy(pyro_bnn, tmp_path, monkeypatch, enough, remedy):
    def refuse(*args, **kwargs):
        raise UnsuitableError("chains are impossible", enough=enough)

    monkeypatch.setattr(runs, "fit_chains", refuse)
    few = ("--hidden", 3, "--activation", "relu", "--prior", "normal:1", "--likelihood", "gaussian")
    table = write_table(tmp_path / "t.csv", houses(60))
    options = ("--target", "price", *few, "--time-limit", 0.1, "--out", tmp_path / "run")
    code, out, _ = pyro_bnn("train", table, *options)
    assert code == 0
    assert "The fit is variational, since chains are impossible." in out
    found = re.search(f"The time limit ended the training after [^.]*. ({remedy})$", out.splitlines()[-1])
    assert found, out
    assert out.count("--time-limit") == 1
    _, out, _ = pyro_bnn("report", tmp_path / "run")
    ended = r"\nnote:     The time limit ended the training after \d+ of 3,000 epochs\. "
    assert re.search(ended + re.escape(found[1]) + "\n", out)
    command = next(line for line in out.splitlines() if line.startswith("pyro-bnn train"))
    assert f" --time-limit {found[2]} " in command
