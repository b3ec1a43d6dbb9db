"""The report's section on intervals or sets of classes before and after calibration."""

from collections.abc import Mapping
from typing import Any

from scipy.stats import betabinom

from ....results.calibration import rank_of
from ..calibrated import CHANCE, BeforeAndAfter, before_and_after
from ..numbers import percent
from .section import Section, Tile, Verdict, judged
from .subject import Subject


def limits_by_chance(level: float, num_calibration: int, num_test: int) -> tuple[float, float]:
    """Return a range in which the share of test targets in their conformal interval lies with probability `CHANCE`.

    Let k be the rank of the score, of n, that sets the width. For continuous scores the coverage is Beta(k, n + 1 - k),
    so the number of targets inside is beta-binomial (Vovk 2012, https://arxiv.org/abs/1209.2673).
    """
    rank = rank_of(level, num_calibration)
    low, high = betabinom.interval(CHANCE, num_test, rank, num_calibration + 1 - rank)
    return float(low / num_test), float(high / num_test)


def calibrated_section(subject: Subject) -> Section | None:
    """Make the section on coverage and width before and after calibration; None for a run without calibration."""
    classified, regressed = subject.classified, subject.regressed
    if classified is not None and classified.calibration is not None:
        y = classified.y.to(classified.prediction.probs.device)
        found = before_and_after(classified.prediction, y, classified.calibration, is_count=False)
        row = _calibrated(found)[-1]
        name = f"In the calibrated {percent(row['level'], 0)} set"
        return _section(found, (_of_sets(found),), (Tile(name, percent(row["inside"]), "of the test labels"),))
    if regressed is not None and regressed.calibration is not None:  # the section on intervals has verdict and tile
        y = regressed.y.to(regressed.prediction.mean)
        found = before_and_after(regressed.prediction, y, regressed.calibration, is_count=regressed.is_count)
        return _section(found)
    return None


def _calibrated(found: BeforeAndAfter) -> list[Mapping[str, Any]]:
    """Return the rows after calibration, one for each level."""
    return [*found.rows[1::2]]


def _section(found: BeforeAndAfter, verdicts: tuple[Verdict, ...] = (), tiles: tuple[Tile, ...] = ()) -> Section:
    return Section("Before and after calibration", "calibrated.html", {"found": found}, verdicts, tiles)


def _of_sets(found: BeforeAndAfter) -> Verdict:
    """Judge whether conformal sets contain at least the promised share of the labels."""
    rows = _calibrated(found)
    lows = [limits_by_chance(row["level"], found.num_calibration, found.num_test)[0] for row in rows]
    numbers = "; ".join(
        f"{percent(row['inside'])} of the labels are in their {percent(row['level'], 0)} set, where chance gives at "
        f"least {percent(low)}, and the mean size is {row['width']:.2f} classes"
        for row, low in zip(rows, lows, strict=True)
    )
    is_right = all(row["inside"] >= low for row, low in zip(rows, lows, strict=True))
    return judged(
        "uncertainty",
        f"Problem: the calibrated sets of {found.levels} contain a smaller share of the labels than correct sets do in "
        f"{percent((1 + CHANCE) / 2)} of the cases.",
        (is_right, "good", "", f"The sets contain the promised share of the labels ({numbers})."),
        (True, "problem", "sets miss too many labels", f"The sets miss too many labels ({numbers})."),
    )
