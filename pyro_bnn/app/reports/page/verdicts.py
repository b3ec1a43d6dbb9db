"""The verdicts of a report: what its numbers come to in words, by thresholds that the page states.

Every function takes numbers and returns a verdict, whose words hold these numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .numbers import count, percent, wilson
from .section import Level, Verdict, sentence

__all__ = [
    "Calibration",
    "Ranking",
    "of_accuracy",
    "of_averaging",
    "of_calibration",
    "of_error_detection",
    "of_errors",
    "of_intervals",
    "of_ranking",
    "of_recall",
    "of_rival",
    "of_unknown",
]

NUM_ERRORS = 2.0
"""Differences of fewer standard errors than this are called none: by chance, one in twenty is larger."""

SMALL_GAIN = 0.01
"""Heuristic: differences of NLL by fewer nats per row are called none."""

WEAK = 0.5
"""Heuristic: who avoids less than this share of a guess's mistakes, or of its squared error, is called weak."""

MISSED, BEHIND = 0.5, 0.1
"""Heuristic: a recall below the first is called mostly missed; one that lies so far below the accuracy, low."""

SMALL_EXCESS = 0.01
"""Heuristic: a calibration error that exceeds the mean error by chance by less than one point is called small."""

CHANCE = 0.99
"""Shares inside of an interval that occur with this probability, if it is right, are called chance. There are several
levels, so that a right prediction is found fault with in less than one of twenty cases."""

SMALL_MISS = 0.05
"""Heuristic: intervals that miss what they promise by less are called slightly off."""

USEFUL, POSSIBLE = 0.7, 0.6
"""Heuristic: areas under the ROC curve from which errors are found well, and above which they could be found."""

NOTICED, PARTLY = 0.9, 0.75
"""Heuristic: areas under the ROC curve from which unknown images are called noticed, and partly noticed."""


# --- predictions ------------------------------------------------------------------------------------------------------


def of_accuracy(num_right: int, num_rows: int, most_frequent: str, guess: float, rows: str) -> Verdict:
    """Whether a classifier is better than the most frequent class.

    Args:
        num_right: Number of rows that are right.
        num_rows: Number of rows, at least 1.
        most_frequent: Name of the most frequent class.
        guess: Share of that class.
        rows: What the rows are, such as ``test images``.
    """
    accuracy, (low, high) = num_right / num_rows, wilson(num_right, num_rows)
    text = (
        f"{percent(accuracy)} of {count(num_rows)} {rows} are right (95 % interval {percent(low)} to {percent(high)}); "
        f"always saying “{most_frequent}” would be right for {percent(guess)}"
    )
    rule = (
        "Problem: the 95 % interval of the accuracy reaches down to the share of the most frequent class. Note: less "
        f"than {percent(WEAK, 0)} of the mistakes of that guess are avoided."
    )
    if low <= guess:
        short = f"no better than always saying “{most_frequent}”"
        return Verdict("problem", "predictions", short, f"{text}: the network is no better than that.", rule)
    if accuracy - guess < WEAK * (1 - guess):
        more = f"{text}: less than half of the mistakes of that guess are avoided."
        return Verdict("note", "predictions", "most of a guess's mistakes remain", more, rule)
    return Verdict("good", "predictions", "", f"{text}.", rule)


def of_recall(found: Mapping[str, tuple[int, int]], balanced: float, accuracy: float) -> Verdict:
    """Whether every class is found.

    Args:
        found: For each class, how many of its rows are found, and how many there are (at least 1).
        balanced: Balanced accuracy.
        accuracy: Accuracy.
    """
    name, (hits, total) = min(found.items(), key=lambda item: item[1][0] / item[1][1])
    limits = {key: wilson(*pair)[1] for key, pair in found.items()}
    missed = [key for key, limit in limits.items() if limit < MISSED]
    behind = [key for key, limit in limits.items() if limit < accuracy - BEHIND]
    numbers = (
        f"balanced accuracy {percent(balanced)}, lowest recall {percent(hits / total)} (“{name}”, {hits} of {total})"
    )
    rule = (
        f"Problem: the 95 % interval of the recall of a class lies below {percent(MISSED, 0)}. Note: it lies more than "
        f"{100 * BEHIND:.0f} points below the accuracy; or the lowest recall is below {percent(MISSED, 0)} by chance."
    )
    if missed:
        names = ", ".join(f"“{key}”" for key in missed)
        return Verdict("problem", "predictions", f"mostly misses {names}", f"Mostly missed: {names}; {numbers}.", rule)
    if behind:
        names = ", ".join(f"“{key}”" for key in behind)
        text = f"Found clearly less often than the others: {names}; {numbers}."
        return Verdict("note", "predictions", f"low recall of {names}", text, rule)
    if hits < MISSED * total:
        text = f"Too few rows of “{name}” to tell whether it is found: {numbers}."
        return Verdict("note", "predictions", f"too few rows of “{name}” to judge", text, rule)
    return Verdict("good", "predictions", "", f"Every class is mostly found: {numbers}.", rule)


