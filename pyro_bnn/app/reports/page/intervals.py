"""The report's section on a regression's intervals, and on errors grouped by the predicted uncertainty."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from ...._core.summary import counted
from ....results import plotting
from ....scores import metrics
from ...config import LEVEL
from ...numbers import in_series, number, percent
from ..calibrated import (
    CHANCE,
    COARSE,
    COARSE_RATIO,
    BeforeAndAfter,
    drawn_targets,
    limits_by_chance,
    limits_by_draws,
    promised_by,
)
from ..pictures import Drawing, cut_axes, kept_by, panel
from ..scores import LEVELS, of_counts
from .hints import of_negative
from .section import FEWEST, Section, Tile, Verdict, judged, sentence
from .subject import Regressed, Subject
from .verdicts import NUM_ERRORS, root_and_error

SMALL_MISS = 0.05  # heuristic: intervals are slightly wrong if the error of their coverage is less
GROUPS = 4  # of rows by the predicted uncertainty
WEAK_RANKING = 0.5  # heuristic: share of the rank correlation of correct sds, below which sds rank errors weakly
SMALL_RATIO = 0.1  # heuristic: if the sd is wrong by less, 95 % intervals of Gaussians hold 93 % to 97 %
NUM_RANKED = 100  # simulations of all test rows; for 100 rows, the mean rank correlation has a standard error of 0.01


def intervals_section(subject: Subject) -> Section | None:
    """Make the section on intervals: the coverage at each level, and errors grouped by the predicted uncertainty."""
    found = subject.regressed
    if found is None:
        return None
    rows = _coverage(found, seed=subject.seed)
    groups, ranking = ranking_of(found, seed=subject.seed)
    of_sds, is_few = of_groups(groups, is_calibrated=found.calibration is not None), len(found.y) < FEWEST
    of_widths = _of_intervals(rows, len(found.y), found.before_and_after, subject.config.calibrate)
    is_known = is_few or of_widths.is_named  # whether another verdict says that sds are wrong, or that rows are few
    # In right intervals, sds that are too large for some rows do no harm, and the table has them.
    is_cautious = of_widths.level == "good" and all(group["ratio"] <= group["limits"][1] for group in groups)
    is_harmless = is_cautious and of_sds.word == "note" and not of_sds.is_named
    is_harmless |= (is_few and of_sds.level == "good") or (is_known and of_sds.word == "unclear")
    verdicts = [
        of_widths,
        *([] if is_few else [of_ranking(ranking)]),
        *([] if is_harmless else [of_sds]),
        *of_negative(found, LEVEL),
    ]
    headline = next(row for row in rows if row["level"] == LEVEL)
    scale = found.prediction.total[:, 0].sqrt()
    kind = "" if found.calibration is None else "calibrated "
    return Section(
        "Intervals",
        "intervals.html",
        {
            "found": found,
            "levels": rows,
            "of_counts": of_counts(headline["promised"]),
            "chance": CHANCE,
            "groups": groups,
            "small_ratio": SMALL_RATIO,
            "median": float(scale.median()),
            "largest": float(scale.max()),
            "picture": _residuals(found),
        },
        tuple(verdicts),
        (
            Tile(
                f"Inside their {kind}{percent(LEVEL, 0)} interval",
                percent(headline["held"]),
                f"of {len(found.y):,} observed values of {found.title}; chance gives "
                f"{percent(headline['limits'][0])} to {percent(headline['limits'][1])}",
                is_unclear=of_widths.word == "unclear",
            ),
        ),
        usable=""  # the verdict that is named says it
        if verdicts[0].is_named
        else f"the {kind}{percent(LEVEL, 0)} intervals hold {percent(headline['held'])} of "
        f"{counted(len(found.y), 'row')}",
    )


def _coverage(found: Regressed, *, seed: int) -> list[dict[str, Any]]:
    """Return for each level the share of the targets inside the intervals, and limits between which it should lie."""
    intervals, promised = [found.interval(level) for level in LEVELS], list[float](LEVELS)
    if (used := found.calibration) is not None:
        limits = [limits_by_chance(level, used.num_rows, len(found.y)) for level in LEVELS]
        if found.is_count:  # whole numbers have equal scores, so intervals may contain more
            limits = [(low, 1.0) for low, _ in limits]
    else:
        limits = limits_by_draws(found.prediction, intervals, seed=seed)
        promised = [
            promised_by(found.prediction, low, high, level, is_count=found.is_count)
            for level, (low, high) in zip(LEVELS, intervals, strict=True)
        ]
    return [
        {
            "level": level,
            "promised": promised[i],
            "held": metrics.interval_coverage(intervals[i][0], intervals[i][1], found.y),
            "limits": limits[i],
            "width": float((intervals[i][1] - intervals[i][0]).mean()),
        }
        for i, level in enumerate(LEVELS)
    ]


def _of_intervals(
    rows: Sequence[Mapping[str, Any]], num_rows: int, calibrated: BeforeAndAfter | None, share: float
) -> Verdict:
    wrong = [row for row in rows if not row["limits"][0] <= row["held"] <= row["limits"][1]]
    misses = [row["held"] - row["promised"] for row in wrong]
    numbers = ", ".join(f"{percent(row['held'])} for {percent(row['promised'], 0)}" for row in rows)
    kind = "of the wrong shape, some too wide and others too narrow"
    if all(miss > 0 for miss in misses) or all(miss < 0 for miss in misses):
        kind = "too wide" if max(misses, default=0) > 0 else "too narrow"
    is_large = max(map(abs, misses), default=0) >= SMALL_MISS
    kind = kind if is_large else f"slightly {kind}"
    named = next((row for row in wrong if row["level"] == LEVEL), None)
    worst = named or max(wrong or rows, key=lambda row: abs(row["held"] - row["promised"]))
    held = f"{percent(worst['held'])} of {counted(num_rows, 'target')} inside"
    own, others, remedy = "", "", "Train with --calibrate 0.2 to correct the widths with held-out rows."
    changes = dict[str, float | None](calibrate=0.2)
    if calibrated is not None:
        others = f" and {calibrated.num_calibration} that calibrate"
        own, remedy, changes = "calibrated ", calibrated.conclusion, calibrated.changes(share)
    short = f"the {own}{percent(worst['level'], 0)} intervals are {kind} ({held})"
    levels = own + in_series([percent(row["level"], 0) for row in wrong])
    good = f"The {own}intervals hold the promised shares of the targets, within chance (share inside: {numbers})."
    text = f"The {levels} intervals are {kind}: the share of the targets inside is {numbers}. {remedy}"
    level = next(row for row in rows if row["level"] == LEVEL)
    is_few = num_rows < FEWEST or level["promised"] - level["limits"][0] > COARSE
    few = (
        f"Too few rows to judge the intervals: on {num_rows} test rows{others}, chance gives "
        f"{percent(level['limits'][0])} to {percent(level['limits'][1])} for {percent(level['promised'], 0)} "
        f"(share inside{' after calibration' if own else ''}: {numbers})."
        f"{'' if own else ' Chance includes the error of the network that all rows share.'}"
    )
    is_cautious = len(wrong) < len(rows) and all(miss > 0 for miss in misses)
    verdict = judged(
        "limit" if is_few and not wrong else "uncertainty",
        f"Each of the intervals of {', '.join(percent(row['level'], 0) for row in rows)} is judged. Problem: the "
        f"share of targets in one of them occurs by chance in less than {percent(1 - CHANCE, 0)} of the cases, and "
        f"differs from the promised share by {100 * SMALL_MISS:.0f} points or more. Note: it differs by less, or some "
        "intervals hold more than they promise and the others are right; or chance may move the share in "
        f"{percent(LEVEL, 0)} intervals by more than {100 * COARSE:.0f} points, so that the rows are too few to tell.",
        (not wrong and is_few, "note", "too few rows to judge the intervals", few),
        (not wrong, "good", "", good),
        (True, "problem" if is_large and not is_cautious else "note", short, text),
    )
    harmed = bool(wrong and calibrated is not None and changes)
    return replace(verdict, is_cause=harmed, is_named=bool(wrong), changes=changes if wrong else {})


def ranking_of(found: Regressed, *, seed: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compare errors with predicted sds.

    Return the RMSE, the predicted sd and the limits of their ratio, first for all rows, and then for each quarter of
    the rows by predicted sd unless there are few. Also return the rank correlation of errors and sds.

    The limits hold the ratio with probability `CHANCE` if the predictions are right (:func:`drawn_targets`). If each
    draw of the weights predicts the same Gaussians of equal sd, n ratio^2 has a chi-squared distribution with n degrees
    of freedom.
    """
    unit = found.train_scale if len(found.names) > 1 else torch.ones_like(found.train_scale)

    def sizes(y: Tensor) -> Tensor:
        return ((y - found.prediction.mean) / unit).double().square().mean(-1).sqrt().cpu()  # (..., N)

    size, scale = sizes(found.y), (found.prediction.total / unit.square()).mean(-1).sqrt().detach().cpu()
    order, num_groups = scale.argsort(), GROUPS if len(scale) >= FEWEST else 0
    parts = [order, *(torch.tensor_split(order, num_groups) if num_groups else ())]
    predicted = torch.stack([scale[rows].square().mean().sqrt() for rows in parts])
    drawn = list[Tensor]()

    def roots(y: Tensor) -> Tensor:
        errors = sizes(y)  # (S, N)
        drawn.extend(errors if len(drawn) < NUM_RANKED else ())
        return torch.stack([errors[:, rows].square().mean(1).sqrt() for rows in parts], 1)

    ends = torch.tensor([(1 - CHANCE) / 2, (1 + CHANCE) / 2], dtype=torch.double)
    ratios = drawn_targets(found.prediction, roots, seed=seed) / predicted
    low, high = ratios.quantile(ends, dim=0).tolist()
    groups: list[dict[str, Any]] = []
    for i, rows in enumerate(parts):
        error = root_and_error(size[rows].square())
        limits = min(low[i], 1 - SMALL_RATIO), max(high[i], 1 + SMALL_RATIO)
        sd = float(predicted[i])
        groups.append({"rows": len(rows), "predicted": sd, "error": error, "ratio": error[0] / sd, "limits": limits})
    expected = [_rank_correlation(scale.numpy(), row.numpy()) for row in drawn[:NUM_RANKED]]
    return groups, {
        "correlation": _rank_correlation(scale.numpy(), size.numpy()),
        "expected": float(np.mean(expected)),  # if the predictions were right
        "by_chance": NUM_ERRORS / math.sqrt(max(len(scale) - 1, 1)),
        "surest": groups[min(1, num_groups)]["error"][0],
        "least_sure": groups[-1]["error"][0],
    }


