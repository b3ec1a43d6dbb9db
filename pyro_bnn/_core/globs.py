"""Globs on dotted names."""

import difflib
import fnmatch
from collections.abc import Sequence


def matches(glob: str, name: str) -> bool:
    """Return whether a dotted name matches a glob: `*` stands for a part of a component, `**` for any components."""

    def match(patterns: list[str], parts: list[str]) -> bool:
        if not patterns:
            return not parts
        if patterns[0] == "**":
            return any(match(patterns[1:], parts[i:]) for i in range(len(parts) + 1))
        return bool(parts) and fnmatch.fnmatchcase(parts[0], patterns[0]) and match(patterns[1:], parts[1:])

    return match(glob.split("."), name.split("."))


MOST_NAMES = 8  # largest number of names that a message lists in full


def advice(glob: str, names: Sequence[str]) -> str:
    """Return a remedy for a glob that matches none of the names, such as "write 'net.*.weight'"."""
    candidates = [f"{glob}.**", f"net.{glob}", f"net.{glob}.**", _corrected(glob, names)]
    for candidate in candidates:
        if any(matches(candidate, name) for name in names):
            return f"write {candidate!r}"
    if len(names) <= MOST_NAMES:
        return f"the names are {', '.join(names)}"
    nearest = difflib.get_close_matches(glob, names, n=3, cutoff=0.4) or [*names[:2], names[-1]]
    return f"among the {len(names)} names are {', '.join(nearest)}"


def _corrected(glob: str, names: Sequence[str]) -> str:
    """Replace each misspelt component by the most similar component of the names."""
    known = sorted({part for name in names for part in name.split(".")})
    parts = []
    for part in glob.split("."):
        if part != "**" and not any(fnmatch.fnmatchcase(other, part) for other in known):
            nearest = difflib.get_close_matches(part, known, n=1)
            part = nearest[0] if nearest else part
        parts.append(part)
    return ".".join(parts)
