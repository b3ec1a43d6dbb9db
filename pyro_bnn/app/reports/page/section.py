"""The parts of a report: sections with numbers for templates, and verdicts on the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from scipy.stats import binomtest

from ...._core.summary import counted
from ...config import LEVEL
from ...remedies import CAUSE

Level: TypeAlias = Literal["good", "note", "problem"]
About: TypeAlias = Literal["predictions", "uncertainty", "fit", "baseline", "limit", "unclear", "chains", "weights"]
"""What a verdict is about.

"unclear" means that the rows are too few to tell whether the predictions are of use. "chains" means that chains are too
short, and that more time would hardly help; "weights", that few weights learned from the data. Both are faults only
beside other faults.
"""

DECISIONS = {
    "usable": "Usable",
    "usable with notes": "Usable, with notes",
    "usable for predictions only": "Usable for predictions, not for uncertainty",
    "too few rows to tell": "Too few rows to tell whether usable",
    "not usable": "Not usable as it is",
}
"""For each word of `usability`, from good to bad, the decision at the beginning of the report."""

RULE = (
    "Problems come first. Next come faults that can have caused others, such as a fit that was cut short: mend these "
    "before the others. A problem with the predictions or the fit makes a run not usable. A problem "
    "with the uncertainty leaves the predictions usable, unless another method predicts better. With a note, a run is "
    "still usable. If the test rows are too few to tell whether a run is usable, that note comes first."
)
FEWEST = 50  # test rows for a verdict that finds no fault: with fewer, 90 % intervals may hold all by chance (0.9^50)
UNTOLD = ("too few rows", "too few errors", "too few images")  # what findings begin with that test rows cannot tell
MOST_NAMED = 3  # faults in the first line, if there are not more causes and problems
LEVELS = ("problem", "note", "good")  # from bad to good
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
    is_named: bool = False  # whether the first line of the report names this fault before other notes
    is_beaten: bool = False  # whether another method predicts better
    rivals: tuple[str, ...] = ()  # simpler methods that the network does not clearly beat
    relation: str = ""  # words for how it compares with the rivals, such as "beaten by"

    def __post_init__(self) -> None:
        assert self.level != "problem" or self.about in ("predictions", "uncertainty", "fit")  # see `RULE`

    @property
    def word(self) -> str:
        """The level, or "unclear" if it is no problem and the test rows are too few to tell."""
        is_unclear = self.level != "problem" and self.short.startswith(UNTOLD)
        return "unclear" if is_unclear or (self.level == "note" and self.about == "unclear") else self.level


@dataclass(frozen=True)
class Tile:
    """A number in large type at the top of the report, with a remark that explains or compares it."""

    name: str
    value: str
    remark: str
    is_unclear: bool = False  # whether rows are too few to judge the number, which is then grey


@dataclass(frozen=True)
class Section:
    """A section of the report. The verdicts and tiles of a section are shown at the top of the report."""

    title: str
    template: str
    values: Mapping[str, Any]  # what the template shows
    verdicts: tuple[Verdict, ...] = ()
    tiles: tuple[Tile, ...] = ()
    usable: str = ""  # scores of the run in words, for the first line of the report
    is_folded: bool = False  # whether the page shows the title alone at first, if there is no fault: it is for experts

    @property
    def has_fault(self) -> bool:
        """Whether some verdict of the section is not good."""
        return level_of(self.verdicts) != "good"


def judged(about: About, rule: str, *cases: Case) -> Verdict:
    """Return a verdict made from the first of `cases` whose condition holds."""
    return next(Verdict(level, about, short, text, rule) for holds, level, short, text in cases if holds)


def usability(verdicts: Sequence[Verdict]) -> str:
    """Return the key in `DECISIONS` that says whether a run with these verdicts is usable. See `RULE`."""
    problems = {verdict.about for verdict in verdicts if verdict.level == "problem"}
    is_beaten = "uncertainty" in problems and any(verdict.is_beaten for verdict in verdicts)
    cases = (
        (bool(problems - {"uncertainty"}), "not usable"),
        (any(verdict.about == "unclear" and verdict.level == "note" for verdict in verdicts), "too few rows to tell"),
        (is_beaten, "not usable"),
        ("uncertainty" in problems, "usable for predictions only"),
        (any(verdict.level != "good" for verdict in verdicts), "usable with notes"),
    )
    return next((word for holds, word in cases if holds), "usable")


def level_of(verdicts: Sequence[Verdict]) -> Level:
    """Return the worst level of verdicts."""
    return min((verdict.level for verdict in verdicts), key=LEVELS.index, default="good")


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Sort verdicts from bad to good as `RULE` says; among equally bad ones, those on the predictions come first."""
    decisive = "unclear" if usability(verdicts) == "too few rows to tell" else ""
    important = ("unclear", "predictions", "baseline", "limit")
    return sorted(
        verdicts,
        key=lambda verdict: (
            verdict.level == "good" or verdict.about != decisive,
            verdict.level != "problem",
            not verdict.is_cause,
            LEVELS.index(verdict.level),
            verdict.level == "problem" and verdict.about == "uncertainty",
            not (verdict.is_named or verdict.is_beaten),
            verdict.about not in important,
        ),
    )


@dataclass(frozen=True)
class Headline:
    """The first line of the report: the decision, the faults that led to it, scores, and the next step."""

    decision: str
    reasons: str = ""
    scores: str = ""
    step: str = ""  # what to do next
    command: str = ""  # for the step

    def __str__(self) -> str:
        return " ".join(filter(None, [self.decision, self.reasons, self.scores]))


def first_line(verdicts: Sequence[Verdict], scores: str) -> Headline:
    """Return the first line of the report. If the run is not usable, the line has no scores."""
    word = usability(verdicts)
    faults = [verdict for verdict in in_order(verdicts) if verdict.level != "good"]
    num_named = max(MOST_NAMED, sum(fault.is_cause or fault.level == "problem" for fault in faults))
    named = [fault for fault in faults if fault.about != "weights"][:num_named]  # weights are a detail
    others = len(faults) - len(named)
    reasons = [CAUSE * _explains(fault, faults) + fault.short for fault in named]
    reasons += [counted(others, "more note")] * (others > 0)
    untold = [verdict.short for verdict in verdicts if verdict.level == "good" and verdict.word == "unclear"]
    known = "; ".join(filter(None, [scores, *untold]))
    return Headline(
        f"{DECISIONS[word]}.",
        f"{sentence('; '.join(reasons))}." if reasons else "",
        "" if word == "not usable" or not known else f"{sentence(known)}.",
    )


def _explains(fault: Verdict, faults: Sequence[Verdict]) -> bool:
    """Return whether a fault can have caused a problem, which then stands before it."""
    has_problem = any(other.level == "problem" and not other.is_cause for other in faults)
    return has_problem and fault.is_cause and fault.level == "note"


def leading(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the worst fault and its first possible cause, which commands quote; [] if there is no fault."""
    faults = [verdict for verdict in in_order(verdicts) if verdict.level != "good"]
    return faults[:1] + [fault for fault in faults[1:] if _explains(fault, faults)][:1]


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def wilson(hits: int, total: int, *, num_compared: int = 1) -> tuple[float, float]:
    """Return Wilson's interval for the probability of a hit, at `LEVEL` for all `num_compared` intervals together."""
    found = binomtest(hits, total).proportion_ci(1 - (1 - LEVEL) / num_compared, method="wilson")
    return float(found.low), float(found.high)
