"""The report's section on the test rows whose targets the model least expected."""

import math
from collections.abc import Sequence

import pandas

from ..numbers import number, percent
from .regression import HEADLINE
from .section import Section
from .subject import Classified, Regressed, Subject
from .verdicts import log_density

MOST_ROWS = 10  # rows in the table
MOST_INPUTS = 4  # inputs of a row: those on which the predictions depend most
LONGEST = 24  # letters of an input
MOST_CLASSES = 3  # classes of a row with their probabilities


def surprises_section(subject: Subject) -> Section | None:
    """Make the section on the rows with the largest NLL; None for image sets, which have a section of examples."""
    found = subject.classified or subject.regressed
    if found is None or not found.rows:
        return None
    scores = -log_density(found.prediction)
    worst = scores.argsort(descending=True, stable=True)[:MOST_ROWS].tolist()
    cells = _of_classes(found, worst) if isinstance(found, Classified) else _of_numbers(found, worst)
    inputs = [] if subject.inputs is None else [driver.name for driver in subject.drivers[:MOST_INPUTS]]
    shown = [
        (found.rows[row], [*parts, number(float(scores[row])), *_inputs(subject, row, inputs)], is_outside)
        for row, (parts, is_outside) in zip(worst, cells, strict=True)
    ]
    return Section(
        "Rows that surprised the model most",
        "surprises.html",
        {
            "is_class": isinstance(found, Classified),
            "is_table": subject.config.kind == "table",
            "num_outputs": 1 if isinstance(found, Classified) else len(found.names),
            "inputs": inputs,
            "rows": [(number, parts) for number, parts, _ in shown],
            "num_outside": sum(is_outside for _, _, is_outside in shown),
            "num_test": len(found.rows),
            "mean": float(scores.mean()),
            "level": HEADLINE,
        },
    )


def _inputs(subject: Subject, row: int, names: Sequence[str]) -> list[str]:
    """Return a short text for each column in `names`: the input of a test row before standardisation."""
    if subject.inputs is None:
        return []
    cells = [subject.inputs[name].iloc[row] for name in names]
    texts = ["missing" if pandas.isna(cell) else cell if isinstance(cell, str) else f"{cell:.6g}" for cell in cells]
    return [text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in texts]


def _of_numbers(found: Regressed, rows: Sequence[int]) -> list[tuple[list[str], bool]]:
    """Return the cells of each row, and whether its target lies outside the interval.

    Of several targets, a row shows the one with the largest error, measured in predicted standard deviations.
    """
    mean, y, (low, high) = found.prediction.mean, found.y, found.interval(HEADLINE)
    outputs = ((y - mean).abs() / found.prediction.total.sqrt()).argmax(-1).tolist()
    widths = (high - low).median(0).values.tolist()
    cells = []
    for row in rows:
        at = row, outputs[row]
        observed, predicted, lower, upper = (float(part[at]) for part in (y, mean, low, high))
        name = [found.names[outputs[row]]] if len(found.names) > 1 else []
        form = f".{_decimals(widths[outputs[row]])}f"
        numbers = [f"{observed:.6g}", f"{predicted:{form}}", f"{lower:{form}} to {upper:{form}}"]
        cells.append(([*name, *numbers], not lower <= observed <= upper))
    return cells


def _decimals(width: float) -> int:
    """Return how many decimal places are needed to show the width of an interval with three significant digits."""
    return max(0, 2 - math.floor(math.log10(width))) if 0 < width < math.inf else 2


def _of_classes(found: Classified, rows: Sequence[int]) -> list[tuple[list[str], bool]]:
    """Return the cells of each row, and whether the most probable class is wrong."""
    cells = []
    for row in rows:
        probs, label = found.prediction.probs[row], int(found.y[row])
        order = probs.argsort(descending=True)[:MOST_CLASSES].tolist()
        predicted = ", ".join(f"{found.classes[i]} {percent(float(probs[i]))}" for i in order)
        cells.append(([found.classes[label], predicted, percent(float(probs[label]))], order[0] != label))
    return cells