def of_groups(groups: Sequence[Mapping[str, Any]], *, is_calibrated: bool = False) -> Verdict:
    """Judge whether RMSE / predicted sd is close to 1 over all rows, the first group, and in each other group of rows.

    `is_calibrated` says whether the intervals are calibrated; the sd never is.
    """
    whole, *quarters = groups
    sides = {
        "large": [group for group in quarters if group["ratio"] < group["limits"][0]],
        "small": [group for group in quarters if group["ratio"] > group["limits"][1]],
    }
    ratio, (low, high) = whole["ratio"], whole["limits"]
    side = "large" if ratio < low else "small"
    is_even = not low <= ratio <= high and not sides["small" if side == "large" else "large"]
    untold = "too few rows to tell whether the sizes of the predicted sd are right"
    is_few = max(group["limits"][1] for group in groups) - 1 > COARSE_RATIO
    found = f"RMSE / predicted sd is {ratio:.2f}, and chance allows {low:.2f} to {high:.2f}"
    off = [f"too {side} in {len(wrong)} of {len(quarters)}" for side, wrong in sides.items() if wrong]
    where = f"{' and '.join(off)} quarters of the rows"
    ratios = in_series([format(group["ratio"], ".2f") for group in quarters])
    sd, others = "predicted sd", ""
    if is_calibrated:
        sd, others = "predicted sd (not calibrated)", " The calibrated intervals do not depend on its size."
    uneven = f"The {sd} is {where}: RMSE / predicted sd is {ratios}, from the surest rows to the least sure."
    few = f"{sentence(untold)}{' in each quarter of them' * bool(quarters)}."
    verdict = judged(
        "uncertainty",
        f"Note: over all rows, or in some quarter of the rows, RMSE / predicted sd differs from 1 by more than "
        f"{SMALL_RATIO:g}, and by more than right sds do in {percent(CHANCE, 0)} of the cases. Another note: these may "
        f"differ by more than {COARSE_RATIO:g} in some quarter, so that the rows are too few to tell.",
        (is_even, "note", f"{sd} too {side}", f"The {sd} is too {side}: {found}.{others}"),
        (bool(off), "note", f"{sd} {where}", f"{uneven}{others}"),
        (is_few, "note", untold, f"{few} Over all rows, {found}."),
        (True, "good", "", f"The sizes of the predicted sd are right within chance: {found}."),
    )
    return replace(verdict, is_named=is_even)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation, or 0 if one of the variables is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(spearmanr(first, second).statistic)


