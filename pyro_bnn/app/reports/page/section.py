"""The parts of a report: sections with numbers for templates, and verdicts on the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from scipy.stats import binomtest

from ...._core.summary import counted

Level: TypeAlias = Literal["good", "note", "problem"]
About: TypeAlias = Literal["predictions", "uncertainty", "fit", "baseline", "limit", "unclear"]
"""What a verdict is about. The first line names the first fault of "baseline", "predictions" and "limit", and
every note "unclear", which says that the rows are too few to tell whether the predictions are of use."""

ELSEWHERE = "in the report"  # where the first line says that more notes are, unless it is on the page itself
Case: TypeAlias = tuple[bool, Level, str, str]  # whether it holds, its level, and its finding in brief and in sentences


@dataclass(frozen=True)
class Verdict:
    """A finding in words. The first line of the report shows `short`, which is empty if the finding is good."""

    level: Level
    about: About
    short: str
    text: str
    rule: str  # the thresholds
    is_cause: bool = False  # whether this fault, such as a training that is too short, can have caused the others
    is_first: bool = False  # whether the first line of a run with wrong uncertainty must begin with this fault


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


def first_line(verdicts: Sequence[Verdict], usable: str) -> str:
    """Return the first line of the report, which says whether the run is usable. The text `usable` gives the scores."""
    problems = [verdict for verdict in verdicts if verdict.level == "problem"]
    notes = [verdict for verdict in verdicts if verdict.level == "note"]
    causes = [note for note in notes if note.is_cause]
    leaks = [verdict for verdict in problems if verdict.is_cause]
    faults = [verdict.short for verdict in [*leaks, *causes, *(other for other in problems if not other.is_cause)]]
    if any(verdict.about in ("predictions", "fit") for verdict in problems):
        return f"Not usable as it is: {'; '.join(faults)}."
    unsure = [verdict.short for verdict in problems if verdict.about == "uncertainty"]
    named_causes = [note for note in causes if unsure or note.about == "limit"]
    limiting = [note for note in notes if note.about in ("predictions", "limit") and not note.is_cause]
    unclear = [note.short for note in notes if note.about == "unclear"]
    of_baseline = [verdict for verdict in verdicts if verdict.about == "baseline" and verdict.level != "good"]
    limits = [verdict.short for verdict in [*leaks, *of_baseline, *limiting]]
    others = len(notes) - len(named_causes) - len(limiting) - len(unclear)
    others -= sum(verdict.level == "note" for verdict in of_baseline)
    if not (unsure or unclear):  # the first reason is enough, and the others are below
        others += max(len(named_causes) + len(limits) - 1, 0)
    below = f"; {counted(others, 'more note' if len(notes) > others else 'note')} {ELSEWHERE}" if others else ""
    if others == len(notes) == 1:
        below = f"{below}: {notes[0].short}"
    if unsure:
        unsure = [*(note.short for note in named_causes), *unsure]
    else:
        limits = [*(note.short for note in named_causes), *limits]
    if unclear:
        named = "; ".join([*unclear, *unsure, *limits])
        return f"Too few rows to tell whether it is usable: {named}. {sentence(usable)}{below}."
    if unsure:
        first = [verdict.short for verdict in verdicts if verdict.is_first]
        start = f"{sentence('; '.join(first))}. " if first else ""
        named = "; ".join(short for short in [*unsure, *limits] if short not in first)
        said = f"Usable for its predictions, not for its uncertainty{f': {named}' if named else ''}."
        return f"{start}{said} {sentence(usable)}{below}."
    return f"Usable, but {limits[0]}: {usable}{below}." if limits else f"Usable: {usable}{below}."


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def in_series(words: Sequence[str]) -> str:
    """Return words with commas, and an "and" before the last one."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a probability."""
    found = binomtest(hits, total).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)
