"""Finds what may be mistakes in a column: codes of missing values, spellings of one category, classes of few rows."""

import re
from contextlib import suppress

import pandas as pd

from ..._core.summary import counted
from .amounts import numbers_or_amounts
from .cells import Cells, listed

FEWEST = 3  # heuristic: a code of missing values occurs in so many rows or more
CODE = r"-(1|9+)|9{2,}"  # usual codes of missing values
WIDE, WIDE_OF_CODE = 3.0, 1.0  # heuristic: distances of a code from the other values, in ranges of these values
VARIED, VARIED_OF_CODE = 10, 3  # heuristic: fewer different values are levels, which may be far from each other
RARE = 5  # heuristic: a class of fewer rows can hardly be learned
MOST_NAMED = 3


def doubts_about(cells: Cells, kind: str, *, is_target: bool) -> list[str]:
    """Return sentences on what may be mistakes in a column of the given kind."""
    if kind == "number":
        return _on_codes(cells)
    if kind != "category":
        return []
    sizes = pd.Series(cells.labels[~cells.is_missing]).value_counts()
    spelled = sizes.index.to_series().groupby(lambda label: re.sub(r"\s+", "", label).casefold()).agg(list)
    found = [
        f"Column {cells.name!r} holds {listed(sorted(alike))}, which differ only in case or spaces: if they are the "
        "same, write them in one way."
        for alike in spelled[spelled.map(len) > 1][:MOST_NAMED]
    ]
    rare = sizes[sizes < RARE] if is_target else sizes[:0]
    if len(rare):
        named = ", ".join(f"{label!r} {size}" for label, size in rare[:MOST_NAMED].items())
        more = f" and {len(rare) - MOST_NAMED} more" if len(rare) > MOST_NAMED else ""
        found.append(
            f"{counted(len(rare), 'class')} of {cells.name!r} with fewer than {RARE} rows can hardly be learned: "
            f"{named}{more}. Add rows, or merge classes."
        )
    return found


def _on_codes(cells: Cells) -> list[str]:
    """Return a sentence for each number that occurs in several rows, far from all other numbers."""
    found = None
    with suppress(ValueError):  # cells of the target in test rows may be no numbers
        found = numbers_or_amounts(cells)
    if found is None:
        return []
    sizes = pd.Series(found[0]).value_counts().sort_index()
    often = sizes[sizes >= FEWEST].index
    usual = [value for value in often if re.fullmatch(CODE, f"{value:.15g}")]
    others = sizes.index.difference(usual)
    codes = [value for value in usual if _is_far(value, others, WIDE_OF_CODE, VARIED_OF_CODE)]
    for end in {others.min(), others.max()} & {*often}:
        if _is_far(end, others.drop(end), WIDE, VARIED):
            others, codes = others.drop(end), [*codes, end]
    return [
        f"Column {cells.name!r} holds {code:.15g} in {sizes[code]} rows, far from its other values "
        f"({others.min():.6g} to {others.max():.6g}): if it means missing, empty these cells."
        for code in codes
    ]


def _is_far(code: float, others: pd.Index, ranges: float, fewest: int) -> bool:
    """Return whether `code` is further from all `others` than `ranges` times their range; False for few others."""
    low, high = others.min(), others.max()
    return bool(len(others) >= fewest and max(low - code, code - high) > ranges * (high - low))
