"""Whether the probabilities of a classifier can be taken at their word."""

import math

from .... import metrics, plotting
from .html import figure, figures, paragraph, table
from .numbers import count, percent
from .section import Section, Tile, Verdict
from .subject import Classified, Subject

__all__ = ["calibration_section"]

NUM_BINS, NUM_SIMULATIONS = 15, 1000

LEVEL = 0.95
"""The calibration error is no more than chance gives if it lies below this quantile of errors by chance."""

SMALL_EXCESS = 0.01
"""Heuristic: a calibration error that exceeds the mean error by chance by less than one point is called small."""

NOTICEABLE = 2.0
"""A difference of confidence and accuracy of more standard errors than this has a direction."""


def calibration_section(subject: Subject) -> Section | None:
    """The expected calibration error beside what chance gives; the reliability diagram, and its bins as a table."""
    found = subject.classified
    if found is None:
        return None
    probs, y = found.evaluation.ensemble.probs.cpu(), found.images.y_test.cpu()
    error = metrics.expected_calibration_error(probs, y, num_bins=NUM_BINS)
    chance = metrics.calibration_error_by_chance(
        probs, num_bins=NUM_BINS, num_samples=NUM_SIMULATIONS, seed=subject.seed
    )
    limit, usual = float(chance.quantile(LEVEL)), float(chance.mean())
    confidence, accuracy = float(probs.amax(-1).double().mean()), metrics.accuracy(probs, y)
    verdict = _verdict(found, error=error, limit=limit, usual=usual)
    tile = Tile("Calibration error", percent(error), f"a calibrated one would show {percent(usual)} by chance")
    bins = metrics.calibration_bins(probs, y, num_bins=NUM_BINS)
    rows = [
        (f"{low:.3f} to {high:.3f}", count(int(number)), f"{sure:.3f}", f"{right:.3f}", f"{right - sure:+.3f}")
        for low, high, number, sure, right in zip(
            bins.edges[:-1].tolist(),
            bins.edges[1:].tolist(),
            bins.counts.tolist(),
            bins.confidence.tolist(),
            bins.accuracy.tolist(),
            strict=True,
        )
        if number
    ]
    header = ("confidence", "images", "mean confidence", "accuracy", "difference")
    picture = figure(
        plotting.reliability_diagram(probs, y, num_bins=NUM_BINS),
        alt=f"Reliability diagram: accuracy by confidence in {NUM_BINS} bins. Mean confidence {percent(confidence)}, "
        f"accuracy {percent(accuracy)}; the table of bins has the numbers.",
        caption="Accuracy of the images by the confidence that they were given. On the diagonal, a probability of "
        "90 % is right nine times out of ten.",
    )
    words = paragraph(
        f"The expected calibration error (ECE) is {percent(error, 2)}. Finitely many images show an error even if the "
        f"probabilities are exactly right: {NUM_SIMULATIONS} simulations, in which the labels of these "
        f"{count(len(y))} images were drawn from the predicted probabilities, show {percent(usual, 2)} on average, and "
        f"less than {percent(limit, 2)} in {percent(LEVEL, 0)} of the cases. Mean confidence {percent(confidence, 2)}, "
        f"accuracy {percent(accuracy, 2)}."
    )
    body = words + figures(picture, table(header, rows, caption="Bins of confidence"))
    return Section("Calibration", body, (verdict,), (tile,))


def _verdict(found: Classified, *, error: float, limit: float, usual: float) -> Verdict:
    probs, y = found.evaluation.ensemble.probs.cpu().double(), found.images.y_test.cpu()
    confidence = probs.amax(-1)
    gap = float((confidence - (probs.argmax(-1) == y).double()).mean())
    by_chance = math.sqrt(float((confidence * (1 - confidence)).sum())) / len(y)
    if error <= limit:
        return Verdict(
            "good",
            f"The probabilities are well calibrated: ECE {percent(error)}, no more than chance gives (up to "
            f"{percent(limit)} in {percent(LEVEL, 0)} of simulations with calibrated probabilities).",
        )
    if abs(gap) <= NOTICEABLE * by_chance:
        direction = "in some places too high and in others too low"
    else:
        direction = (
            f"too {'high' if gap > 0 else 'low'}, on average by {100 * abs(gap):.1f} ± {100 * by_chance:.1f} points"
        )
    numbers = f"ECE {percent(error)}; chance gives up to {percent(limit)}"
    if error - usual < SMALL_EXCESS:
        return Verdict("note", f"The probabilities are slightly off ({numbers}): they are {direction}.")
    return Verdict("problem", f"The probabilities are not calibrated ({numbers}): they are {direction}.")
