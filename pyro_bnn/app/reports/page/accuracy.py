"""How often a classifier is right: as a whole, class by class, and where it is sure."""

import math
from statistics import mean

import torch
from torch import Tensor

from ..evaluation import Row
from .html import details, figures, paragraph, table
from .numbers import count, interval, percent
from .section import Section, Tile, Verdict
from .subject import Classified, Subject

__all__ = ["accuracy_section"]

WEAK = 0.5
"""Heuristic: a classifier that avoids less than this share of a mere guess's mistakes is called weak."""

NOTICEABLE = 2.0
"""Differences of fewer standard errors than this are called none: by chance, one in twenty is larger."""

MOST_CLASSES = 20
"""Largest number of classes that are listed; of more, those with the lowest accuracy are."""

SHARES = (1.0, 0.95, 0.9, 0.8, 0.5)
"""Shares of the rows that are decided, if the least certain are left to a human."""


def accuracy_section(subject: Subject) -> Section | None:
    """Accuracy and log-likelihood of draws, mean weights and ensembles; of each class; and of the surest rows."""
    found = subject.classified
    if found is None:
        return None
    report = found.evaluation.report
    ensemble = report.rows[-1]
    low, high = interval(ensemble.accuracy, report.num_test)
    tiles = (
        Tile("Accuracy", percent(ensemble.accuracy), f"95 % interval {percent(low)} to {percent(high)}"),
        Tile("NLL", f"{ensemble.nll:.3f} nats", f"per {found.noun}; a uniform guess has {_uniform(found):.3f}"),
    )
    scores = _scores(report.rows, f"Scores on {count(report.num_test)} {found.test_name}", found.noun)
    body = [scores, figures(_by_class(found), _by_certainty(found))]
    averaging, has_effect = _of_averaging(found)
    body.insert(1, paragraph(averaging.text))
    verdicts = (_of_accuracy(found), *([averaging] if has_effect else []))
    return Section("Accuracy", "".join(body), verdicts, tiles)


def _of_accuracy(found: Classified) -> Verdict:
    report, y = found.evaluation.report, found.y
    accuracy, guess = report.rows[-1].accuracy, _guess(found)
    low, high = interval(accuracy, report.num_test)
    name = found.classes[int(torch.bincount(y).argmax())]
    text = (
        f"Accuracy {percent(accuracy)} on {count(report.num_test)} {found.test_name} (95 % interval {percent(low)} to "
        f"{percent(high)})"
    )
    compared = f"to say “{name}” each time would be right for {percent(guess)}"
    if low <= guess:
        return Verdict("problem", f"{text}: no better than a guess, as {compared}.")
    if accuracy - guess < WEAK * (1 - guess):
        return Verdict("problem", f"{text}: weak. It is wrong more than half as often as a mere guess: {compared}.")
    return Verdict("good", f"{text}; {compared}.")


def _of_averaging(found: Classified) -> tuple[Verdict, bool]:
    """Whether averaging over draws predicts better than the mean weights; and whether there is a difference at all."""
    evaluation, y = found.evaluation, found.y
    losses = [_losses(p.probs, y) for p in (evaluation.mean_weights, evaluation.ensemble)]
    gain = losses[0] - losses[1]
    value, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
    numbers = (
        f"NLL {float(losses[1].mean()):.3f} against {float(losses[0].mean()):.3f} nats, difference {value:.3f} ± "
        f"{error:.3f}"
    )
    average = f"Averaging over {evaluation.ensemble.num_samples} weight draws predicts"
    if not math.isfinite(value) or not abs(value) > NOTICEABLE * error:
        return Verdict("good", f"{average} as well as the mean weights, up to chance ({numbers})."), False
    if value > 0:
        return Verdict("good", f"{average} better than the mean weights alone ({numbers})."), True
    return Verdict("note", f"{average} worse than the mean weights alone ({numbers})."), True


def _losses(probs: Tensor, y: Tensor) -> Tensor:
    """Negative log-probability of each label, in nats."""
    return -probs.cpu().double().gather(-1, y.cpu()[:, None]).flatten().log()


def _guess(found: Classified) -> float:
    """Share of the most frequent class among the test rows."""
    return float(torch.bincount(found.y).max()) / len(found.y)


def _uniform(found: Classified) -> float:
    return math.log(len(found.classes))


def _scores(rows: list[Row], caption: str, noun: str) -> str:
    header = ("", "accuracy", "NLL (nats)", "ECE", "Brier score")
    single = [row for row in rows if row.name.startswith("component")]
    others = [row for row in rows if row not in single]
    average = Row(
        f"one weight draw (mean of {len(single)})",
        accuracy=mean(row.accuracy for row in single),
        nll=mean(row.nll for row in single),
        ece=mean(row.ece for row in single),
        brier=mean(row.brier for row in single),
    )
    return (
        table(header, [_cells(row) for row in [average, *others]], caption=caption)
        + details("Each single draw", table(header, [_cells(row) for row in single], caption="Scores of single draws"))
        + paragraph(
            "An average is that of the probabilities of several weight draws. NLL (negative log-likelihood per "
            f"{noun}), ECE (expected calibration error, 15 bins) and Brier score: lower is better."
        )
    )


def _cells(row: Row) -> tuple[str, ...]:
    name = row.name.replace("component", "draw")
    if name.startswith("ensemble"):
        name = f"average over {name.rpartition(' ')[2]} draws"
    return name, percent(row.accuracy, 2), f"{row.nll:.4f}", percent(row.ece, 2), f"{row.brier:.4f}"


def _by_class(found: Classified) -> str:
    classes, labels = found.classes, found.y.cpu()
    taken = found.evaluation.ensemble.labels.cpu()
    rows = []
    for label, name in enumerate(classes):
        mine = taken[labels == label]
        if not len(mine):
            continue
        right = float((mine == label).double().mean())
        wrong = torch.bincount(mine[mine != label], minlength=len(classes))
        often = int(wrong.max())
        mistake = f"{classes[int(wrong.argmax())]} ({often})" if often else "none"
        rows.append((right, (name, count(len(mine)), percent(right), mistake)))
    caption = "By class"
    if len(rows) > MOST_CLASSES:
        rows = sorted(rows)[:MOST_CLASSES]
        caption = f"The {MOST_CLASSES} classes with the lowest accuracy"
    header = ("class", f"{found.noun}s", "right", "most often taken for")
    return table(header, [cells for _, cells in rows], caption=caption)


def _by_certainty(found: Classified) -> str:
    ensemble, y = found.evaluation.ensemble, found.y.cpu()
    is_right = (ensemble.labels.cpu() == y)[ensemble.total.cpu().argsort()].double()
    rows = []
    for share in SHARES:
        surest = is_right[: max(1, round(share * len(is_right)))]
        low, high = interval(float(surest.mean()), len(surest))
        numbers = (count(len(surest)), percent(float(surest.mean())), f"{percent(low)} to {percent(high)}")
        rows.append((f"{share:.0%}".replace("%", " %"), *numbers))
    header = ("surest share", f"{found.noun}s", "right", "95 % interval")
    words = paragraph(
        "Certainty is measured by the entropy of the averaged probabilities. Where a network knows what it does not "
        "know, accuracy rises from row to row."
    )
    return f"<div>{table(header, rows, caption=f'If the least certain {found.noun}s are left to a human')}{words}</div>"
