"""What a report is made of: sections, and the verdicts that they come to."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Level", "Section", "Tile", "Verdict"]

Level: TypeAlias = Literal["good", "note", "problem"]
"""How good the news is."""


@dataclass(frozen=True)
class Verdict:
    """A finding in words.

    Args:
        level: How good the news is.
        text: One or two sentences.
    """

    level: Level
    text: str


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
        body: Its content, as HTML.
        verdicts: What it comes to; shown at the top of the report.
        tiles: Its most important numbers; shown at the top of the report.
    """

    title: str
    body: str
    verdicts: tuple[Verdict, ...] = ()
    tiles: tuple[Tile, ...] = ()
