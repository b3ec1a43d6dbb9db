"""The report's section on the accuracy of a classifier."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score
from torch import Tensor

from ...._core.summary import counted
from ....scores import metrics
from ....scores.uncertainty import ClassificationPrediction
from ...config import LEVEL
from ...numbers import in_series, number, percent, with_error
from ..trained import SHARES_OF_CLASSES, TREES, Alone
from .section import FEWEST, Level, Section, Tile, Verdict, judged, wilson
from .subject import Classified, Subject
from .verdicts import (
    IN_A_SENTENCE,
    NO_BETTER,
    NUM_ERRORS,
    UNTOLD,
    WEAK,
    best_of,
    density_tile,
    gain_and_error,
    log_density,
    of_others,
    of_ways,
    scores_of_ways,
    ways_of,
)

MOST_CLASSES = 20  # of more, only those of lowest recall are listed, without a confusion matrix
FLAGGED = (0.05, 0.1, 0.2)  # of the test rows: those in which the rarer of two classes is most probable
SHARES = (1.0, 0.95, 0.9, 0.8, 0.5)  # of the test rows that the network classifies; a human gets the least certain ones
MISSED, FOUND, BEHIND = 0.5, 0.75, 0.1
"""Heuristic: a class is mostly missed if the interval of its recall lies below `MISSED`. The recall of a class is
low if its interval lies below `FOUND`, or more than `BEHIND` below the accuracy."""

FEWEST_WRONG = 5  # heuristic: wrong rows, and right rows, to judge whether the uncertainty detects errors
USEFUL, POSSIBLE = 0.7, 0.6  # heuristic: areas under the ROC curve for errors that are detected well, or could be


def accuracy_section(subject: Subject) -> Section | None:
    """Make the section on the accuracy of the network and the baselines.

    The section also has the network's accuracy for each class and for its most certain predictions.
    """
    found = subject.classified
    if found is None:
        return None
    of = f" of {found.target}" if found.target else ""
    y, labels = found.y.cpu(), found.prediction.labels.cpu()
    is_right, matrix = labels == y, confusion_matrix(y, labels, labels=range(len(found.classes)))
    num_right, num_rows = int(is_right.sum()), len(y)
    accuracy, (low, high) = num_right / num_rows, wilson(num_right, num_rows)
    classes, certainty = _by_class(found, matrix), _by_certainty(found.prediction.total.cpu(), is_right)
    tested, of_two = [row for row in classes if row["rows"]], _of_two(found)
    balanced = mean(row["recall"] for row in tested)
    name, baseline = best_of(found.baselines)
    is_baseline_right = (baseline.labels.cpu() == y).double()
    gain, error = gain_and_error(is_right.double() - is_baseline_right)
    shares = {other: float((way.labels.cpu() == y).double().mean()) for other, way in found.baselines.items()}
    nearest = max(shares, key=shares.__getitem__)
    right = f"{num_right} of {num_rows}" if num_rows < FEWEST else percent(accuracy)
    points = f"{percent(accuracy)} right against {percent(float(is_baseline_right.mean()))}"
    detection = []
    if FEWEST_WRONG <= num_right <= num_rows - FEWEST_WRONG:
        detection.append(_of_error_detection(found.prediction, is_right, found.noun))
    verdicts = [
        _of_accuracy(found, num_right),
        _of_recall(tested, accuracy),
        *of_ways(found, name, baseline, points=points, lead=(gain, error), score="accuracy"),
        *of_others(found),
        *detection,
    ]
    is_useful = any(verdict.level == "good" for verdict in detection)
    listed = sorted(tested, key=lambda row: row["recall"])[:MOST_CLASSES] if len(classes) > MOST_CLASSES else classes
    overall = Tile(f"Balanced accuracy{of}", percent(balanced), "mean share of each class that is found")
    order = "" if of_two is None else f"AUROC {of_two['auroc']:.2f}, "
    if of_two is not None:
        remark = "chance that a row of this class has a higher probability of it than another row"
        overall = Tile(f"AUROC of “{of_two['class']}”", f"{of_two['auroc']:.3f}", remark)
    return Section(
        "Accuracy",
        "accuracy.html",
        {
            "found": found,
            "scores": scores_of_ways(found),
            "of_two": of_two,
            "has_trees": TREES in found.baselines,
            "classes": listed,
            "are_all_listed": len(listed) == len(classes),
            "matrix": matrix if of_two is None and len(found.classes) <= MOST_CLASSES else None,
            "certainty": certainty,
        },
        tuple(verdicts),
        (
            Tile(
                f"Accuracy{of}",
                percent(accuracy),
                f"best baseline ({IN_A_SENTENCE.get(nearest, nearest)}): {percent(shares[nearest])}; 90 % interval "
                f"{percent(low)} to {percent(high)}",
            ),
            overall,
            density_tile(found, name, baseline, of=of, noun=found.noun),
        ),
        usable=f"{order}{right} right ({IN_A_SENTENCE.get(nearest, nearest)}: {percent(shares[nearest])})"
        f"{_deferred(accuracy, certainty if is_useful else (), found.noun)}",
    )


def all_right(found: Classified | None, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """If all test rows are right, and not by chance, call notes good which say that test rows are too few to tell."""
    is_calm = found is not None and bool((found.prediction.labels.cpu() == found.y.cpu()).all())
    is_calm &= all(verdict.level == "good" or verdict.about != "unclear" for verdict in verdicts)
    return [
        replace(verdict, level="good") if is_calm and verdict.word == "unclear" else verdict for verdict in verdicts
    ]


def _of_two(found: Classified) -> dict[str, Any] | None:
    """If there are two classes, score how well each method finds the rows of the rarer class; otherwise return None.

    Each method sorts the rows by the probability of this class.
    """
    counts = torch.bincount(found.y.cpu(), minlength=len(found.classes)).tolist()
    if len(counts) != 2 or not all(counts):
        return None
    guess = found.baselines.get(SHARES_OF_CLASSES)
    first, second = counts if guess is None else guess.probs[0].tolist()  # the shares in the training rows
    rarer = int(second <= first)
    is_rarer = (found.y.cpu() == rarer).numpy()

    def measured(way: ClassificationPrediction) -> dict[str, float]:
        p = way.probs[:, rarer].detach().double().cpu().numpy()
        found = float(roc_auc_score(is_rarer, p)), float(average_precision_score(is_rarer, p))
        return dict(zip(("auroc", "precision"), found, strict=True))

    rows = [way.mean(measured) if isinstance(way, Alone) else measured(way) for way in ways_of(found).values()]
    p, flagged = found.prediction.probs[:, rarer].cpu(), []
    order = p.argsort(descending=True)
    for share in FLAGGED:
        chosen = order[: max(1, round(share * len(order)))]
        hits = int(is_rarer[chosen].sum())
        flagged.append((share, len(chosen), float(p[chosen[-1]]), hits / counts[rarer], hits / len(chosen)))
    return {
        "class": found.classes[rarer],
        "auroc": measured(found.prediction)["auroc"],
        "rows": [tuple(row.values()) for row in rows],
        "flagged": flagged,
    }


def _by_class(found: Classified, matrix: np.ndarray) -> list[dict[str, Any]]:
    """Return the recall, the precision, the AUROC and the most frequent confusion of each class."""
    hits, rows, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    wrong = matrix - np.diag(hits)
    return [
        {
            "name": name,
            "rows": int(rows[i]),
            "hits": int(hits[i]),
            "recall": float(hits[i] / rows[i]) if rows[i] else math.nan,
            "precision": float(hits[i] / predicted[i]) if predicted[i] else math.nan,
            "area": _area(found, i) if 0 < rows[i] < len(found.y) else (math.nan, math.nan),
            "mistake": _mistake(found.classes, wrong[i]),
        }
        for i, name in enumerate(found.classes)
    ]


def _mistake(names: Sequence[str], counts: np.ndarray) -> str:
    """Return the classes for which a class is most often taken, with the number of such rows."""
    most = int(counts.max())
    tied = in_series([name for name, count in zip(names, counts, strict=True) if count == most])
    return f"{tied} ({most}{' each' if (counts == most).sum() > 1 else ''})" if most else "none"


def _area(found: Classified, label: int) -> tuple[float, float]:
    """Return the AUROC of the probability of a class, for this class against all others, and its standard error."""
    p, is_own = found.prediction.probs[:, label].detach().double().cpu(), found.y.cpu() == label
    measured = metrics.ood_scores(p[~is_own], p[is_own])
    return measured.auroc, measured.auroc_standard_error


def _is_ranked(area: tuple[float, float]) -> bool:
    return area[0] >= USEFUL and area[0] - NUM_ERRORS * area[1] > 0.5


def _by_certainty(entropy: Tensor, is_right: Tensor) -> list[dict[str, Any]]:
    """Return the accuracy on the rows with the lowest entropy, for each share of the rows in `SHARES`."""
    ordered, rows = is_right[entropy.argsort()], []
    for share in SHARES:
        surest = ordered[: max(1, round(share * len(ordered)))]
        right, number = int(surest.sum()), len(surest)
        rows.append({"share": share, "rows": number, "right": right / number, "interval": wilson(right, number)})
    return rows


def _deferred(accuracy: float, certainty: Sequence[dict[str, Any]], noun: str) -> str:
    """Return advice to leave the least certain rows to a human; "" if the accuracy on the rest is not higher."""
    if not certainty:
        return ""
    # The human gets the smallest share of rows that is at least the share of wrong predictions, but at most half.
    row = next((row for row in certainty if 1 - row["share"] >= 1 - accuracy), certainty[-1])
    if row["share"] == 1 or row["right"] <= accuracy:
        return ""
    rest = "had no error" if row["right"] == 1 else f"are {percent(row['right'])} right"
    deferred = f"defer the least certain {percent(1 - row['share'], 0)}"
    return f"; {deferred} and the rest {rest} ({counted(row['rows'], noun)})"


def _of_accuracy(found: Classified, num_right: int) -> Verdict:
    """Judge whether a classifier is better than a guess that ignores the inputs.

    Probabilities of a rare class can be useful although they rarely reach one half, so two classes are also judged by
    the NLL and the AUROC.
    """
    num_rows, counts = len(found.y), torch.bincount(found.y.cpu(), minlength=len(found.classes))
    guess, often = float(counts.max()) / num_rows, found.classes[int(counts.argmax())]
    accuracy, (low, high) = num_right / num_rows, wilson(num_right, num_rows)
    text = (
        f"{percent(accuracy)} of {num_rows:,} {found.test_name} are right (90 % interval {percent(low)} to "
        f"{percent(high)}); always saying “{often}” would be right for {percent(guess)}"
    )
    is_informative, may_be, ranked = False, accuracy > guess or (num_rows < FEWEST and high > guess), ""
    if len(counts) == 2 and int(counts.min()) and SHARES_OF_CLASSES in found.baselines and low <= guess:
        area = _area(found, int(counts.argmin()))
        shares = log_density(found.baselines[SHARES_OF_CLASSES])
        gain, error = gain_and_error(log_density(found.prediction) - shares)
        is_informative = gain > NUM_ERRORS * error and area[0] - NUM_ERRORS * area[1] > 0.5
        may_be = may_be or (gain > 0 and area[0] > 0.5)
        scores = f"NLL {number(-float(shares.mean()) - gain)} against {number(-float(shares.mean()))}"
        ranked = f"The probabilities say more than the shares of the classes ({scores}; AUROC {area[0]:.2f}). {text}."
    no_better = f"no better than always saying “{often}”"
    remain = f"{text}: the network avoids less than half of this guess's mistakes."
    chance = f"{text}: the difference may be chance."
    verdict = judged(
        "unclear" if low <= guess and may_be and not is_informative else "predictions",
        "Problem: the accuracy is not above the share of the most frequent class. Note: it is above, but its 90 % "
        f"interval reaches down to this share, or the network avoids less than {percent(WEAK, 0)} of the mistakes that "
        "one makes by always saying this class. Two classes are good without this if the NLL is lower than that of the "
        f"shares of the classes, and the AUROC above 0.5, both by {NUM_ERRORS:g} standard errors. With fewer than "
        f"{FEWEST} rows, it is a note if the interval reaches up to this share.",
        (is_informative, "good", "", ranked),
        (not may_be, "problem", no_better, f"{text}: the network is no better. {NO_BETTER}"),
        (low <= guess, "note", f"{UNTOLD} always saying “{often}”", chance),
        (accuracy - guess < WEAK * (1 - guess), "note", "most of a guess's mistakes remain", remain),
        (True, "good", "", f"{text}."),
    )
    is_rival = low <= guess and not is_informative
    relation = UNTOLD if verdict.about == "unclear" else "no better than"
    return replace(verdict, rivals=(f"always saying “{often}”",) if is_rival else (), relation=relation)


def _found(classes: Sequence[Mapping[str, Any]]) -> str:
    return in_series([f"“{row['name']}” ({row['hits']} of {row['rows']} found)" for row in classes])


def _of_recall(classes: Sequence[Mapping[str, Any]], accuracy: float) -> Verdict:
    lowest = min(classes, key=lambda row: row["recall"])
    limits = {f"“{row['name']}”": wilson(row["hits"], row["rows"], num_compared=len(classes))[1] for row in classes}
    seldom = [row for row in classes if limits[f"“{row['name']}”"] < MISSED]
    missed = [row for row in seldom if not _is_ranked(row["area"])]
    ranked = [row for row in seldom if row not in missed]
    misses, rarely = (", ".join(f"“{row['name']}”" for row in part) for part in (missed, ranked))
    others = [row for row in classes if row not in seldom and row["recall"] < MISSED]
    behind = ", ".join(name for name, limit in limits.items() if limit < accuracy - BEHIND)
    name = f"“{lowest['name']}”"
    rarest = min(classes, key=lambda row: wilson(row["hits"], row["rows"])[0])
    numbers = f"lowest recall {percent(lowest['recall'])} ({name}, {lowest['hits']} of {lowest['rows']})"
    mostly = f"Mostly missed: {_found(missed)}."
    if others:
        mostly += f" Too few rows to tell about {_found(others)}."
    areas = in_series([f"{row['area'][0]:.2f}" for row in ranked])
    useful = (
        f"Rarely the most probable class: {_found(ranked)}. But its probabilities rank the rows well (AUROC {areas}). "
        "To find more, take all rows in which the probability of the class exceeds a threshold that you choose."
    )
    rarer = f"Found clearly less often than the others: {behind}; {numbers}."
    share, highest = percent(1 - lowest["recall"], 0), max(classes, key=lambda row: row["recall"])
    often = f"{share} of {name} are missed, and {percent(1 - highest['recall'], 0)} of “{highest['name']}”; {numbers}."
    few = f"Too few rows of {name} to tell whether it is found: {numbers}."
    unsure = f"Too few rows of “{rarest['name']}” ({rarest['rows']}) to tell whether it is found: {numbers}."
    is_few = wilson(rarest["hits"], rarest["rows"])[0] < MISSED
    return judged(
        "predictions",
        f"Problem: the interval of a class's recall lies below {percent(MISSED, 0)}, and the AUROC of this class "
        f"against the others is below {USEFUL:g}, or not above 0.5 by {NUM_ERRORS:g} standard errors. Note: only the "
        "recall is low, or its interval lies "
        f"more than {100 * BEHIND:.0f} points below the accuracy, below {percent(FOUND, 0)}, or reaches below "
        f"{percent(MISSED, 0)}. The upper ends hold in {percent(LEVEL, 0)} of the cases for all classes together.",
        (
            bool(missed),
            "problem",
            f"mostly misses {misses}",
            f"{mostly} More training rows of them may help.{f' {useful}' if ranked else ''}",
        ),
        (bool(ranked), "note", f"rarely predicts {rarely}: choose rows by probability", useful),
        (bool(behind), "note", f"low recall of {behind}", rarer),
        (lowest["recall"] < MISSED, "note", f"too few rows of {name} to judge", few),
        (limits[name] < FOUND, "note", f"misses {share} of {name}", often),
        (is_few, "note", f"too few rows of “{rarest['name']}” to judge", unsure),
        (True, "good", "", f"Every class with test rows is mostly found: {numbers}."),
    )


def _of_error_detection(prediction: ClassificationPrediction, is_right: Tensor, noun: str) -> Verdict:
    """Judge whether wrong predictions have a larger entropy than right predictions."""
    entropy, confidence = prediction.total.detach().cpu(), prediction.max_probability.detach().double().cpu()
    measured = metrics.ood_scores(entropy[is_right], entropy[~is_right])
    area, error = measured.auroc, measured.auroc_standard_error
    weights = torch.cat([confidence, 1 - confidence]).clamp_min(1e-12)
    is_wrong = np.repeat([0, 1], len(entropy))
    expected = float(roc_auc_score(is_wrong, entropy.repeat(2).numpy(), sample_weight=weights.numpy()))
    is_above = area - NUM_ERRORS * error > 0.5
    numbers = f"AUROC {area:.2f}; a guess has 0.5"
    is_short = expected - area > NUM_ERRORS * error
    is_unclear = not is_above and not is_short and expected >= POSSIBLE
    few = f"Too few errors ({int((~is_right).sum())}) to tell whether the uncertainty points at them ({numbers})."
    level: Level = "problem" if expected >= POSSIBLE else "note"
    nowhere = f"The uncertainty does not point at wrong {noun}s ({numbers}). Do not choose {noun}s for a human by it."
    weakly = f"The uncertainty points at wrong {noun}s only weakly ({numbers})."
    return judged(
        "limit" if is_unclear else "uncertainty",
        f"The AUROC is {with_error(area, error)}; the probabilities promise {expected:.2f}. "
        f"Good: the AUROC is {USEFUL:g} or more, and above 0.5 by {NUM_ERRORS:g} standard errors. Problem: it is not "
        f"above 0.5 by this much, and is below what the probabilities promise ({POSSIBLE:g} or more) by {NUM_ERRORS:g} "
        "standard errors. Note: all other cases.",
        (is_above and area >= USEFUL, "good", "", f"Wrong {noun}s are among the least certain ({numbers})."),
        (is_above, "note", "uncertainty points at errors only weakly", weakly),
        (is_unclear, "note", "too few errors to tell whether the uncertainty points at them", few),
        (True, level, "uncertainty does not point at errors", nowhere),
    )
