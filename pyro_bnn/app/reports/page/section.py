"""What a report is made of: sections, which are numbers for a template, and the verdicts that they come to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Level", "Section", "Tile", "Verdict", "first_line", "sentence"]

Level: TypeAlias = Literal["good", "note", "problem"]
"""How good the news is."""


@dataclass(frozen=True)
class Verdict:
    """A finding in words.

    Args:
        level: How good the news is.
        about: What it is about: the predictions, their uncertainty, or the fit.
        short: The finding in a few words, for the first line of the report; empty if it is good.
        text: One or two sentences with the numbers.
        rule: The thresholds.
    """

    level: Level
    about: Literal["predictions", "uncertainty", "fit"]
    short: str
    text: str
    rule: str


@dataclass(frozen=True)
class Tile:
    """A number that is shown large at the top.

    Args:
        name: What the number is.
        value: The number, with its unit.
        remark: What to compare it with.
    """

    name: str
    value: str
    remark: str


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Args:
        title: Its heading.
        template: Name of its template, which has its words.
        values: What the template shows.
        verdicts: What it comes to; shown at the top of the report.
        tiles: Its most important numbers; shown at the top of the report.
        usable: What speaks for the run, in numbers, for the first line of the report.
    """

    title: str
    template: str
    values: Mapping[str, Any]
    verdicts: tuple[Verdict, ...] = ()
    tiles: tuple[Tile, ...] = ()
    usable: str = ""


def first_line(verdicts: Sequence[Verdict], usable: str) -> str:
    """The decision that all verdicts come to.

    Args:
        verdicts: The verdicts.
        usable: What speaks for the run, in numbers; for runs whose predictions have no problem.
    """
    problems = [verdict for verdict in verdicts if verdict.level == "problem"]
    notes = [verdict for verdict in verdicts if verdict.level == "note"]
    faults = "; ".join(verdict.short for verdict in problems)
    if any(verdict.about != "uncertainty" for verdict in problems):
        return f"Not usable as it is: {faults}."
    limits = [note.short for note in notes if note.about == "predictions"]
    number = len(notes) - len(limits)
    others = f"; {number} {'reservation' if number == 1 else 'reservations'} below" if number else ""
    if problems:
        faults = "; ".join([faults, *limits])
        return f"Usable for its predictions, not for its uncertainty: {faults}. {sentence(usable)}{others}."
    if limits:
        return f"Usable, but {'; '.join(limits)}: {usable}{others}."
    return f"Usable: {usable}{others}."


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
