"""The report's section on the errors of a regression."""

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...._core.summary import counted
from ...config import LEVEL
from ...numbers import number, percent, with_error
from ..pictures import Drawing, observed_against_predicted
from ..trained import TREES
from .hints import of_bias, of_leak
from .section import FEWEST, Section, Tile, Verdict, judged
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
    of_others,
    of_ways,
    root_and_error,
    scores_of_ways,
)

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
                (output, *root_and_error(squared[:, i]), math.sqrt(float(guessed[:, i].mean())))
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
    root, error = root_and_error(squared.mean(-1))
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


def _predicted_and_observed(found: Regressed, output: int) -> dict[str, Any]:
    """Plot the observed against the predicted values of one output. Return the plot and the values for its caption."""
    mean, y, name = found.prediction.mean[:, output], found.y[:, output], found.names[output]
    low, high = found.interval(LEVEL)[..., output]
    ax, num_drawn = observed_against_predicted(mean, y, low, high, name=name, level=LEVEL)
    inside = float(((y >= low) & (y <= high)).double().mean())
    return {"address": Drawing(ax), "name": name, "inside": inside, "num_drawn": num_drawn}
