"""The report's sections on columns that drive the predictions, and on rows that surprised the model."""

import math
from collections.abc import Sequence
from contextlib import suppress

import pandas

from ....results import plotting
from ...config import LEVEL
from ..drivers import MOST_ROWS, NUM_PERMUTATIONS, Driver
from ..numbers import in_series, number, percent
from ..pictures import Drawing, panels
from .section import Section
from .subject import Classified, Regressed, Subject
from .verdicts import log_density

MOST_DRAWN = 10  # largest number of columns in the picture
CLEAR = 0.2  # heuristic: share of its mean by which the epistemic uncertainty clearly changes, or grows
LONGEST = 20  # largest number of letters of a column's name in the picture


def drivers_section(subject: Subject) -> Section | None:
    """Make the section on how predictions change if a column is permuted. Return None if no column varies."""
    if not subject.drivers:
        return None
    varying = [driver for driver in subject.drivers if driver.varies]
    constant = [driver for driver in subject.drivers if not driver.varies]
    if not varying:
        return None
    values = {
        "drivers": subject.drivers,
        "is_class": subject.classified is not None,
        "conclusion": conclusion_of(varying, is_class=subject.classified is not None),
        "constant": in_series([driver.name for driver in constant]),
        "num_constant": len(constant),
        "picture": _bars(varying[:MOST_DRAWN], doubt_of(is_class=subject.classified is not None)),
        "num_drawn": min(len(varying), MOST_DRAWN),
        "num_varying": len(varying),
        "num_permutations": NUM_PERMUTATIONS,
        "most_rows": MOST_ROWS,
    }
    return Section("What drives the predictions", "drivers.html", values)


def conclusion_of(drivers: Sequence[Driver], *, is_class: bool) -> str:
    """Say which column changes the predictions most, and which column changes the epistemic uncertainty most."""
    first, last = drivers[0], max(drivers, key=lambda driver: driver.epistemic)
    doubt = doubt_of(is_class=is_class)
    said = f"The predictions depend most on {first.name}. "
    if last.epistemic < CLEAR:
        return f"{said}The {doubt} hardly depends on any single column."
    changed = f"The {doubt} changes most with {last.name}: "
    if last.growth >= 1 + CLEAR:
        return (
            f"{said}{changed}it grows by {percent(last.growth - 1, 0)} on average. Only the "
            f"combinations of {last.name} with other columns are new in these rows, so the network is less sure where "
            "combinations are rare in the training rows. Expect the same for new rows of this kind."
        )
    return (
        f"{said}{changed}it becomes larger in some rows and smaller in others (by {percent(last.epistemic, 0)} in a "
        f"typical row, {change_of(last.growth)} on average). So this column tells in which rows the network is unsure."
    )


def doubt_of(*, is_class: bool) -> str:
    """Return the name of the number that measures the epistemic uncertainty."""
    return "mutual information" if is_class else "epistemic sd"


def change_of(growth: float) -> str:
    """Return a factor as a change in per cent, such as "+50 %" for the factor 1.5."""
    return f"{round(100 * (growth - 1)):+,} %"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bars(drivers: Sequence[Driver], doubt: str) -> Drawing:
    """Draw how much the predictions (left) and their uncertainty (right) change if a column is permuted."""
    axes = panels(2, 0.8 + 0.22 * len(drivers))
    names = [_short(driver.name, LONGEST) for driver in drivers]
    labels = [f"change of the\n{name} (%)" for name in ("prediction", doubt)]
    if doubt == "mutual information":  # for lines that are as long as the axis
        labels[1] = "change of mutual\ninformation (%)"
    for ax, color, kind, label in zip(axes, (0, 1), ("mean", "epistemic"), labels, strict=True):
        sizes = [100 * getattr(driver, kind) for driver in drivers]
        ax.barh(range(len(drivers)), sizes, 0.7, color=plotting.PALETTE[color])
        ax.set_yticks(range(len(drivers)), names if kind == "mean" else [])
        ax.set_xlabel(label)
        ax.locator_params(axis="x", nbins=4, integer=True)
        ax.grid(visible=False, axis="y")
        ax.invert_yaxis()
    return Drawing(axes[0])


MOST_SURPRISES = 10  # rows in the table
MOST_INPUTS = 4  # inputs of a row: those on which the predictions depend most
LONGEST_INPUT = 24  # letters of an input
LONGEST_NUMBER = 12  # letters of a number with decimals, such as -1.23457e-05
MOST_CLASSES = 3  # classes of a row with their probabilities


def surprises_section(subject: Subject) -> Section | None:
    """Make the section on the rows with the largest NLL.

    Return None for image sets, since another section of their reports shows examples.
    """
    found = subject.classified or subject.regressed
    if found is None or not found.rows:
        return None
    scores = -log_density(found.prediction)
    most = min(MOST_SURPRISES, -(-len(scores) // 4))  # of few rows, a quarter
    worst = scores.argsort(descending=True, stable=True)[:most].tolist()
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
            "level": LEVEL,
        },
    )


def _inputs(subject: Subject, row: int, names: Sequence[str]) -> list[str]:
    """Return a short text for each column in `names`: the input of a test row before standardisation."""
    if subject.inputs is None:
        return []
    cells = [subject.inputs[name].iloc[row] for name in names]
    texts = ["missing" if pandas.isna(cell) else cell if isinstance(cell, str) else f"{cell:.6g}" for cell in cells]
    return [_short(_rounded(text), LONGEST_INPUT) for text in texts]


def _rounded(text: str) -> str:
    """Round a text with a long decimal number to six digits. Return any other text, such as "1234567", unchanged."""
    if len(text) > LONGEST_NUMBER and not text.isdigit():
        with suppress(ValueError):
            return f"{float(text):.6g}"
    return text


def _of_numbers(found: Regressed, rows: Sequence[int]) -> list[tuple[list[str], bool]]:
    """Return each row's cells, and whether the row's target lies outside the interval."""
    mean, y, (low, high) = found.prediction.mean, found.y, found.interval(LEVEL)
    # Of several targets, a row shows the one with the largest error in predicted standard deviations.
    outputs = ((y - mean).abs() / found.prediction.total.sqrt()).argmax(-1).tolist()
    widths = (high - low).median(0).values.tolist()
    largest = y.abs().amax(0).tolist()  # beyond six digits of these, targets have the rounding errors of a float
    cells = []
    for row in rows:
        at = row, outputs[row]
        observed, predicted, lower, upper = (float(part[at]) for part in (y, mean, low, high))
        name = [found.names[outputs[row]]] if len(found.names) > 1 else []
        form = f".{_decimals(widths[outputs[row]])}f"
        exact = round(observed, 5 - math.floor(math.log10(largest[outputs[row]] or 1)))
        numbers = [f"{exact:.6g}", f"{predicted:{form}}", f"{lower:{form}} to {upper:{form}}"]
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