def of_errors(root: float, error: float, guess: float, gain: float, gain_error: float, num_rows: int) -> Verdict:
    """Whether a regression is better than the mean of the training targets.

    Args:
        root: Root mean squared error.
        error: Its standard error.
        guess: Root mean squared error of the mean of the training targets.
        gain: Mean difference of their squared errors, positive if the network is better.
        gain_error: Its standard error.
        num_rows: Number of test rows.
    """
    explained = 1 - (root / guess) ** 2
    text = (
        f"RMSE {root:.4g} ± {error:.2g} on {count(num_rows)} test rows; the mean of the training targets has "
        f"{guess:.4g}"
    )
    rule = (
        f"Problem: the squared error is not below that of the mean by {NUM_ERRORS:g} standard errors of the "
        f"difference. Note: less than {percent(WEAK, 0)} of the variance is explained."
    )
    if not gain > NUM_ERRORS * gain_error:
        short = "no better than the mean of the targets"
        return Verdict("problem", "predictions", short, f"{text}: the network predicts no better than that.", rule)
    if explained < WEAK:
        more = f"{text}: only {percent(explained)} of the variance is explained."
        return Verdict("note", "predictions", f"explains only {percent(explained)} of the variance", more, rule)
    return Verdict("good", "predictions", "", f"{text}: {percent(explained)} of the variance is explained.", rule)


def of_rival(name: str, own: float, theirs: float, error: float, *, points: str, is_nearer: bool) -> Verdict:
    """Whether a network predicts better than the best simple method.

    Args:
        name: The method.
        own: Mean log-density of the network, in nats per row.
        theirs: That of the method.
        error: Standard error of the difference.
        points: The errors of both in words, such as ``RMSE 2 against 3``.
        is_nearer: Whether the network's errors are clearly smaller.
    """
    gain = own - theirs
    numbers = f"NLL {-own:.3f} against {-theirs:.3f} nats per row, gain {gain:+.3f} ± {error:.3f}; {points}"
    rule = (
        "The rival is the simple method of the lowest NLL. Problem: it is better than the network by more "
        f"than {NUM_ERRORS:g} standard errors of the difference, and by {SMALL_GAIN:g} nats per row. Note: there is no "
        "such difference either way. If the network has fewer errors none the less, its uncertainty is to blame."
    )
    if not abs(gain) > max(NUM_ERRORS * error, SMALL_GAIN):
        text = f"The network's probabilities are no better than those of {name} ({numbers})."
        return Verdict("note", "predictions", f"no better than {name}", text, rule)
    if gain > 0:
        text = f"The network's probabilities are better than those of {name} ({numbers})."
        return Verdict("good", "predictions", "", text, rule)
    if is_nearer:
        text = f"The network errs less than {name}, but its probabilities are worse ({numbers})."
        return Verdict("problem", "uncertainty", f"probabilities worse than those of {name}", text, rule)
    text = f"{sentence(name)} predicts better ({numbers})."
    return Verdict("problem", "predictions", f"beaten by {name}", text, rule)


def of_averaging(num_samples: int, own: float, mean_weights: float, error: float) -> Verdict | None:
    """Whether averaging over weight draws predicts better than their mean; None without a difference.

    Args:
        num_samples: Number of weight draws.
        own: Mean log-density of the average, in nats per row.
        mean_weights: That of the mean weights.
        error: Standard error of the difference.
    """
    gain = own - mean_weights
    if not abs(gain) > max(NUM_ERRORS * error, SMALL_GAIN):
        return None
    numbers = f"NLL {-own:.3f} against {-mean_weights:.3f} nats per row, gain {gain:+.3f} ± {error:.3f}"
    text = f"Averaging over {num_samples} weight draws predicts {{}} than the mean weights alone ({numbers})."
    rule = f"Said if the difference exceeds {NUM_ERRORS:g} standard errors and {SMALL_GAIN:g} nats per row."
    if gain > 0:
        return Verdict("good", "uncertainty", "", text.format("better"), rule)
    return Verdict("note", "uncertainty", "averaging over draws predicts worse", text.format("worse"), rule)


