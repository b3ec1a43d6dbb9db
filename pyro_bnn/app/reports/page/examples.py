"""The report's section with examples of images."""

from typing import Any

from torch import Tensor

from ....scores.uncertainty import ClassificationPrediction
from ..pictures import pixels
from .section import Section
from .subject import Subject

SHOWN_IMAGES, MOST_VOTED = 2, 4  # images of each kind, and classes beside an image


def examples_section(subject: Subject) -> Section | None:
    """Make the section with examples of sure and unsure predictions of test images and of unknown images."""
    found = subject.classified
    if found is None or found.images is None:
        return None
    known, y = found.prediction, found.y.cpu()
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
        "picture": pixels(grey),
        "truth": truth,
        "entropy": float(prediction.total[row]),
        "votes": [(classes[label], int(votes[label]) / int(votes.sum())) for label in order],
    }
