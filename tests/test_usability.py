"""The word for whether a run is usable, in the JSON of `evaluate` and `report`."""

import pytest

from pyro_bnn.app.reports.page.section import USABLE, Verdict, first_line, level_of, usability


def fault(level, about, beaten=""):
    return Verdict(level, about, "a fault", "A fault.", "", beaten=beaten)


@pytest.mark.parametrize(
    ("faults", "word", "start"),
    [
        ([], "usable", "Usable"),
        ([("note", "fit")], "usable with notes", "Usable"),
        ([("problem", "baseline")], "usable with notes", "Usable, but a fault"),
        ([("problem", "uncertainty"), ("note", "fit")], "usable for predictions only", "Usable for its predictions,"),
        ([("problem", "uncertainty"), ("note", "baseline", "trees")], "not usable", "Not usable as it is, neither"),
        ([("note", "baseline", "trees")], "usable with notes", "Usable, but a fault"),
        (
            [("note", "unclear"), ("note", "baseline", "x"), ("problem", "uncertainty")],
            "too few rows to tell",
            "Too few",
        ),
        ([("note", "unclear"), ("problem", "uncertainty")], "too few rows to tell", "Too few rows to tell whether"),
        ([("problem", "predictions"), ("note", "unclear")], "not usable", "Not usable as it is"),
        ([("problem", "fit")], "not usable", "Not usable as it is"),
    ],
)
def test_a_word_says_the_same_as_the_first_line(faults, word, start):
    verdicts = [fault("good", "predictions"), *(fault(*each) for each in faults)]
    assert first_line(verdicts, "RMSE 2").startswith(start)
    assert (usability(verdicts), word in USABLE) == (word, True)


def test_notes_on_intervals_are_named_in_the_decision():
    wide = Verdict("note", "uncertainty", "the 90 % intervals are slightly too wide", "", "", is_named=True)
    tied = Verdict("note", "baseline", "not clearly better than a line", "", "")
    assert first_line([wide], "RMSE 2") == f"Usable, but {wide.short}. RMSE 2."
    both = f"Usable, but {tied.short} and {wide.short}. RMSE 2; 1 more note in the report."
    assert first_line([wide, tied, fault("note", "uncertainty")], "RMSE 2") == both


@pytest.mark.parametrize(
    ("headline", "level"),
    [
        ("Usable. RMSE 2; 1 note in the report.", "good"),
        ("Usable, but the 90 % intervals are slightly too wide. RMSE 2.", "note"),
        ("Usable for its predictions, not for its uncertainty: a fault. RMSE 2.", "note"),
        ("Too few rows to tell whether it is usable. RMSE 2.", "note"),
        ("Not usable as it is: a fault.", "problem"),
    ],
)
def test_the_first_line_has_the_colour_of_its_decision(headline, level):
    assert level_of(headline) == level
