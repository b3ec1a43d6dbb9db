"""Verdicts that hint at faults in the data. The report on a regression shows them."""

import math

from ...numbers import in_series, number, percent, with_error
from ..drivers import EXACT, is_exact, leak_in_words
from ..trained import LINEAR
from .section import FEWEST, Verdict, judged, sentence
from .subject import Regressed
from .verdicts import NUM_ERRORS, mean_and_error

NOTABLE_BIAS = 0.1  # heuristic: a mean error is notable above this share of the RMSE
NOTABLE_SHARE = 0.05  # heuristic: impossible numbers are notable in the intervals of more rows than this share
MOST_ROUNDING = 0.01  # at most, since prices with decimals are no counts
ROUNDING = 1e-5  # a target is 0 up to rounding at this share of the sd of the targets


def of_leak(found: Regressed) -> list[Verdict]:
    """Judge whether a linear function of the inputs is almost equal to the target."""
    if LINEAR not in found.baselines:
        return []
    means = found.baselines[LINEAR].mean, found.train_mean
    roots = [math.sqrt(float(found.squared_errors(mean).mean())) for mean in means]
    if not is_exact(*roots):
        return []
    finding, remedy = leak_in_words(found.leak, found.ignored)
    text = (
        f"{sentence(finding)}: linear regression is almost exact (RMSE {number(roots[0])}, the mean of the targets "
        f"{number(roots[1])}). If these columns are unknown when you predict, train without them ({remedy})."
    )
    rule = (
        f"Problem: the RMSE of linear regression is at most {EXACT:g} times that of the mean of the training targets."
    )
    short, changes = "columns probably contain the target", {}
    if found.leak is not None:
        short = f"{finding} (leave {'it' if len(found.leak.columns) == 1 else 'them'} out: {remedy})"
        changes = {"ignore": (*found.ignored, *found.leak.columns)}
    return [Verdict("problem", "predictions", short, text, rule, is_cause=True, changes=changes)]


def of_bias(found: Regressed) -> list[Verdict]:
    """Judge whether the predictions are too high or too low on average, if there are enough rows to tell."""
    if len(found.y) < FEWEST:
        return []
    biased, directions = [], set()
    for name, residuals in zip(found.names, (found.prediction.mean - found.y).double().T, strict=True):
        bias, error = mean_and_error(residuals)
        share = abs(bias) / math.sqrt(float(residuals.square().mean())) if bias else 0.0
        if abs(bias) > NUM_ERRORS * error and share > NOTABLE_BIAS:
            subject = "The predictions" if len(found.names) == 1 else f"The predictions of {name}"
            directions.add(direction := f"too {'high' if bias > 0 else 'low'}")
            size = f"{with_error(abs(bias), error)} ({percent(share, 0)} of the RMSE)"
            biased.append(f"{subject} are {direction} on average, by {size}.")
    text = f"{' '.join(biased)} Sums of predictions are off, too: look whether test rows differ from training rows."
    return [
        judged(
            "predictions",
            f"Note: the mean error is more than {NUM_ERRORS:g} standard errors from 0, and more than "
            f"{percent(NOTABLE_BIAS, 0)} of the RMSE.",
            (not biased, "good", "", "The predictions are neither too high nor too low on average, within chance."),
            (True, "note", f"the predictions are {' or '.join(sorted(directions))} on average", text),
        )
    ]


def of_negative(found: Regressed, level: float) -> list[Verdict]:
    """If no training target is negative, judge whether predicted intervals of the given level reach below 0."""
    shares = (found.interval(level)[0] < 0).double().mean(0).tolist()
    rounding = ROUNDING * found.train_scale.abs()  # targets are stored in single precision
    are_positive = (found.train_least >= -rounding).tolist()
    notable = [i for i, share in enumerate(shares) if are_positive[i] and share > NOTABLE_SHARE]
    if not notable:
        return []
    who = in_series([found.names[i] for i in notable]) if len(found.names) > 1 else "The target"
    rows = in_series([percent(shares[i], 0) for i in notable])
    has_zeros = bool((found.train_least <= rounding)[notable].any())
    remedy = "log(1 + target), and take exp(...) - 1" if has_zeros else "log(target), and take exp(...)"
    fractions = (found.y - found.y.round()).abs()
    are_whole = all(are_positive) and bool((fractions <= rounding.clamp_max(MOST_ROUNDING)).all())
    counts = "If the targets are counts, train with --likelihood poisson. Otherwise, t" if are_whole else "T"
    text = (
        f"{sentence(who)} is never negative in training, but the {percent(level, 0)} intervals of {rows} of the "
        f"test rows reach below 0. {counts}rain on a column {remedy} of the predicted intervals."
    )
    rule = (
        f"Note: no training target is negative, and the {percent(level, 0)} intervals of more than "
        f"{percent(NOTABLE_SHARE, 0)} of the test rows contain negative numbers."
    )
    changes = {"likelihood": "poisson"} if are_whole else {}
    return [Verdict("note", "uncertainty", "intervals reach below 0", text, rule, changes=changes)]
