"""What a report says of a classifier: accuracy, calibration, unknown images, and examples."""

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score, roc_auc_score
from torch import Tensor

from ....results import plotting
from ....scores import metrics
from ....scores.uncertainty import ClassificationPrediction
from . import verdicts
from .drawing import drawn, panel, pixels
from .numbers import count, percent, plural, wilson
from .section import Section, Tile, Verdict
from .subject import Classified, Subject

__all__ = ["accuracy_section", "calibration_of", "calibration_section", "examples_section", "unknown_section"]

MOST_CLASSES = 20
"""Largest number of classes that are listed; of more, those of the lowest recall are, without a confusion matrix."""

SHARES = (1.0, 0.95, 0.9, 0.8, 0.5)
"""Shares of the rows that are decided, if the least certain are left to a human."""

FEWEST = 5
"""Heuristic: with fewer wrong rows, or fewer right ones, nothing is said of whether uncertainty points at them."""

NUM_BINS, NUM_SIMULATIONS = 15, 1000

LIMIT = 0.95
"""The calibration error is no more than chance gives if it lies below this quantile of errors by chance."""

SHOWN_SCORES = ("entropy", "mutual information")
"""Scores of unknown images that have pictures."""

HEADLINE = "entropy"
"""The score of the verdict, chosen before seeing the data: the best of several scores would look better by chance."""

SHOWN_IMAGES, MOST_VOTED = 2, 4
"""Number of example images of each kind, and of classes that are listed beside one."""


# --- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy_section(subject: Subject) -> Section | None:
    """Scores beside those of simple methods, recall and precision of each class, and how well the surest rows do."""
    found = subject.classified
    if found is None:
        return None
    ensemble, y = found.evaluation.ensemble, found.y.cpu()
    labels, log_prob = ensemble.labels.cpu(), _log_density(ensemble)
    is_right = labels == y
    num_right, num_rows = int(is_right.sum()), len(y)
    accuracy, shares = num_right / num_rows, torch.bincount(y, minlength=len(found.classes)).double() / num_rows
    classes = _by_class(found, labels)
    balanced = mean(row["recall"] for row in classes)
    certainty = _by_certainty(ensemble.total.cpu(), is_right)
    low, high = wilson(num_right, num_rows)
    judged = [
        verdicts.of_accuracy(
            num_right, num_rows, found.classes[int(shares.argmax())], float(shares.max()), found.test_name
        ),
        verdicts.of_recall({row["name"]: (row["hits"], row["rows"]) for row in classes}, balanced, accuracy),
    ]
    rival = max(found.rivals, key=lambda name: float(_log_density(found.rivals[name]).mean()))
    theirs = _log_density(found.rivals[rival])
    is_rival_right = found.rivals[rival].labels.cpu() == y
    right, rival_right, error = _compared(is_right.double(), is_rival_right.double())
    judged.append(
        verdicts.of_rival(
            _in_words(rival),
            *_compared(log_prob, theirs),
            points=f"{percent(right)} right against {percent(rival_right)}",
            is_nearer=right - rival_right > verdicts.NUM_ERRORS * error,
        )
    )
    averaging = verdicts.of_averaging(
        ensemble.num_samples, *_compared(log_prob, _log_density(found.evaluation.mean_weights))
    )
    if averaging is not None:
        judged.append(averaging)
    if FEWEST <= num_right <= num_rows - FEWEST:
        judged.append(_error_detection(ensemble, is_right))
    listed = sorted(classes, key=lambda row: row["recall"])[:MOST_CLASSES] if len(classes) > MOST_CLASSES else classes
    return Section(
        "Accuracy",
        "accuracy.html",
        {
            "found": found,
            "scores": _scores(found),
            "classes": listed,
            "are_all_listed": len(listed) == len(classes),
            "matrix": _matrix(y, labels, len(found.classes)) if len(found.classes) <= MOST_CLASSES else None,
            "certainty": certainty,
        },
        tuple(judged),
        (
            Tile("Accuracy", percent(accuracy), f"95 % interval {percent(low)} to {percent(high)}"),
            Tile("Balanced accuracy", percent(balanced), "mean of the classes' recalls"),
            Tile(
                "Log-likelihood",
                f"{float(log_prob.mean()):.3f}",
                f"nats per {found.noun}; {_in_words(rival)} has {float(theirs.mean()):.3f}",
            ),
        ),
        usable=_usable(accuracy, certainty, found.noun),
    )


def _log_density(prediction: ClassificationPrediction) -> Tensor:
    assert prediction.log_density is not None
    return prediction.log_density.detach().double().cpu()


def _compared(own: Tensor, theirs: Tensor) -> tuple[float, float, float]:
    """Both means, and the standard error of their difference."""
    error = float((own - theirs).std()) / math.sqrt(len(own)) if len(own) > 1 else math.inf
    return float(own.mean()), float(theirs.mean()), error


def _in_words(rival: str) -> str:
    return f"the {rival}" if rival.startswith("shares") else rival


