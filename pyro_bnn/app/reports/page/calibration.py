"""The report's sections on the calibration of a classifier's probabilities, and on conformal intervals and sets."""

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ....results import plotting
from ....scores import metrics
from ...config import LEVEL
from ...numbers import in_series, percent, with_error
from ..calibrated import CHANCE, COARSE, MUCH_WIDER, BeforeAndAfter, limits_by_chance
from ..pictures import Drawing, panel
from .section import FEWEST, Section, Tile, Verdict, judged
from .subject import Subject
from .verdicts import NUM_ERRORS

NUM_BINS, NUM_SIMULATIONS = 15, 1000
MIN_INPUTS = 10  # heuristic: a point of the picture with fewer rows says little about their accuracy
LIMIT = 0.975  # a calibration error is a fault above this quantile of the errors that calibrated networks have
SMALL_EXCESS = 0.01  # heuristic: such a fault is slight if the error exceeds the mean of those errors by less than this
MOST_ERRORS = 2.58  # mean confidence and accuracy differ by more standard errors in 1 % of the cases by chance


def calibration_section(subject: Subject) -> Section | None:
    """Make the section on the calibration error, with the error that a calibrated network has by chance."""
    if subject.classified is None:
        return None
    noun, y = subject.classified.noun, subject.classified.y.cpu()
    probs = subject.classified.prediction.probs.cpu()
    found = calibration_of(probs, y, seed=subject.seed)
    num_points, error = max(1, min(NUM_BINS, len(y) // MIN_INPUTS)), percent(found["error"])
    verdict = of_calibration(found, is_calibrated=subject.classified.calibration is not None)
    value, is_unclear = "within chance" if verdict.word == "good" else error, verdict.word == "unclear"
    bins = metrics.calibration_bins(probs, y, num_bins=num_points, equal_mass=True).joined(MIN_INPUTS)
    gap = "mean gap between confidence and accuracy" if value == error else error
    gap = "too few rows to judge" if is_unclear else gap
    remark = f"{gap}; chance alone gives up to {percent(found['limit'])}"
    columns = zip(*(part.tolist() for part in (bins.counts, bins.confidence, bins.accuracy)), strict=True)
    return Section(
        "Calibration",
        "calibration.html",
        {
            "noun": noun,
            "num_rows": len(y),
            "num_bins": NUM_BINS,
            "gap": _gap_of(found),
            "num_simulations": NUM_SIMULATIONS,
            "limit": LIMIT,
            "found": found,
            "picture": _diagram(probs, y, num_points) if len(bins.counts) > 1 else None,
            "bins": [*columns],
        },
        (verdict,),
        (Tile("Calibration error", value, remark, is_unclear=is_unclear),),
    )


def _diagram(probs: Tensor, y: Tensor, num_points: int) -> Drawing:
    """Draw a reliability diagram without a title, since the text beside the picture has the calibration error."""
    ax, below = axes = panel(3.2), panel()  # the counts in bins of equal count are not shown
    plotting.reliability_diagram(probs, y, num_bins=num_points, min_inputs=MIN_INPUTS, equal_mass=True, axes=axes)
    ax.set(title="", xlabel=below.get_xlabel())
    lowest = min(float(bar[:, 1].min()) for bars in ax.collections for bar in bars.get_segments())
    ax.set_ylim(bottom=math.floor(10 * min(lowest, ax.get_xlim()[0])) / 10)
    with plotting.style():
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # above the bins
    return Drawing(ax)


def calibration_of(probs: Tensor, y: Tensor, *, seed: int) -> dict[str, float]:
    """Return the calibration error of `probs`, shape (N, C), and statistics to judge whether it is due to chance."""
    chance = metrics.calibration_error_by_chance(probs, num_bins=NUM_BINS, num_samples=NUM_SIMULATIONS, seed=seed)
    confidence = probs.double().amax(-1)
    return {
        "rows": len(y),
        "error": metrics.expected_calibration_error(probs, y, num_bins=NUM_BINS),
        "usual": float(chance.mean()),
        "limit": float(chance.quantile(LIMIT)),
        "confidence": float(confidence.mean()),
        "accuracy": metrics.accuracy(probs, y),
        # standard error of confidence - accuracy, if the probabilities were exactly right
        "gap_error": math.sqrt(float((confidence * (1 - confidence)).sum())) / len(y),
    }


def _gap_of(found: Mapping[str, float]) -> str:
    gap = with_error(100 * (found["confidence"] - found["accuracy"]), 100 * found["gap_error"], "+")
    return f"mean confidence minus accuracy is {gap} points"


def of_calibration(found: Mapping[str, float], *, is_calibrated: bool = False) -> Verdict:
    """Judge the calibration of a classifier's probabilities. `is_calibrated` says whether its sets are calibrated."""
    error, gap, gap_error = found["error"], found["confidence"] - found["accuracy"], found["gap_error"]
    numbers = f"calibration error {percent(error)}; chance gives up to {percent(found['limit'])}"
    is_even, is_slight = abs(gap) <= NUM_ERRORS * gap_error, error - found["usual"] < SMALL_EXCESS
    off, too = "slightly off" if is_slight else "not calibrated", f"too {'high' if gap > 0 else 'low'}"
    short = "not calibrated" if is_even else f"slightly {too}" if is_slight else too
    direction = "in some places too high and in others too low" if is_even else f"{too} on average"
    is_right = error <= found["limit"] and abs(gap) <= MOST_ERRORS * gap_error
    both = f"{numbers}; {_gap_of(found)}"
    good = f"The probabilities are calibrated, within chance ({both})."
    few = f"Too few rows ({found['rows']}) to judge the calibration ({both})."
    few += " On average, the probabilities are right within chance." if is_even else ""
    is_few = is_right and (found["rows"] < FEWEST or found["limit"] > COARSE)
    remedy = "For sets of classes with a promised share, train with --calibrate 0.2."
    remedy = "The calibrated sets of classes hold their shares nevertheless." if is_calibrated else remedy
    text = f"The probabilities are {off} ({both}): they are {direction}. {remedy}"
    verdict = judged(
        "limit" if is_few else "uncertainty",
        f"Problem: the calibration error exceeds the {percent(LIMIT)} quantile of simulations with calibrated "
        f"probabilities, or the mean confidence is more than {MOST_ERRORS:g} standard errors from the accuracy. Note: "
        f"the same, but the error is less than {100 * SMALL_EXCESS:.0f} point above the mean of the simulations; or "
        f"the quantile is above {percent(COARSE, 0)}, so that the rows are too few to tell.",
        (is_few, "note", "too few rows to judge the calibration", few),
        (is_right, "good", "", good),
        (True, "note" if is_slight else "problem", f"the probabilities are {short} ({numbers})", text),
    )
    return replace(verdict, is_named=not is_right)


def calibrated_section(subject: Subject) -> Section | None:
    """Make the section on coverage and width before and after calibration; None for a run without calibration."""
    measured = subject.classified or subject.regressed
    if measured is None or (found := measured.before_and_after) is None:
        return None
    changes, verdicts, tiles = found.changes(subject.config.calibrate), [], []
    if subject.classified is not None:  # of a regression, the section on intervals has verdict and tile
        row = next(row for row in found.rows[1::2] if row["level"] == LEVEL)
        name = f"Inside their calibrated {percent(LEVEL, 0)} set"
        least = percent(limits_by_chance(LEVEL, found.num_calibration, found.num_test)[0])
        remark = f"of {found.num_test:,} {subject.classified.test_name}; chance gives at least {least}"
        tiles.append(Tile(name, percent(row["inside"]), remark))
        harmed = found.is_wrong and bool(changes)
        verdicts.append(replace(_of_sets(found), is_cause=harmed, changes=changes if found.is_wrong else {}))
    if changes and not found.is_wrong:
        rule = (
            f"Reported if calibrated {found.noun} hold their shares, but some are more than {MUCH_WIDER:g} times as "
            f"{found.large} as before, where the share was right within chance."
        )
        harm = f"calibrated {found.noun} are much {found.large}r than before"
        verdicts.append(Verdict("note", "uncertainty", harm, found.conclusion, rule, changes=changes))
    return Section("Before and after calibration", "calibrated.html", {"found": found}, tuple(verdicts), tuple(tiles))


def _of_sets(found: BeforeAndAfter) -> Verdict:
    """Judge whether conformal sets contain at least the promised share of the labels."""
    rows = found.rows[1::2]  # after calibration
    lows = [limits_by_chance(row["level"], found.num_calibration, found.num_test)[0] for row in rows]
    pairs = [*zip(rows, lows, strict=True)]
    numbers = in_series(
        [f"{percent(row['inside'])} of the labels are in their {percent(row['level'], 0)} set" for row in rows]
    )
    least = in_series([percent(low) for low in lows])
    missed = f"The sets miss too many labels ({numbers}). {found.conclusion}"
    counts = f"{found.num_test} test rows, and {found.num_calibration} that calibrate"
    few = f"Too few rows to judge the sets ({counts}): {numbers}."
    is_few = not found.is_wrong and (found.num_test < FEWEST or any(row["level"] - low > COARSE for row, low in pairs))
    return judged(
        "limit" if is_few else "uncertainty",
        f"Chance gives at least {least}. "
        f"Problem: the calibrated sets of {found.levels} contain a smaller share of the labels than correct sets do in "
        f"{percent((1 + CHANCE) / 2)} of the cases. Note: correct sets may miss a promised share by more than "
        f"{100 * COARSE:.0f} points, so that the rows are too few to tell.",
        (is_few, "note", "too few rows to judge the sets", few),
        (not found.is_wrong, "good", "", f"The sets contain the promised share of the labels ({numbers})."),
        (True, "problem", "the sets miss too many labels", missed),
    )