def of_ranking(found: Mapping[str, float]) -> Verdict:
    """Judge whether the rows with the largest predicted standard deviations have the largest errors."""
    correlation, expected, error = found["correlation"], found["expected"], found["by_chance"]
    ranks = f"the rank correlation is {correlation:+.2f}, and correct sds would give about {expected:+.2f}"
    groups = (
        f"RMSE is {number(found['surest'])} in the surest quarter of the rows and {number(found['least_sure'])} in the "
        "least sure"
    )
    remedy = "Do not choose rows by their sd; more training rows may mend it."
    not_ranked = f"The predicted sd does not rank the errors: {ranks}. {remedy}"
    unclear = (
        "It cannot be told whether errors are larger where the predicted sd is larger: the test rows are too few, or "
        "their sds too similar."
    )
    mostly = f"The predicted sd ranks most errors, but not the largest: {groups}."
    reversed_ = f"Errors are smaller where the predicted sd is larger: {ranks}. {remedy}"
    good = f"Errors are larger where the predicted sd is larger: {groups}."
    weakly = f"Errors are larger where the predicted sd is larger, but only slightly: {ranks}."
    is_ranked, is_weak = correlation > error, correlation < WEAK_RANKING * expected
    return judged(
        "uncertainty",
        f"The rank correlation of predicted sd and error is {correlation:+.2f}; correct sds would give about "
        f"{expected:+.2f}. The limit of chance is {NUM_ERRORS:g} standard errors, here {error:.2f}. Good: the rank "
        f"correlation is above this limit, and at least {percent(WEAK_RANKING, 0)} of what correct sds would give, and "
        "the least sure quarter of the rows has a larger RMSE than the surest quarter. "
        "Problem: the correlation is negative and its size is above the limit. Also a problem: the size is within the "
        "limit, but correct sds would give a correlation above twice the limit. Note: all other cases.",
        (is_ranked and is_weak, "note", "predicted sd ranks the errors weakly", weakly),
        (is_ranked and found["least_sure"] > found["surest"], "good", "", good),
        (is_ranked, "note", "predicted sd misses the largest errors", mostly),
        (correlation < -error, "problem", "predicted sd ranks the errors the wrong way round", reversed_),
        (expected > 2 * error, "problem", "predicted sd does not rank the errors", not_ranked),
        (True, "note", "too few rows, or too similar sds, to tell whether errors grow with the predicted sd", unclear),
    )


def _residuals(found: Regressed) -> Drawing:
    """Draw the residuals of the first output against the predicted standard deviations."""
    name, scale = found.names[0], found.prediction.total[:, 0].sqrt().cpu()
    residual = (found.y - found.prediction.mean)[:, 0].cpu()
    ax = panel(3.1)
    ax.plot(scale.numpy(), residual.numpy(), "o", markersize=3, color=plotting.PALETTE[0], alpha=0.6)
    ax.axhline(0, color="black", linewidth=1, linestyle="-")
    grid = np.array([float(scale.min()), float(scale.max())])
    for sign, label in ((2, "± 2 predicted sd"), (-2, None)):
        ax.plot(grid, sign * grid, color=plotting.PALETTE[1], linewidth=1, linestyle="--", label=label)
    ax.set(xlabel=f"predicted sd of {name}", ylabel=f"observed minus predicted {name}")
    cut_axes(ax, scale, residual, kept_by(scale), kept_by(residual))
    with plotting.style():
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # above the data
    return Drawing(ax)
