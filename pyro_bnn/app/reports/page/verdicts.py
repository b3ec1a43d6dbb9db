"""Verdicts on whether the mean of draws predicts better than baselines, and better than a single network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from scipy.stats import t as student
from torch import Tensor

from ....scores.uncertainty import Prediction
from ...numbers import in_series, number, percent, with_error
from ..calibrated import COARSE, COARSE_RATIO
from ..trained import LINEAR, SHARES_OF_CLASSES, TREES, Alone
from .section import FEWEST, About, Level, Tile, Verdict, in_order, judged, sentence
from .subject import Classified, Regressed

P = TypeVar("P", bound=Prediction)
NUM_ERRORS = 2.0  # standard errors that a difference must exceed, which happens by chance in one of twenty
USUAL = 0.977  # the share of Gaussian numbers that lie at most so many standard deviations above their mean
SMALL_GAIN = 0.01  # heuristic: a smaller difference in NLL, in nats per row, counts as a tie
LARGE_LOSS = 0.1  # heuristic: a network is not usable if a baseline's NLL is lower by this, in nats per row
WEAK = 0.5  # heuristic: a weak network avoids less than this share of a guess's mistakes or squared errors
NO_BETTER = "Check the target and the columns; more rows may help."  # the remedy
UNTOLD = "too few rows to tell whether better than"
ONLY_PREDICTIONS = "If you need predictions only, and no uncertainty,"
LINEAR_ONES = (LINEAR, "logistic regression")  # baselines that are linear models
IN_A_SENTENCE = {name: f"the {name}" for name in ("mean of the targets", SHARES_OF_CLASSES)}  # guesses


def log_density(prediction: Prediction | Alone[Any]) -> Tensor:
    """Return the log-density of the target of each row, shape (N,). For single draws, return its mean."""
    assert prediction.log_density is not None
    return prediction.log_density.detach().double().cpu()


def _mean_density(prediction: Prediction | Alone[Any]) -> float:
    return float(log_density(prediction).mean())


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean over rows and the standard error of the mean. For a single row the standard error is infinite."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(values.mean()), error


def root_and_error(squared: Tensor) -> tuple[float, float]:
    """Return the root of the mean of squared errors, and the standard error of this root."""
    mean, error = mean_and_error(squared)
    return math.sqrt(mean), error / (2 * math.sqrt(mean)) if mean else 0.0


def gain_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean over rows and its standard error, which is larger by Student's t if the rows are few."""
    mean, error = mean_and_error(values)
    num_rows = len(values)
    return mean, error * (float(student.ppf(USUAL, num_rows - 1)) / NUM_ERRORS if 1 < num_rows < FEWEST else 1.0)


def best_of(baselines: Mapping[str, P]) -> tuple[str, P]:
    """Return the name (for use in a sentence) and the prediction of the baseline with the lowest NLL.

    Trees do not count as a baseline here.
    """
    others = [item for item in baselines.items() if item[0] != TREES]
    name, best = max(others, key=lambda item: _mean_density(item[1]))
    return IN_A_SENTENCE.get(name, name), best


def of_baseline(
    name: str,
    own: float,
    theirs: float,
    error: float,
    *,
    points: str,
    is_nearer: bool,
    unbeaten: str = "",
    guess: tuple[str, float] | None = None,
    is_linear: bool = False,
    is_few: bool = False,
) -> Verdict:
    """Judge whether a network predicts better than the best baseline.

    `own` and `theirs` are the mean log-densities of the network and of the baseline, in nats per row. `points` is
    a text that compares the errors of both. `is_nearer` says whether the network has clearly smaller errors. If the
    baseline is not clearly better in a second score, `unbeaten` is the name of this score; otherwise it is empty.
    `guess` has the name and the mean log-density of a second baseline, which ignores the inputs.
    `is_linear` says whether the network is a linear model, and `is_few` whether there are few test rows.
    """
    gain = own - theirs
    is_tied = not abs(gain) > max(NUM_ERRORS * error, SMALL_GAIN)
    scores = f"NLL {number(-own)} against {number(-theirs)}"
    numbers = f"{scores}; {points}"
    tied = f"The network's probabilities are not clearly better than those of {name} ({numbers})."
    if is_linear and name in LINEAR_ONES:
        tied += " Both are linear models."
    equal = f"not clearly better than {name} ({scores})"
    if is_few:
        equal = f"{UNTOLD} {name} ({scores})"
        tied = f"Too few rows to tell whether the network's probabilities are better than those of {name} ({numbers})."
    if is_nearer:
        equal = f"probabilities not clearly better than those of {name} ({scores}), while the errors are smaller"
    worse = (
        f"The network has smaller errors than {name}, but its probabilities are worse ({numbers}). Train on "
        "more rows, or use its predictions only."
    )
    is_beaten = gain < 0 and not is_tied
    where = f" in NLL, not clearly in {unbeaten}" if unbeaten else ""
    lead = f"{sentence(name)} {'has the lower NLL' if unbeaten else 'predicts better'}"
    beats = f"{lead} (this run: {numbers})."
    remedy = f"Use {name}, or train on more rows."
    better, by_guess = [name], f"{number(-own)} against {number(-theirs)}"
    if guess is not None and guess[1] > own:
        better, by_guess = [name, guess[0]], f"{by_guess} and {number(-guess[1])}"
        beats = f"{beats} So does {guess[0]}, which ignores all inputs: NLL {number(-guess[1])}."
    is_large = is_beaten and gain < -LARGE_LOSS
    about: About = "predictions" if is_large else "baseline"
    level: Level = "problem" if is_large else "note"
    verdict = judged(
        "uncertainty" if is_beaten and is_nearer else about,
        f"The baseline with the lowest NLL, apart from trees, is compared: the gain is {with_error(gain, error, '+')}. "
        f"Problem: its NLL is lower than that of the network by more than "
        f"{NUM_ERRORS:g} standard errors of the difference, and by more than {LARGE_LOSS:g} nats per row. If the "
        "network still has the smaller errors, only its uncertainty is wrong. Note: the NLL of the baseline is lower "
        f"by less, or the NLL of the network is not lower by {NUM_ERRORS:g} standard errors and {SMALL_GAIN:g} nats.",
        (is_tied, "note", equal, tied),
        (gain > 0, "good", "", f"The network's probabilities are better than those of {name} ({numbers})."),
        (is_nearer, level, f"probabilities worse than those of {' and of '.join(better)} (NLL {by_guess})", worse),
        (True, level, f"beaten by {' and '.join(better)}{where}", f"{beats} {remedy}"),
    )
    is_rival = verdict.level != "good" and verdict.about != "uncertainty"  # which has the smaller errors otherwise
    relation = "not clearly better than" if is_tied else "beaten in NLL by" if unbeaten else "beaten by"
    relation = UNTOLD if is_tied and is_few else relation
    is_beaten = is_beaten and not is_nearer and not unbeaten
    return replace(verdict, is_beaten=is_beaten, rivals=tuple(better) if is_rival else (), relation=relation)