# --- uncertainty ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """How far probabilities are from being right, and how far they would be by chance.

    Args:
        error: Expected calibration error.
        usual: Its mean by chance, if the probabilities were exactly right.
        limit: Its 95 % quantile by chance.
        confidence: Mean probability of the predicted class.
        accuracy: Share of the predictions that are right.
        gap_error: Standard error of the difference of these two, if the probabilities were exactly right.
    """

    error: float
    usual: float
    limit: float
    confidence: float
    accuracy: float
    gap_error: float


def of_calibration(found: Calibration) -> Verdict:
    """Whether the probabilities of a classifier can be taken at their word."""
    numbers = f"calibration error {percent(found.error)}; chance gives up to {percent(found.limit)}"
    rule = (
        "Problem: the calibration error exceeds the 95 % quantile of simulations with calibrated probabilities. Note: "
        f"it does, but exceeds their mean by less than {100 * SMALL_EXCESS:.0f} point."
    )
    if found.error <= found.limit:
        text = f"The probabilities are calibrated, as far as these rows can tell ({numbers})."
        return Verdict("good", "uncertainty", "", text, rule)
    gap = found.confidence - found.accuracy
    size = f"{100 * abs(gap):.1f} ± {100 * found.gap_error:.1f} points"
    if abs(gap) <= NUM_ERRORS * found.gap_error:
        direction, short = "in some places too high and in others too low", "probabilities not calibrated"
    else:
        short = f"probabilities too {'high' if gap > 0 else 'low'}"
        direction = f"too {'high' if gap > 0 else 'low'}, on average by {size}"
    if found.error - found.usual < SMALL_EXCESS:
        text = f"The probabilities are slightly off ({numbers}): they are {direction}."
        return Verdict("note", "uncertainty", short.replace("too", "slightly too"), text, rule)
    text = f"The probabilities are not calibrated ({numbers}): they are {direction}."
    return Verdict("problem", "uncertainty", short, text, rule)


def of_error_detection(area: float, error: float, expected: float) -> Verdict:
    """Whether the least certain rows are those that a classifier has wrong.

    Args:
        area: Area under the ROC curve of the entropy that is to tell wrong rows from right ones.
        error: Its standard error.
        expected: What it would be if the probabilities were right.
    """
    numbers = (
        f"AUROC {area:.3f} ± {error:.3f}, where 0.5 is a guess and {expected:.3f} is what its probabilities promise"
    )
    rule = (
        f"Good: the AUROC is {USEFUL:g} or more. Problem: it is not above 0.5 by {NUM_ERRORS:g} standard errors, "
        f"though the probabilities promise {POSSIBLE:g} or more. Note: the rest."
    )
    if area - NUM_ERRORS * error > 0.5:
        if area >= USEFUL:
            return Verdict("good", "uncertainty", "", f"Wrong rows are among the least certain ({numbers}).", rule)
        text = f"The uncertainty points at wrong rows only weakly ({numbers})."
        return Verdict("note", "uncertainty", "uncertainty points at errors only weakly", text, rule)
    text = f"The uncertainty does not point at wrong rows ({numbers})."
    level: Level = "problem" if expected >= POSSIBLE else "note"
    return Verdict(level, "uncertainty", "uncertainty does not point at errors", text, rule)


def of_unknown(area: float, error: float, flagged: float, where: str, score: str) -> Verdict:
    """Whether unknown images are noticed.

    Args:
        area: Area under the ROC curve of the score that is to tell unknown images from known ones.
        error: Its standard error.
        flagged: Share of the known images that are flagged where 95 % of the unknown are.
        where: Which images these are.
        score: Name of the score.
    """
    numbers = (
        f"AUROC {area:.3f} ± {error:.3f} by {score}; to find 95 % of them, {percent(flagged)} of the known would be "
        "flagged as well"
    )
    rule = (
        f"Good: an AUROC of {NOTICED:g} or more. Note: {PARTLY:g} or more. Problem: less, or not above 0.5 by "
        f"{NUM_ERRORS:g} standard errors."
    )
    levels: Sequence[tuple[bool, Level, str]] = (
        (not area - NUM_ERRORS * error > 0.5, "problem", "not noticed"),
        (area < PARTLY, "problem", "hardly noticed"),
        (area < NOTICED, "note", "only partly noticed"),
        (True, "good", "noticed"),
    )
    level, words = next((level, words) for holds, level, words in levels if holds)
    short = "" if level == "good" else f"unknown images {words}"
    return Verdict(level, "uncertainty", short, f"Unknown images ({where}) are {words}: {numbers}.", rule)


def of_intervals(
    promised: Mapping[float, float], held: Mapping[float, float], limits: Mapping[float, tuple[float, float]]
) -> Verdict:
    """Whether intervals of all levels hold what they promise.

    Args:
        promised: For each level, the share of the targets that the intervals promise to hold.
        held: The share that they hold.
        limits: The shares between which chance leaves it.
    """
    misses = {level: held[level] - promised[level] for level in promised}
    wrong = {level: miss for level, miss in misses.items() if not limits[level][0] <= held[level] <= limits[level][1]}
    rule = (
        f"Each of the intervals of {', '.join(percent(level, 0) for level in promised)} is judged. Problem: one holds "
        f"a share that occurs by chance in less than {percent(1 - CHANCE, 0)} of the cases, and misses what it "
        f"promises by {100 * SMALL_MISS:.0f} points or more. Note: by less."
    )
    numbers = ", ".join(f"{percent(held[key])} for {percent(promised[key], 0)}" for key in promised)
    if not wrong:
        text = f"The intervals hold what they promise, as far as these rows can tell (share inside: {numbers})."
        return Verdict("good", "uncertainty", "", text, rule)
    if all(miss > 0 for miss in wrong.values()):
        kind = "too wide"
    elif all(miss < 0 for miss in wrong.values()):
        kind = "too narrow"
    else:
        kind = "of the wrong shape, some too wide and others too narrow"
    levels = "" if len(wrong) == len(held) else " and ".join(percent(level, 0) for level in wrong) + " "
    is_large = max(map(abs, wrong.values())) >= SMALL_MISS
    kind = kind if is_large else f"slightly {kind}"
    text = f"The {levels}intervals are {kind}: the share of the targets inside is {numbers}."
    return Verdict("problem" if is_large else "note", "uncertainty", f"{levels}intervals {kind}", text, rule)


@dataclass(frozen=True)
class Ranking:
    """Whether the predicted standard deviation ranks the errors.

    Args:
        correlation: Rank correlation of predicted standard deviation and size of the error.
        expected: What it would be if the predicted standard deviations were right.
        num_rows: Number of rows.
        surest: RMSE of the surest group of rows.
        least_sure: RMSE of the least sure group of rows.
        group: Name of such a group.
    """

    correlation: float
    expected: float
    num_rows: int
    surest: float
    least_sure: float
    group: str = "quarter"


def of_ranking(found: Ranking) -> Verdict:
    """Whether the rows of the largest predicted standard deviations have the largest errors."""
    error = NUM_ERRORS / math.sqrt(max(found.num_rows - 1, 1))
    numbers = (
        f"rank correlation {found.correlation:+.2f}, by chance up to ± {error:.2f}, and {found.expected:+.2f} if the "
        f"predicted sd were right; RMSE {found.surest:.4g} in the surest {found.group} of the rows and "
        f"{found.least_sure:.4g} in the least sure"
    )
    rule = (
        f"Good: the rank correlation of predicted sd and error is above chance ({NUM_ERRORS:g} standard errors), and "
        f"the least sure {found.group} of the rows has a larger RMSE than the surest. Problem: it is below 0 by more "
        "than chance, or at chance where right sds would show twice as much. Note: the rest."
    )
    rises = found.least_sure > found.surest
    if found.correlation > error:
        if rises:
            text = f"Errors are larger where the predicted sd is larger ({numbers})."
            return Verdict("good", "uncertainty", "", text, rule)
        text = f"The predicted sd ranks most errors, but not the largest ({numbers})."
        return Verdict("note", "uncertainty", "predicted sd misses the largest errors", text, rule)
    if found.correlation < -error:
        text = f"Errors are smaller where the predicted sd is larger ({numbers})."
        return Verdict("problem", "uncertainty", "predicted sd ranks the errors the wrong way round", text, rule)
    short = "predicted sd does not rank the errors"
    if found.expected > 2 * error:
        return Verdict("problem", "uncertainty", short, f"The predicted sd does not rank the errors ({numbers}).", rule)
    text = f"The predicted sd does not rank the errors; on these rows right ones would hardly do so either ({numbers})."
    return Verdict("note", "uncertainty", short, text, rule)
