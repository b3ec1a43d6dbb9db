"""The parts of a report: sections with numbers for templates, and verdicts on the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from scipy.stats import binomtest

from ...._core.summary import counted
from ...config import LEVEL

Level: TypeAlias = Literal["good", "note", "problem"]
About: TypeAlias = Literal["predictions", "uncertainty", "fit", "baseline", "limit", "unclear"]
"""What a verdict is about. A note about "unclear" says that there are too few rows to tell whether the predictions are
of use. The first line of the report names all such notes, and all faults with `is_named`. It also names the first fault
about "baseline", "predictions" or "limit"."""

USABLE_RUN = "Usable"
UNSURE = f"{USABLE_RUN} for its predictions, not for its uncertainty"
UNUSABLE = "Not usable as it is"
NEITHER = f"{UNUSABLE}, neither for its predictions nor for its uncertainty"
UNCLEAR = "Too few rows to tell whether it is usable"
FEWEST = 50  # test rows for a verdict that finds no fault: with fewer, 90 % intervals may hold all by chance (0.9^50)
UNTOLD = ("too few rows", "too few errors", "too few images")  # what findings begin with that test rows cannot tell
ELSEWHERE = "in the report"  # where the first line says that more notes are, unless it is on the page itself
Case: TypeAlias = tuple[bool, Level, str, str]  # whether it holds, its level, and its finding in brief and in sentences


@dataclass(frozen=True)
class Verdict:
    """A finding in words. `short` is for the first line of the report, and is empty if the finding is good."""

    level: Level
    about: About
    short: str
    text: str
    rule: str  # the thresholds
    is_cause: bool = False  # whether this fault, such as a training that is too short, can have caused the others
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings with which another training may mend the fault
    command: str = ""  # the command that trains with the changes of all verdicts, if this one has changes
    is_named: bool = False  # whether the first line of the report names this fault, even if it is a note
    beaten: str = ""  # says in brief which other method predicts better; empty if there is none

    @property
    def is_untold(self) -> bool:
        """Whether the test rows are too few to tell. The page shows such notes in grey."""
        return self.level == "note" and self.short.startswith(UNTOLD)


@dataclass(frozen=True)
class Tile:
    """A number in large type at the top of the report, with a remark that explains or compares it."""

    name: str
    value: str
    remark: str


@dataclass(frozen=True)
class Section:
    """A section of the report. The verdicts and tiles of a section are shown at the top of the report."""

    title: str
    template: str
    values: Mapping[str, Any]  # what the template shows
    verdicts: tuple[Verdict, ...] = ()
    tiles: tuple[Tile, ...] = ()
    usable: str = ""  # scores of the run in words, for the first line of the report


def judged(about: About, rule: str, *cases: Case) -> Verdict:
    """Return a verdict made from the first of `cases` whose condition holds."""
    return next(Verdict(level, about, short, text, rule) for holds, level, short, text in cases if holds)


USABLE = "usable", "usable with notes", "usable for predictions only", "too few rows to tell", "not usable"
"""The words for whether a run is usable, as in the JSON of `evaluate` and `report`, from good to bad."""


def usability(verdicts: Sequence[Verdict]) -> str:
    """Return the text in `USABLE` that says whether a run with these verdicts is usable."""
    problems = {verdict.about for verdict in verdicts if verdict.level == "problem"}
    cases = (
        (bool(problems & {"predictions", "fit"}), "not usable"),
        (any(verdict.about == "unclear" and verdict.level == "note" for verdict in verdicts), "too few rows to tell"),
        ("uncertainty" in problems and any(verdict.beaten for verdict in verdicts), "not usable"),
        ("uncertainty" in problems, "usable for predictions only"),
        (any(verdict.level != "good" for verdict in verdicts), "usable with notes"),
    )
    return next((word for holds, word in cases if holds), "usable")


def first_line(verdicts: Sequence[Verdict], usable: str) -> str:
    """Return the first line of the report, with the decision, the reasons, and the scores in the text `usable`.

    If the run is not usable, the line has no scores.
    """
    if usability(verdicts) == "not usable":
        return _unusable_line(verdicts)
    problems = [verdict for verdict in verdicts if verdict.level == "problem"]
    notes = [verdict for verdict in verdicts if verdict.level == "note"]
    leaks = [verdict for verdict in problems if verdict.is_cause]
    causes = [note for note in notes if note.is_cause]
    unsure = [verdict for verdict in problems if verdict.about == "uncertainty"]
    unsure.sort(key=lambda verdict: not verdict.is_named)
    unclear = [note for note in notes if note.about == "unclear"]
    of_baseline = [verdict for verdict in verdicts if verdict.about == "baseline" and verdict.level != "good"]
    short_fits = [note for note in causes if unsure or note.about == "limit"]
    named = [note for note in notes if note.is_named and note not in short_fits]
    limits = [note for note in notes if note.about in ("predictions", "limit") and note not in (*causes, *named)]
    # the last verdict on a baseline is that on trees, which says what to do
    limits = [*leaks, *([] if unsure or unclear else short_fits), *reversed(of_baseline), *limits]
    if unclear:
        start, first, reasons = UNCLEAR, [], [*unclear, *short_fits, *unsure, *named, *limits]
    elif unsure:
        start, first, reasons = UNSURE, unsure[:1], [*short_fits, *unsure[1:], *named, *limits]
    else:  # one limit is enough, and other notes are below
        start, first = USABLE_RUN, [*limits[:1], *named]
        reasons = [limit for limit in limits[1:] if limit in problems]
    but = " and ".join(fault.short for fault in first)
    decision = (": " if unsure else ", but ").join(filter(None, [start, but]))
    why = f"{sentence('; '.join(reason.short for reason in reasons))}." if reasons else ""
    others = [note for note in notes if note not in (*first, *reasons)]
    below = f"; {counted(len(others), 'note' if others == notes else 'more note')} {ELSEWHERE}" if others else ""
    if len(notes) == len(others) == 1:
        below = f"{below}: {notes[0].short}"
    return " ".join(filter(None, [f"{decision}.", why, f"{sentence(usable)}{below}."]))


def level_of(headline: str) -> Level:
    """Return the level of a run, given the first line of its report. The level is good if this line names no fault."""
    if headline.startswith(UNUSABLE):
        return "problem"
    return "good" if headline.startswith(f"{USABLE_RUN}.") else "note"


def _unusable_line(verdicts: Sequence[Verdict]) -> str:
    """Return the first line on a run that is not usable: why not, and other faults."""
    problems = [verdict for verdict in verdicts if verdict.level == "problem"]
    causes = [verdict for verdict in verdicts if verdict.is_cause and verdict.level != "good"]
    causes = sorted(causes, key=lambda cause: cause.level != "problem")
    start, first, reasons = UNUSABLE, causes, []
    if not any(problem.about in ("predictions", "fit") for problem in problems):  # neither part should be used
        first = [cause for cause in causes if cause.about == "limit"]
        reasons = [verdict for verdict in reversed(verdicts) if verdict.beaten]
        reasons += [problem for problem in problems if problem.about == "uncertainty"]
        start = UNUSABLE if first else NEITHER
    rest = [fault for fault in [*causes, *problems] if fault not in (*first, *reasons)]
    briefs = [fault.beaten if fault in reasons and fault.beaten else fault.short for fault in (*first, *reasons, *rest)]
    num_first = len(reasons) if start == NEITHER else 1
    more = f" Other faults: {'; '.join(briefs[num_first:])}." if briefs[num_first:] else ""
    return f"{start}: {'; '.join(briefs[:num_first])}.{more}"


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return Wilson's interval, at `LEVEL`, for the probability of a hit."""
    found = binomtest(hits, total).proportion_ci(LEVEL, method="wilson")
    return float(found.low), float(found.high)
