"""`pyro-bnn predict` says what is known of the run's faults."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import json

import pytest

from pyro_bnn.app.folders import updating
from pyro_bnn.app.runs import known_verdict, write_verdict

from .own_data import QUICK, houses, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture


@pytest.fixture
def run(pyro_bnn, tmp_path):
    """A variational run whose training was too short."""
    table = write_table(tmp_path / "houses.csv", houses())
    assert pyro_bnn("train", table, "--target", "price", "--out", tmp_path / "run", *QUICK, "--epochs", 3)[0] == 0
    return tmp_path / "run"


def judge(run, headline):
    with updating(run, command="evaluate") as folder:
        write_verdict(folder, headline)


def test_a_training_that_was_too_short_is_told_with_every_prediction(pyro_bnn, run):
    table, out = run.parent / "houses.csv", run.parent / "out.csv"
    short = "too few epochs to tell whether training had settled"
    code, _, err = pyro_bnn("predict", run, table, "--out", out)
    expected = f"{short.capitalize()}. To see whether the predictions are usable: pyro-bnn report {run}\n"
    assert (code, err.startswith(expected)) == (0, True), err
    assert expected.strip() in json.loads(pyro_bnn("predict", run, table, "--json")[1])["notes"]


def test_a_verdict_that_is_known_is_quoted(pyro_bnn, run):
    table, out = run.parent / "houses.csv", run.parent / "out.csv"
    code, text, _ = pyro_bnn("evaluate", run, "--json")
    headline = json.loads(text)["headline"]
    assert (code, known_verdict(run)) == (0, headline)
    _, _, err = pyro_bnn("predict", run, table, "--out", out)
    verdict, _, reasons = headline.partition(". ")
    worst, cause = reasons.partition(";")[0], "possible cause: too few epochs to tell whether training had settled"
    assert verdict.startswith(("Usable", "Not usable"))
    assert f"; {cause}" in reasons
    worst = f"{worst[0].lower()}{worst[1:]}"
    expected = f"Verdict on the test rows: {verdict}; {worst}; {cause}. Why: pyro-bnn report {run}\n"
    assert err.startswith(expected), err
    assert "To see whether" not in err
    assert pyro_bnn("report", run)[0] == 0
    (run / "verdict.json").unlink()
    assert known_verdict(run) == ""
    assert pyro_bnn("predict", run, table, "--out", out, "--force")[2].startswith("Too few epochs")


@pytest.mark.parametrize(
    ("headline", "is_told"),
    [
        ("Usable. RMSE 1.", False),
        ("Usable for predictions, not for uncertainty. Too wide.", True),
        ("Not usable as it is. Beaten by a line (NLL 2.5; RMSE 3); the training stopped too early.", True),
        ("Usable, with notes. The intervals are slightly too wide. RMSE 1.", False),
    ],
)
def test_a_bad_verdict_is_told_for_a_run_without_another_fault(pyro_bnn, run, monkeypatch, headline, is_told):
    monkeypatch.setattr("pyro_bnn.app.reports.page.fit.FEWEST_EPOCHS", 0)
    monkeypatch.setattr("pyro_bnn.app.reports.page.fit.STILL_FALLING", 1e9)
    monkeypatch.setattr("pyro_bnn.app.reports.page.fit.SHORT", 0)
    judge(run, headline)
    _, _, err = pyro_bnn("predict", run, run.parent / "houses.csv", "--out", run.parent / "out.csv")
    short = headline.partition("; the")[0].removesuffix(".").replace(". T", "; t").replace(". B", "; b")
    assert err.startswith(f"Verdict on the test rows: {short}. Why: pyro-bnn report {run}\n") == is_told
    assert ("Verdict" in err) == is_told


def test_the_report_keeps_its_verdict_only_in_the_run_itself(pyro_bnn, run):
    assert pyro_bnn("report", run, "--out", run.parent / "page.html")[0] == 0
    assert known_verdict(run) == ""


def test_the_sentences_below_the_table_are_wrapped_between_words(pyro_bnn, run, monkeypatch):
    rows = write_table(run.parent / "new.csv", houses(5))
    monkeypatch.setenv("COLUMNS", "60")
    err = pyro_bnn("predict", run, rows)[2]
    assert "Scores of 5 rows: RMSE" in err
    short = [line for line in err.splitlines() if str(run.parent) not in line]  # a path is never broken
    assert max(map(len, short)) <= 60
    monkeypatch.delenv("COLUMNS")
    assert " ".join(err.split()) == " ".join(pyro_bnn("predict", run, rows)[2].split())
    assert len(pyro_bnn("predict", run, rows)[2].splitlines()) < len(err.splitlines())


def test_rows_unlike_the_training_rows_are_told(pyro_bnn, run):
    rows = houses(4)
    told = "The predicted standard deviation of"
    assert told not in pyro_bnn("predict", run, write_table(run.parent / "like.csv", rows))[2]
    rows[1][0], rows[3][0] = "1e6", "-1e6"  # areas that are far outside of the training data
    notes = json.loads(pyro_bnn("predict", run, write_table(run.parent / "unlike.csv", rows), "--json")[1])["notes"]
    assert notes[-1].startswith(f"{told} 2 rows (2, 4) is more than 3 times that of the training targets.")


def test_all_kinds_of_faults_in_new_rows_are_named_at_once(pyro_bnn, run):
    rows = houses(5)
    rows[1][:3] = "big", "", "Paris"
    code, _, err = pyro_bnn("predict", run, write_table(run.parent / "new.csv", rows))
    said = " ".join(err.split())
    assert (code, said.count(" Also, ")) == (2, 2)
    for fault in ("lacks values in column 'rooms'", "column 'city' holds 'Paris'", "'big' in line 3"):
        assert fault in said