def _error_detection(prediction: ClassificationPrediction, is_right: Tensor) -> Verdict:
    """Whether entropy tells wrong rows from right ones, beside how well it would if the probabilities were right."""
    entropy, confidence = prediction.total.detach().cpu(), prediction.max_probability.detach().double().cpu()
    measured = metrics.ood_scores(entropy[is_right], entropy[~is_right])
    weights = torch.cat([confidence, 1 - confidence]).clamp_min(1e-12)
    is_wrong = np.repeat([0, 1], len(entropy))
    expected = float(roc_auc_score(is_wrong, entropy.repeat(2).numpy(), sample_weight=weights.numpy()))
    return verdicts.of_error_detection(measured.auroc, measured.auroc_standard_error, expected)


def _scores(found: Classified) -> list[dict[str, Any]]:
    """Scores of each way to predict."""
    evaluation = found.evaluation
    draws = [row for row in evaluation.report.rows if row.name.startswith("component")]
    rows = [
        {
            "name": f"one weight draw (mean of {len(draws)})",
            "accuracy": mean(row.accuracy for row in draws),
            "nll": mean(row.nll for row in draws),
            "brier": mean(row.brier for row in draws),
        }
    ]
    ways = {
        "mean weights": evaluation.mean_weights,
        f"average over {evaluation.ensemble.num_samples} draws": evaluation.ensemble,
        **{f"rival: {name}": rival for name, rival in found.rivals.items()},
    }
    for name, prediction in ways.items():
        probs, y = prediction.probs.cpu(), found.y.cpu()
        scores = {"accuracy": metrics.accuracy(probs, y), "brier": metrics.brier_score(probs, y)}
        rows.append({"name": name, "nll": -float(_log_density(prediction).mean()), **scores})
    return rows


def _by_class(found: Classified, labels: Tensor) -> list[dict[str, Any]]:
    """Recall and precision of each class that occurs among the test rows, and what it is taken for."""
    y, every = found.y.cpu(), range(len(found.classes))
    recalls = recall_score(y, labels, labels=every, average=None, zero_division=np.nan)
    precisions = precision_score(y, labels, labels=every, average=None, zero_division=np.nan)
    taken = _matrix(y, labels, len(found.classes))
    rows = []
    for label in y.unique().tolist():
        wrong = taken[label].copy()
        wrong[label] = 0
        often = int(wrong.max())
        rows.append(
            {
                "name": found.classes[label],
                "rows": int(taken[label].sum()),
                "hits": int(taken[label, label]),
                "recall": float(recalls[label]),
                "precision": float(precisions[label]),
                "mistake": f"{found.classes[int(wrong.argmax())]} ({often})" if often else "none",
            }
        )
    return rows


def _matrix(y: Tensor, labels: Tensor, num_classes: int) -> np.ndarray:
    """Number of rows of each class (first axis) that are taken for each class."""
    return confusion_matrix(y, labels, labels=range(num_classes))


def _by_certainty(entropy: Tensor, is_right: Tensor) -> list[dict[str, Any]]:
    """How many of the surest rows are right, for several shares of all rows."""
    ordered, rows = is_right[entropy.argsort()], []
    for share in SHARES:
        surest = ordered[: max(1, round(share * len(ordered)))]
        right, number = int(surest.sum()), len(surest)
        rows.append({"share": share, "rows": number, "right": right / number, "interval": wilson(right, number)})
    return rows


def _usable(accuracy: float, certainty: Sequence[dict[str, Any]], noun: str) -> str:
    """How many are right, and what is gained by leaving at least as many to a human as are wrong."""
    text = f"{percent(accuracy)} right"
    row = next((row for row in certainty if 1 - row["share"] >= 1 - accuracy), certainty[-1])
    if row["share"] == 1 or row["right"] <= accuracy:
        return text
    rest = "had no error" if row["right"] == 1 else f"are {percent(row['right'])} right"
    deferred = f"defer the least certain {percent(1 - row['share'], 0)}"
    return f"{text}; {deferred} and the rest {rest} ({plural(row['rows'], noun)})"


# --- calibration ------------------------------------------------------------------------------------------------------


def calibration_of(probs: Tensor, y: Tensor, *, seed: int) -> verdicts.Calibration:
    """Compare probabilities with what happened, and with simulations in which they are exactly right.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        seed: Seed of the simulations.
    """
    chance = metrics.calibration_error_by_chance(
        probs, num_bins=NUM_BINS, num_samples=NUM_SIMULATIONS, seed=seed, equal_mass=True
    )
    confidence = probs.double().amax(-1)
    return verdicts.Calibration(
        error=metrics.expected_calibration_error(probs, y, num_bins=NUM_BINS, equal_mass=True),
        usual=float(chance.mean()),
        limit=float(chance.quantile(LIMIT)),
        confidence=float(confidence.mean()),
        accuracy=metrics.accuracy(probs, y),
        gap_error=math.sqrt(float((confidence * (1 - confidence)).sum())) / len(y),
    )