def of_ways(
    found: Classified | Regressed,
    name: str,
    baseline: Prediction,
    *,
    points: str,
    lead: tuple[float, float],
    score: str,
) -> list[Verdict]:
    """Judge the mean of draws against a baseline, and compare it with single networks.

    `lead` has the gain of the mean of draws in accuracy or mean squared error, and the standard error of this gain.
    """
    ahead, noise = lead[0], NUM_ERRORS * lead[1]
    single = found.single[1]
    own, theirs, alone = (log_density(way) for way in (found.prediction, baseline, single))
    error = gain_and_error(own - theirs)[1]
    guesses = {guess: way for guess, way in found.baselines.items() if IN_A_SENTENCE.get(guess, name) != name}
    beaten = of_baseline(
        name,
        float(own.mean()),
        float(theirs.mean()),
        error,
        points=points,
        is_nearer=ahead > noise,
        unbeaten="" if ahead < -noise else score,
        guess=next(((IN_A_SENTENCE[guess], _mean_density(way)) for guess, way in guesses.items()), None),
        is_linear=found.is_linear,
        is_few=len(own) < FEWEST,
    )
    gain, error = gain_and_error(own - alone)
    if isinstance(single, Alone) or not abs(gain) > max(NUM_ERRORS * error, SMALL_GAIN):
        return [beaten]  # an average of all draws is never worse than they are on average
    better, many = "better" if gain > 0 else "worse", f"Averaging over {found.prediction.num_samples} draws"
    scores = f"NLL {number(-float(own.mean()))} against {number(-float(alone.mean()))}"
    text = f"{many} of the weights predicts {better} than the mean weights alone ({scores})."
    rule = (
        f"The gain is {with_error(gain, error, '+')}. Reported if the difference exceeds {NUM_ERRORS:g} standard "
        f"errors and {SMALL_GAIN:g} nats per row."
    )
    level: Level = "good" if gain > 0 else "note"
    short = "" if gain > 0 else "averaging over draws predicts worse"
    return [beaten, Verdict(level, "uncertainty", short, text, rule)]


