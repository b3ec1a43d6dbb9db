"""The word for whether a run is usable, in the JSON of `evaluate` and `report`, and the first line of the report."""

import pytest

from pyro_bnn.app.reports.page import STEPS, page_of
from pyro_bnn.app.reports.page.section import DECISIONS, Headline, Verdict, first_line, leading, level_of, usability


def fault(level, about, is_beaten=False):
    return Verdict(level, about, "a fault", "A fault.", "", is_beaten=is_beaten)


@pytest.mark.parametrize(
    ("faults", "word", "level"),
    [
        ([], "usable", "good"),
        ([("note", "fit")], "usable with notes", "note"),
        ([("note", "baseline", True)], "usable with notes", "note"),
        ([("problem", "uncertainty"), ("note", "fit")], "usable for predictions only", "problem"),
        ([("problem", "uncertainty"), ("note", "baseline", True)], "not usable", "problem"),
        (
            [("note", "unclear"), ("note", "baseline", True), ("problem", "uncertainty")],
            "too few rows to tell",
            "problem",
        ),
        ([("note", "unclear")], "too few rows to tell", "note"),
        ([("problem", "predictions"), ("note", "unclear")], "not usable", "problem"),
        ([("problem", "fit")], "not usable", "problem"),
    ],
)
def test_the_decision_follows_from_the_worst_verdict(faults, word, level):
    verdicts = [fault("good", "predictions"), *(fault(*each) for each in faults)]
    assert (usability(verdicts), level_of(verdicts)) == (word, level)
    assert first_line(verdicts, "RMSE 2").decision == f"{DECISIONS[word]}."


def test_a_decision_is_short():
    assert max(len(decision.split()) for decision in DECISIONS.values()) <= 8


def test_the_worst_faults_are_the_reasons():
    wide = Verdict("note", "uncertainty", "the intervals are too wide", "", "", is_named=True)
    tied = Verdict("note", "baseline", "not clearly better than a line", "", "")
    early = Verdict("note", "limit", "stopped too early", "", "", is_cause=True)
    narrow = Verdict("problem", "uncertainty", "the intervals are too narrow", "", "")
    assert str(first_line([wide], "RMSE 2")) == "Usable, with notes. The intervals are too wide. RMSE 2."
    line = first_line([tied, fault("note", "uncertainty"), wide, early], "RMSE 2")
    assert line.reasons == "Stopped too early; the intervals are too wide; not clearly better than a line; 1 more note."
    line = first_line([tied, wide, early, narrow], "RMSE 2")
    assert line.reasons.startswith("The intervals are too narrow; possible cause: stopped too early; ")
    assert leading([tied, wide, early, narrow]) == [narrow, early]
    assert leading([tied, wide, early]) == [early]
    line = first_line([fault("problem", "uncertainty"), *4 * [narrow]], "RMSE 2")
    assert "more note" not in line.reasons  # every problem is named
    assert first_line([fault("problem", "fit")], "RMSE 2").scores == ""


def test_the_page_begins_with_one_step_and_folds_what_is_right():
    assert STEPS.keys() == DECISIONS.keys()
    early = Verdict("note", "limit", "early", "Stopped early.", "", is_cause=True, changes={"epochs": 8})
    narrow = Verdict("problem", "uncertainty", "narrow", "Too narrow.", "")
    headline = Headline("Not usable as it is.", step="Train again:", command="pyro-bnn train")
    good = Verdict("good", "fit", "", "Settled.", "")
    page = page_of("", "", headline, [narrow, early, good], [])
    parts = ("Not usable", "Train again:", "Too narrow.", "Stopped early.", "<summary>1 check found no", "Settled.")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert "found no fault" not in page_of("", "", headline, [narrow], [])
