"""Whether the probabilities of a classifier can be taken at their word."""

import math
from dataclasses import dataclass

from torch import Tensor

from .... import metrics, plotting
from .html import figure, figures, paragraph, table
from .numbers import count, percent
from .section import Section, Tile, Verdict
from .subject import Subject

__all__ = ["Calibration", "calibration_of", "calibration_section"]

NUM_BINS, NUM_SIMULATIONS = 15, 1000

LEVEL = 0.95
"""The calibration error is no more than chance gives if it lies below this quantile of errors by chance."""

SMALL_EXCESS = 0.01
"""Heuristic: a calibration error that exceeds the mean error by chance by less than one point is called small."""

NOTICEABLE = 2.0
"""A difference of confidence and accuracy of more standard errors than this has a direction."""


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

    @property
    def verdict(self) -> Verdict:
        """The finding in words."""
        if self.error <= self.limit:
            return Verdict(
                "good",
                f"The probabilities are well calibrated: ECE {percent(self.error)}, no more than chance gives (up to "
                f"{percent(self.limit)} in {percent(LEVEL, 0)} of simulations with calibrated probabilities).",
            )
        gap = self.confidence - self.accuracy
        if abs(gap) <= NOTICEABLE * self.gap_error:
            direction = "in some places too high and in others too low"
        else:
            direction = f"too {'high' if gap > 0 else 'low'}"
            direction += f", on average by {100 * abs(gap):.1f} ± {100 * self.gap_error:.1f} points"
        numbers = f"ECE {percent(self.error)}; chance gives up to {percent(self.limit)}"
        if self.error - self.usual < SMALL_EXCESS:
            return Verdict("note", f"The probabilities are slightly off ({numbers}): they are {direction}.")
        return Verdict("problem", f"The probabilities are not calibrated ({numbers}): they are {direction}.")


def calibration_of(probs: Tensor, y: Tensor, *, seed: int) -> Calibration:
    """Compare probabilities with what happened, and with simulations in which they are exactly right.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        seed: Seed of the simulations.
    """
    chance = metrics.calibration_error_by_chance(probs, num_bins=NUM_BINS, num_samples=NUM_SIMULATIONS, seed=seed)
    confidence = probs.double().amax(-1)
    return Calibration(
        error=metrics.expected_calibration_error(probs, y, num_bins=NUM_BINS),
        usual=float(chance.mean()),
        limit=float(chance.quantile(LEVEL)),
        confidence=float(confidence.mean()),
        accuracy=metrics.accuracy(probs, y),
        gap_error=math.sqrt(float((confidence * (1 - confidence)).sum())) / len(y),
    )


def calibration_section(subject: Subject) -> Section | None:
    """The expected calibration error beside what chance gives; the reliability diagram, and its bins as a table."""
    if subject.classified is None:
        return None
    noun = subject.classified.noun
    probs, y = subject.classified.evaluation.ensemble.probs.cpu(), subject.classified.y.cpu()
    found = calibration_of(probs, y, seed=subject.seed)
    tile = Tile(
        "Calibration error", percent(found.error), f"a calibrated one would show {percent(found.usual)} by chance"
    )
    picture = figure(
        plotting.reliability_diagram(probs, y, num_bins=NUM_BINS)[0],
        alt=f"Reliability diagram: accuracy by confidence in {NUM_BINS} bins. Mean confidence "
        f"{percent(found.confidence)}, accuracy {percent(found.accuracy)}; the table of bins has the numbers.",
        caption=f"Accuracy of the {noun}s by the confidence that they were given. On the diagonal, a probability of "
        "90 % is right nine times out of ten.",
    )
    words = paragraph(
        f"The expected calibration error (ECE) is {percent(found.error, 2)}. Finitely many {noun}s show an error even "
        f"if the probabilities are exactly right: {NUM_SIMULATIONS} simulations, in which the labels of these "
        f"{count(len(y))} {noun}s were drawn from the predicted probabilities, show {percent(found.usual, 2)} on "
        f"average, and less than {percent(found.limit, 2)} in {percent(LEVEL, 0)} of the cases. Mean confidence "
        f"{percent(found.confidence, 2)}, accuracy {percent(found.accuracy, 2)}."
    )
    return Section("Calibration", words + figures(picture, _bins(probs, y, noun)), (found.verdict,), (tile,))


def _bins(probs: Tensor, y: Tensor, noun: str) -> str:
    bins = metrics.calibration_bins(probs, y, num_bins=NUM_BINS)
    edges = bins.edges.tolist()
    columns = (edges[:-1], edges[1:], bins.counts.tolist(), bins.confidence.tolist(), bins.accuracy.tolist())
    rows = [
        (f"{low:.2f}\xa0to\xa0{high:.2f}", count(int(number)), f"{sure:.3f}", f"{right:.3f}", f"{right - sure:+.3f}")
        for low, high, number, sure, right in zip(*columns, strict=True)
        if number
    ]
    header = ("bin", f"{noun}s", "confidence", "accuracy", "difference")
    return table(header, rows, caption="Mean confidence and accuracy by bin of confidence")