def calibration_section(subject: Subject) -> Section | None:
    """The expected calibration error beside what chance gives; the reliability diagram, and its bins as a table."""
    if subject.classified is None:
        return None
    noun, y = subject.classified.noun, subject.classified.y.cpu()
    probs = subject.classified.evaluation.ensemble.probs.cpu()
    found, bins = (
        calibration_of(probs, y, seed=subject.seed),
        metrics.calibration_bins(probs, y, num_bins=NUM_BINS, equal_mass=True),
    )
    picture = drawn(
        plotting.reliability_diagram(probs, y, num_bins=NUM_BINS, equal_mass=True)[0],
        alt=f"Reliability diagram: accuracy by confidence in bins of equally many {noun}s. Mean confidence "
        f"{percent(found.confidence)}, accuracy {percent(found.accuracy)}; the table of bins has the numbers.",
        caption=f"Accuracy of the {noun}s by the confidence that they were given. On the diagonal, a probability of "
        "90 % is right nine times out of ten.",
    )
    columns = zip(*(part.tolist() for part in (bins.counts, bins.confidence, bins.accuracy)), strict=True)
    return Section(
        "Calibration",
        "calibration.html",
        {
            "noun": noun,
            "num_rows": len(y),
            "num_bins": NUM_BINS,
            "num_simulations": NUM_SIMULATIONS,
            "limit": LIMIT,
            "found": found,
            "picture": picture,
            "bins": [row for row in columns if row[0]],
        },
        (verdicts.of_calibration(found),),
        (
            Tile(
                "Calibration error",
                percent(found.error),
                f"a calibrated one would show {percent(found.usual)} by chance",
            ),
        ),
    )


# --- unknown images ---------------------------------------------------------------------------------------------------


def unknown_section(subject: Subject) -> Section | None:
    """The area under the ROC curve of each score with its standard error, and the distributions of the scores."""
    found = subject.classified
    if found is None or found.evaluation.foreign is None:
        return None
    ood, report = found.evaluation.report.ood, found.evaluation.report
    where = f"{count(report.num_unknown)} images of {found.unknown_name}"
    shown = {name: found.evaluation.scores[name] for name in SHOWN_SCORES}
    known, unknown = ({f"{name} (nats)": pair[i] for name, pair in shown.items()} for i in (0, 1))
    alts = [f"Shares of known and of unknown images below each {name}." for name in shown]
    alts.append("ROC curves: " + ", ".join(f"area {ood[name].auroc:.3f} below that of the {name}" for name in shown))
    axes = plotting.detection_curves(known, unknown, axes=np.array([panel() for _ in alts]))
    area, error, flagged = ood[HEADLINE].auroc, ood[HEADLINE].auroc_standard_error, ood[HEADLINE].fpr95
    return Section(
        "Unknown images",
        "unknown.html",
        {
            "where": where,
            "found": found,
            "ood": ood,
            "num_known": report.num_test,
            "pictures": [drawn(ax, alt=alt) for ax, alt in zip(axes, alts, strict=True)],
        },
        (verdicts.of_unknown(area, error, flagged, where, HEADLINE),),
        (Tile("Unknown noticed", f"{area:.3f}", f"AUROC of the {HEADLINE}; 0.5 is a guess, 1 is perfect"),),
    )


# --- examples ---------------------------------------------------------------------------------------------------------


def examples_section(subject: Subject) -> Section | None:
    """The surest right, the surest wrong and the least certain images; and unknown ones, both sure and not."""
    found = subject.classified
    if found is None or found.images is None:
        return None
    known, y = found.evaluation.ensemble, found.y.cpu()
    is_right, order = known.labels.cpu() == y, known.total.cpu().argsort()
    truth = [f"truly {found.classes[label]}" for label in y.tolist()]
    groups = [
        ("Surest, and right", known, found.images, order[is_right[order]], truth),
        ("Surest, and wrong", known, found.images, order[~is_right[order]], truth),
        ("Least certain", known, found.images, order.flip(0), truth),
    ]
    if found.evaluation.foreign is not None and found.unknown is not None:
        foreign, name = found.evaluation.foreign, [f"unknown ({found.unknown_name})"] * len(found.unknown)
        order = foreign.total.cpu().argsort()
        groups += [
            ("Unknown, and noticed best", foreign, found.unknown, order.flip(0), name),
            ("Unknown, and noticed least", foreign, found.unknown, order, name),
        ]
    shown = [
        (
            title,
            [_card(images[row], prediction, row, found.classes, names[row]) for row in rows[:SHOWN_IMAGES].tolist()],
        )
        for title, prediction, images, rows, names in groups
    ]
    return Section("Examples", "examples.html", {"groups": shown, "num_samples": known.num_samples})


def _card(
    grey: Tensor, prediction: ClassificationPrediction, row: int, classes: tuple[str, ...], truth: str
) -> dict[str, Any]:
    votes = prediction.votes[row].cpu()
    order = votes.argsort(descending=True)[: min(MOST_VOTED, int((votes > 0).sum()))].tolist()
    return {
        "picture": pixels(grey, alt=f"An image, {truth}, taken for {classes[order[0]]}."),
        "truth": truth,
        "entropy": float(prediction.total[row]),
        "votes": [(classes[label], int(votes[label]) / int(votes.sum())) for label in order],
    }
