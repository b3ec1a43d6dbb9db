"""Single images, and the classes that weight draws vote for."""

from html import escape

from torch import Tensor

from ....uncertainty import ClassificationPrediction
from .html import image, paragraph
from .numbers import percent
from .section import Section
from .subject import Classified, Subject

__all__ = ["examples_section"]

SHOWN = 2
"""Number of images of each kind."""

MOST_VOTED = 4
"""Number of classes that are listed below an image."""


def examples_section(subject: Subject) -> Section | None:
    """The surest right, the surest wrong and the least certain images; and unknown ones, both sure and not."""
    found = subject.classified
    if found is None or found.images is None:
        return None
    known, y = found.evaluation.ensemble, found.y.cpu()
    entropy, is_right = known.total.cpu(), known.labels.cpu() == y
    order = entropy.argsort()
    groups = [
        ("Surest, and right", order[is_right[order]][:SHOWN]),
        ("Surest, and wrong", order[~is_right[order]][:SHOWN]),
        ("Least certain", order.flip(0)[:SHOWN]),
    ]
    body = [
        paragraph(
            f"Each of {known.num_samples} weight draws votes for one class. The images are the extremes of all, by the "
            "entropy of the mean probabilities."
        )
    ]
    parts = []
    for title, rows in groups:
        truth = [f"truly {found.classes[int(label)]}" for label in y[rows]]
        parts.append(_group(title, found.images[rows], known, rows, found, truth))
    if found.evaluation.foreign is not None and found.unknown is not None:
        foreign = found.evaluation.foreign
        order = foreign.total.cpu().argsort()
        for title, rows in (
            ("Unknown, and noticed best", order.flip(0)[:SHOWN]),
            ("Unknown, and noticed least", order[:SHOWN]),
        ):
            truth = [f"unknown ({found.unknown_name})"] * len(rows)
            parts.append(_group(title, found.unknown[rows.to(found.unknown.device)], foreign, rows, found, truth))
    body.append(f'<div class="groups">{"".join(parts)}</div>')
    return Section("Examples", "".join(body))


def _group(
    title: str, images: Tensor, prediction: ClassificationPrediction, rows: Tensor, found: Classified, truth: list[str]
) -> str:
    if not len(rows):
        return f"<section><h3>{escape(title)}</h3>{paragraph('There is none.')}</section>"
    cards = [
        _card(grey, prediction.votes[row].cpu(), float(prediction.total[row]), found.classes, name)
        for grey, row, name in zip(images, rows.tolist(), truth, strict=True)
    ]
    return f'<section><h3>{escape(title)}</h3><div class="cards">{"".join(cards)}</div></section>'


def _card(grey: Tensor, votes: Tensor, entropy: float, classes: tuple[str, ...], truth: str) -> str:
    total = int(votes.sum())
    order = votes.argsort(descending=True)[: min(MOST_VOTED, int((votes > 0).sum()))]
    bars = "".join(_bar(classes[label], int(votes[label]) / total) for label in order.tolist())
    first = classes[int(order[0])]
    alt = f"An image, {truth}, taken for {first}."
    return (
        f'<div class="card">{image(grey, alt=alt)}<div><p><strong>{escape(truth)}</strong><br>entropy '
        f'{_nats(entropy)} nats; votes:</p><ul class="votes">{bars}</ul></div></div>'
    )


def _bar(name: str, share: float) -> str:
    return (
        f'<li><span class="name">{escape(name)}</span><span class="bar" style="--share:{share:.4f}"></span>'
        f'<span class="number">{percent(share, 0)}</span></li>'
    )


def _nats(entropy: float) -> str:
    return f"{entropy:.2f}" if entropy >= 0.005 else "below 0.01"
