"""The report's sections on a regression: its errors, its intervals, and hints at faults in the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from scipy.stats import binom, spearmanr
from torch import Tensor

from ...._core.summary import counted
from ....results import plotting
from ....scores import metrics
from ...config import LEVEL
from ...numbers import in_series, number, percent, with_error
from ..calibrated import CHANCE, COARSE, COARSE_RATIO, BeforeAndAfter, limits_by_chance, promised_by
from ..pictures import Drawing, cut_axes, kept_by, observed_against_predicted, panel
from ..scores import LEVELS, of_counts
from ..trained import TREES
from .hints import of_bias, of_leak, of_negative
from .section import FEWEST, Section, Tile, Verdict, judged, sentence
from .subject import Regressed, Subject
from .verdicts import (
    IN_A_SENTENCE,
    NO_BETTER,
    NUM_ERRORS,
    UNTOLD,
    WEAK,
    best_of,
    density_tile,
    gain_and_error,
    mean_and_error,
    of_others,
    of_ways,
    scores_of_ways,
)

SMALL_MISS = 0.05  # heuristic: intervals are slightly wrong if the error of their coverage is less
GROUPS = 4  # of rows by the predicted uncertainty
WEAK_RANKING = 0.5  # heuristic: share of the rank correlation of correct sds, below which sds rank errors weakly
SMALL_RATIO = 0.1  # heuristic: if the sd is wrong by less, 95 % intervals of Gaussians hold 93 % to 97 %
NUM_SIMULATIONS = 100  # of errors; for 100 rows, the mean rank correlation has a standard error of 0.01
MOST_OUTPUTS = 3  # largest number of outputs with a picture


def errors_section(subject: Subject) -> Section | None:
    """Make the section on the errors and the NLL of the network and of baselines."""
    found = subject.regressed
    if found is None:
        return None
    name, baseline = best_of(found.baselines)
    means = found.prediction.mean, found.train_mean, baseline.mean
    squared, guessed, missed = map(found.squared_errors, means)
    root, theirs = (math.sqrt(float(part.mean())) for part in (squared, missed))
    gain, error = gain_and_error((missed - squared).mean(-1))
    points = f"RMSE {number(root)} against {number(theirs)}"
    errors = {other: float(found.squared_errors(way.mean).mean()) for other, way in found.baselines.items()}
    nearest = min(errors, key=errors.__getitem__)
    least, nearest = number(math.sqrt(errors[nearest])), IN_A_SENTENCE.get(nearest, nearest)
    verdicts = [
        _of_errors(squared, guessed),
        *of_ways(found, name, baseline, points=points, lead=(gain, error), score="RMSE"),
        *of_others(found),
        *of_leak(found),
        *of_bias(found),
    ]
    return Section(
        "Errors",
        "errors.html",
        {
            "found": found,
            "scores": scores_of_ways(found),
            "has_trees": TREES in found.baselines,
            "outputs": [
                (output, *_root(squared[:, i]), math.sqrt(float(guessed[:, i].mean())))
                for i, output in enumerate(found.names)
            ],
            "level": LEVEL,
            "pictures": [_predicted_and_observed(found, i) for i in range(min(len(found.names), MOST_OUTPUTS))],
        },
        tuple(verdicts),
        (
            Tile(f"RMSE of {found.title}", number(root), f"smaller is better; best baseline ({nearest}): {least}"),
            density_tile(found, name, baseline, of=f" of {found.title}", noun="row"),
        ),
        usable=f"RMSE {number(root)} ({nearest}: {least})",
    )


def _of_errors(squared: Tensor, guessed: Tensor) -> Verdict:
    """Judge whether the network predicts better than the mean of the training targets.

    `squared` and `guessed` are the squared errors of the network and of this mean, shape (N, O).
    """
    root, error = _root(squared.mean(-1))
    guess = math.sqrt(float(guessed.mean()))
    gain, gain_error = gain_and_error((guessed - squared).mean(-1))
    explained = 1 - (root / guess) ** 2
    of_mean = f"the mean of the training targets has {number(guess)}"
    text = f"RMSE {with_error(root, error)} on {counted(len(squared), 'test row')}; {of_mean}"
    is_few = len(squared) < FEWEST and gain > -NUM_ERRORS * gain_error
    is_better, little = gain > NUM_ERRORS * gain_error, f"only {percent(explained)} of the variance"
    no_better = f"{text}: the network predicts no better. {NO_BETTER}"
    name = "the mean of the targets"
    chance = f"{text}: the difference may be chance."
    verdict = judged(
        "unclear" if (gain > 0 or is_few) and not is_better else "predictions",
        "Problem: the network's squared error is not below that of the mean. Note: it is below by less than "
        f"{NUM_ERRORS:g} standard errors of the difference, or explains less than {percent(WEAK, 0)} of the variance. "
        f"With fewer than {FEWEST} rows, it is also a note if the error is above by less.",
        (not (gain > 0 or is_few), "problem", f"no better than {name}", no_better),
        (not is_better, "note", f"{UNTOLD} {name}", chance),
        (explained < WEAK, "note", f"explains {little}", f"{text}: {little} is explained."),
        (True, "good", "", f"{text}: {percent(explained)} of the variance is explained."),
    )
    relation = UNTOLD if verdict.about == "unclear" else "no better than"
    return replace(verdict, rivals=() if is_better else (name,), relation=relation)


def _root(squared: Tensor) -> tuple[float, float]:
    """Return the root of the mean of squared errors, and the standard error of this root."""
    mean, error = mean_and_error(squared)
    return math.sqrt(mean), error / (2 * math.sqrt(mean)) if mean else 0.0


def _predicted_and_observed(found: Regressed, output: int) -> dict[str, Any]:
    """Plot the observed against the predicted values of one output. Return the plot and the values for its caption."""
    mean, y, name = found.prediction.mean[:, output], found.y[:, output], found.names[output]
    low, high = found.interval(LEVEL)[..., output]
    ax, num_drawn = observed_against_predicted(mean, y, low, high, name=name, level=LEVEL)
    inside = float(((y >= low) & (y <= high)).double().mean())
    return {"address": Drawing(ax), "name": name, "inside": inside, "num_drawn": num_drawn}


def intervals_section(subject: Subject) -> Section | None:
    """Make the section on intervals: the coverage at each level, and errors grouped by the predicted uncertainty."""
    found = subject.regressed
    if found is None:
        return None
    rows = [_coverage(found, level) for level in LEVELS]
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
                f"of {len(found.y):,} observed values of {found.title}",
            ),
        ),
        usable=""  # the verdict that is named says it
        if verdicts[0].is_named
        else f"the {kind}{percent(LEVEL, 0)} intervals hold {percent(headline['held'])} of "
        f"{counted(len(found.y), 'row')}",
    )


def _coverage(found: Regressed, level: float) -> dict[str, Any]:
    """Return the share of the targets inside the intervals, and two limits between which this share should lie."""
    low, high = found.interval(level)
    promised, number = level, len(found.y)
    if found.calibration is not None:
        limits = limits_by_chance(level, found.calibration.num_rows, number)
        if found.is_count:
            limits = limits[0], 1.0  # whole numbers have equal scores, so intervals may contain more
    else:
        promised = promised_by(found.prediction, low, high, level, is_count=found.is_count)
        limits = tuple(part / number for part in binom.interval(CHANCE, number, promised))
    return {
        "level": level,
        "promised": promised,
        "held": metrics.interval_coverage(low, high, found.y),
        "limits": limits,
        "width": float((high - low).mean()),
    }


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
    """Return the errors for groups of rows with similar predicted sds, and the rank correlation of errors and sds."""
    unit = found.train_scale if len(found.names) > 1 else torch.ones_like(found.train_scale)
    variances = (found.prediction.total, found.squared_errors(found.prediction.mean))
    scale, size = ((part / unit.square()).mean(-1).sqrt().detach().cpu() for part in variances)
    groups: list[dict[str, Any]] = []
    for rows in filter(len, torch.tensor_split(scale.argsort(), GROUPS if len(scale) >= FEWEST else 1)):
        predicted, (error, its_error) = float(scale[rows].square().mean().sqrt()), _root(size[rows].square())
        # a few small errors have too small a standard error: Gaussian errors of the predicted sd have at least this
        relative = max(its_error / predicted, 1 / math.sqrt(2 * len(rows)))
        groups.append(
            {
                "rows": len(rows),
                "predicted": predicted,
                "error": (error, its_error),
                "ratio": error / predicted,
                "limits": _limits(relative),
            }
        )
    generator = np.random.default_rng(seed)
    squares = generator.chisquare(len(found.names), size=(NUM_SIMULATIONS, len(scale))) / len(found.names)
    errors = np.sqrt(squares) * scale.numpy()
    return groups, {
        "correlation": _rank_correlation(scale.numpy(), size.numpy()),
        # expected value if the predicted standard deviations were right
        "expected": float(np.mean([_rank_correlation(scale.numpy(), row) for row in errors])),
        "by_chance": NUM_ERRORS / math.sqrt(max(len(scale) - 1, 1)),
        "surest": groups[0]["error"][0],
        "least_sure": groups[-1]["error"][0],
    }


def _limits(error: float) -> tuple[float, float]:
    """Return limits between which RMSE / sd lies with probability `CHANCE` if the sds are right."""
    miss = max(NormalDist().inv_cdf((1 + CHANCE) / 2) * error, SMALL_RATIO)
    return max(1 - miss, 0.0), 1 + miss


def _overall(groups: Sequence[Mapping[str, Any]]) -> tuple[float, tuple[float, float]]:
    """Return RMSE / sd over the rows of all groups, and its :func:`_limits`."""
    num_rows = sum(group["rows"] for group in groups)
    parts = [(group["rows"] / num_rows, group["predicted"], *group["error"]) for group in groups]
    predicted = math.sqrt(sum(share * sd**2 for share, sd, _, _ in parts))
    root = math.sqrt(sum(share * size**2 for share, _, size, _ in parts))
    error = math.hypot(*(share * size * its_error for share, _, size, its_error in parts)) / root if root else 0.0
    return root / predicted, _limits(max(error / predicted, 1 / math.sqrt(2 * num_rows)))


def of_groups(groups: Sequence[Mapping[str, Any]], *, is_calibrated: bool = False) -> Verdict:
    """Judge whether RMSE / predicted sd is close to 1, first over all rows, and then in each group of rows.

    `is_calibrated` says whether the intervals are calibrated; the sd never is.
    """
    sides = {
        "large": [group for group in groups if group["ratio"] < group["limits"][0]],
        "small": [group for group in groups if group["ratio"] > group["limits"][1]],
    }
    ratio, (low, high) = _overall(groups)
    side = "large" if ratio < low else "small"
    is_even = not low <= ratio <= high and not sides["small" if side == "large" else "large"]
    untold = "too few rows to tell whether the sizes of the predicted sd are right"
    is_few = max(group["limits"][1] for group in groups) - 1 > COARSE_RATIO
    found = f"RMSE / predicted sd is {ratio:.2f}, and chance allows {low:.2f} to {high:.2f}"
    off = [f"too {side} in {len(wrong)} of {len(groups)}" for side, wrong in sides.items() if wrong]
    where = f"{' and '.join(off)} quarters of the rows"
    ratios = in_series([format(group["ratio"], ".2f") for group in groups])
    sd, others = "predicted sd", ""
    if is_calibrated:
        sd, others = "predicted sd (not calibrated)", " The calibrated intervals do not depend on its size."
    uneven = f"The {sd} is {where}: RMSE / predicted sd is {ratios}, from the surest rows to the least sure."
    few = f"{sentence(untold)}{' in each quarter of them' * (len(groups) > 1)}."
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