def of_rivals(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Merge verdicts with `rivals` and the same word into one verdict, which names all these simpler methods."""
    alike: dict[str, list[Verdict]] = {}
    for verdict in in_order(verdicts):
        if verdict.rivals:
            alike.setdefault(verdict.word, []).append(verdict)
    return [*map(_merged, alike.values()), *(verdict for verdict in verdicts if not verdict.rivals)]


def _merged(worse: Sequence[Verdict]) -> Verdict:
    if len(worse) < 2:
        return worse[0]
    relations = {name: verdict.relation for verdict in reversed(worse) for name in verdict.rivals}  # the first of each
    named: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for verdict in worse for name in verdict.rivals):
        named.setdefault(relations[name], []).append(name)
    return replace(
        worse[0],
        short=", ".join(f"{relation} {in_series(names)}" for relation, names in named.items()),
        text=" ".join(verdict.text for verdict in worse),
        rule=" ".join(verdict.rule for verdict in worse),
        is_beaten=any(verdict.is_beaten for verdict in worse),
    )


def of_others(found: Classified | Regressed) -> list[Verdict]:
    """Judge whether trees, or a linear model if its RMSE is lower, predict better than the network."""
    others = [name for name in (TREES, LINEAR) if name in found.baselines]
    if isinstance(found, Regressed) and len(others) > 1:
        others = [min(others, key=lambda name: float(found.squared_errors(found.baselines[name].mean).mean()))]
    return [verdict for name in others for verdict in _of_errors(found, name)]


def _of_errors(found: Classified | Regressed, other: str) -> list[Verdict]:
    if other not in found.baselines:
        return []
    is_surer, nll = False, ""
    if isinstance(found, Regressed):
        means = found.prediction.mean, found.baselines[other].mean
        own, theirs = (found.squared_errors(mean).mean(-1) for mean in means)  # (N,)
        score, values = "RMSE", [number(math.sqrt(float(part.mean()))) for part in (own, theirs)]
    else:
        labels = found.prediction.labels, found.baselines[other].labels
        own, theirs = ((part.cpu() != found.y.cpu()).double() for part in labels)
        score, values = "accuracy", [percent(1 - float(part.mean())) for part in (own, theirs)]
    logs = [log_density(way) for way in (found.baselines[other], found.prediction) if way.log_density is not None]
    if other == TREES and len(logs) == 2:
        lead, error = gain_and_error(logs[0] - logs[1])
        is_surer = lead > max(NUM_ERRORS * error, SMALL_GAIN)
        nll = "NLL {} against {}".format(*(number(-float(part.mean())) for part in logs))
    gain, error = gain_and_error(theirs - own)
    is_tied = not abs(gain) > NUM_ERRORS * error
    clear = COARSE_RATIO * float(theirs.mean()) if isinstance(found, Regressed) else COARSE
    if (
        is_tied and not is_surer and (len(own) < FEWEST or NUM_ERRORS * error > clear)
    ):  # only a gross difference would show
        return []
    numbers = f"{score} {values[0]}, {'trees' if other == TREES else other} {values[1]}"
    verb, remedy = "are", "take scikit-learn's HistGradientBoosting with its defaults."
    if other == LINEAR:
        verb, remedy = "is", "use linear regression."
    aim = f"Their probabilities are better, too ({nll}):" if is_surer else ONLY_PREDICTIONS
    better = f"{sentence(other)} {verb} more accurate here: {score} {values[1]}, this run {values[0]}. {aim} {remedy}"
    sure = f"have the better probabilities: {nll} ({numbers}). Use them, or train on more rows."
    verdict = judged(
        "baseline",
        f"{'Trees of' if other == TREES else 'Linear regression of'} scikit-learn with default settings "
        f"{'are' if other == TREES else 'is'} fitted to the same training rows. Note: their mean error "
        f"(squared error of a number; mistakes, or NLL, for a class) is lower by more than {NUM_ERRORS:g} standard "
        "errors of the difference.",
        (is_surer and (is_tied or gain > 0), "note", f"{other} predict better ({nll})", f"{sentence(other)} {sure}"),
        (is_tied, "good", "", f"The network is as accurate as {other}, within chance ({numbers})."),
        (gain > 0, "good", "", f"The network is more accurate than {other} ({numbers})."),
        (
            True,
            "note",
            f"{other} predict{'' if other == TREES else 's'} better ({score} {values[1]} against {values[0]})",
            better,
        ),
    )
    is_worse, is_beaten = verdict.level == "note", not is_tied and gain < 0
    relation = "beaten by" if is_beaten else "beaten in NLL by"
    return [replace(verdict, is_beaten=is_beaten, rivals=(other,) if is_worse else (), relation=relation)]


def ways_of(found: Classified | Regressed) -> dict[str, Any]:
    """Return the predictions of a single network, the mean of draws and the baselines by their names in tables."""
    return {
        found.single[0]: found.single[1],
        f"mean of {found.prediction.num_samples} draws": found.prediction,
        **{f"baseline: {name}": way for name, way in found.baselines.items()},
    }


def scores_of_ways(found: Classified | Regressed) -> list[dict[str, Any]]:
    """Return the names and scores of a single network, the mean of draws and the baselines."""
    main = f"mean of {found.prediction.num_samples} draws"
    return [
        {
            "name": name,
            "is_main": name == main,
            **way.score(),
            **({} if way.log_density is None else {"nll": -_mean_density(way)}),
        }
        for name, way in ways_of(found).items()
    ]


def density_tile(found: Classified | Regressed, name: str, baseline: Prediction, *, of: str, noun: str) -> Tile:
    """Make a tile with the mean NLL of the mean of draws and of a baseline.

    The heading is "NLL" and `of`, which is empty or names the target, as in " of price".
    """
    if (trees := found.baselines.get(TREES)) is not None and trees.log_density is not None:
        name, baseline = max((name, baseline), (TREES, trees), key=lambda item: _mean_density(item[1]))
    remark = f"negative log-likelihood per {noun}, smaller is better; {name}: {number(-_mean_density(baseline))}"
    return Tile(f"NLL{of}", number(-_mean_density(found.prediction)), remark)
