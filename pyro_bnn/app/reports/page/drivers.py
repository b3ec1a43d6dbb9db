"""The report's sections on columns that drive the predictions, and on rows that surprised the model."""

import math
from collections.abc import Sequence
from contextlib import suppress

import pandas

from ...._core.summary import counted
from ....results import plotting
from ...config import LEVEL
from ...numbers import decimals_of, in_series, number, percent, six_digits, with_error
from ..dependence import Dependence
from ..drivers import MOST_COLUMNS, MOST_ROWS, NUM_PERMUTATIONS, Driver, Drivers
from ..pictures import Drawing, panel, panels
from ..scores import MUCH_WORSE
from .section import Section
from .subject import Classified, Regressed, Subject
from .verdicts import NUM_ERRORS, log_density

MOST_SHOWN = 10  # largest number of columns in the picture and in the first table
CLEAR = 0.2  # heuristic: share by which the epistemic uncertainty clearly changes
LOWEST = 2.0  # height of the picture in inches, if there are few columns
LONGEST = 20  # largest number of letters of a column's name in the picture
LONGEST_LABEL, LONGEST_CATEGORY = 30, 12  # the same for labels of axes, and for a category
FEWEST = 20  # heuristic: with fewer test rows, the effects of columns are hardly known


def drivers_section(subject: Subject) -> Section | None:
    """Make the section on how predictions change if a column is shuffled. Return None if no column varies."""
    found = subject.drivers
    if subject.num_columns > MOST_COLUMNS:
        counts = {"num_columns": subject.num_columns, "most": MOST_COLUMNS}
        return Section("What drives the predictions", "no_drivers.html", counts)
    varying = [] if found is None else [driver for driver in found.columns if driver.varies]
    if found is None or not varying:
        return None
    measured = [driver for driver in varying if has_effect(found, driver)]
    digits = min((decimals_of(driver.score - found.score, driver.error) for driver in measured), default=0)
    is_class = subject.classified is not None
    names = names_of(is_class=is_class)
    curves = [curve for curve in found.curves if curve.name in [driver.name for driver in measured]]
    values = {
        "score": names[0],
        "doubt": names[1],
        "cells": lambda driver: [
            with_error(driver.score - found.score, driver.error, "+", digits=digits),
            number(driver.epistemic),
        ],
        "before": found,
        "conclusion": conclusion_of(found, varying, is_class=is_class),
        "shown": measured[:MOST_SHOWN],
        "others": measured[MOST_SHOWN:],
        "no_effect": in_series([driver.name for driver in varying if driver not in measured]),
        "num_errors": NUM_ERRORS,
        "constant": in_series([driver.name for driver in found.columns if not driver.varies]),
        "picture": _bars(found, measured[:MOST_SHOWN], names) if len(measured) > 1 else None,
        "has_doubt": has_doubt(found, measured[:MOST_SHOWN]),
        "num_permutations": NUM_PERMUTATIONS,
        "most_rows": MOST_ROWS,
        "curves": [(each, _curve(each, [c for c in curves if c.output == each.output])) for each in curves],
        "split_by": "".join(driver.name for driver in varying if driver.name == subject.config.split_by),
        "level": LEVEL,
    }
    return Section("What drives the predictions", "drivers.html", values)


def has_effect(before: Drivers, driver: Driver) -> bool:
    """Return whether shuffling a column raises the score by more than chance."""
    return driver.score - before.score > NUM_ERRORS * driver.error


def conclusion_of(before: Drivers, varying: Sequence[Driver], *, is_class: bool) -> str:
    """Say which column matters most, and which column raises the epistemic uncertainty most when it is shuffled."""
    measured = [driver for driver in varying if has_effect(before, driver)]
    last = max(varying, key=lambda driver: driver.epistemic)
    score, doubt = names_of(is_class=is_class)
    said = f"No single column has a measurable effect: whichever is shuffled, the {score} rises no more than by chance."
    if measured:
        said = f"The network relies most on {measured[0].name}: shuffling it raises the {score} from "
        said = f"{said}{number(before.score)} to {number(measured[0].score)}."
    if before.num_rows < FEWEST:
        said = f"{said} With only {counted(before.num_rows, 'test row')}, these effects are very uncertain."
    if last.epistemic < (1 + CLEAR) * before.epistemic:
        return said
    return (
        f"{said} The {doubt} rises most with {last.name}, from {number(before.epistemic)} to {number(last.epistemic)}: "
        "the shuffled rows have combinations of values that are rare in the training rows."
    )


def names_of(*, is_class: bool) -> tuple[str, str]:
    """Return the names of the score, and of the number that measures the epistemic uncertainty."""
    return ("NLL", "mutual information") if is_class else ("RMSE", "epistemic sd")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def has_doubt(before: Drivers, drivers: Sequence[Driver]) -> bool:
    """Return whether the epistemic uncertainty changes clearly after some column is shuffled."""
    return any(abs(driver.epistemic - before.epistemic) > CLEAR * before.epistemic for driver in drivers)


def _bars(before: Drivers, drivers: Sequence[Driver], labels: tuple[str, str]) -> Drawing:
    """Draw the score (left), before and after each column is shuffled. Draw the epistemic uncertainty if it changes."""
    shown = ("score", "epistemic") if has_doubt(before, drivers) else ("score",)
    axes = panels(len(shown), max(LOWEST, 0.8 + 0.26 * len(drivers)))
    names = [_short(driver.name, LONGEST) for driver in drivers]
    for ax, color, kind, label in zip(axes, (0, 1), shown, labels, strict=False):
        start = getattr(before, kind)
        sizes = [getattr(driver, kind) - start for driver in drivers]
        errors = [driver.error for driver in drivers] if kind == "score" else None
        ax.barh(range(len(drivers)), sizes, 0.7, start, xerr=errors, ecolor="0.35", color=plotting.PALETTE[color])
        ax.axvline(start, color="black", linewidth=1, linestyle="--")
        left, right = ax.get_xlim()
        ax.set_xlim(min(left, (1 - CLEAR) * start), max(right, 1.02 * start))  # small changes look small
        ax.set_yticks(range(len(drivers)), names if kind == "score" else [], parse_math=False)
        ax.set(xlabel=label.replace("mutual ", "mutual\n"))  # half of the picture is narrow
        ax.invert_yaxis()
    return Drawing(axes[0])


def _curve(curve: Dependence, others: Sequence[Dependence]) -> Drawing:
    """Draw a partial dependence. Its axis of predictions is that of all `others`, so that the pictures compare."""
    ax, color, labels = panel(2.1), plotting.PALETTE[0], [curve.name, curve.output]
    low, high = min(min(other.lows) for other in others), max(max(other.highs) for other in others)
    limits = low - 0.05 * (high - low), high + 0.05 * (high - low)
    if curve.kind == "category":  # names need the left side
        ax.hlines(curve.values, curve.lows, curve.highs, color=color)
        ax.plot(curve.means, curve.values, "o", color=color)
        shares = zip(curve.words, curve.rows, strict=True)
        names = [f"{_short(word, LONGEST_CATEGORY)} ({percent(share, 0)})" for word, share in shares]
        ax.set_yticks(curve.values, names, parse_math=False)
        ax.set(xlim=limits, ylim=(len(names) - 0.4, -0.6))
        labels.reverse()
    else:
        if curve.kind == "date":  # between the points, predictions may change with the season or the day of the week
            ax.vlines(curve.values, curve.lows, curve.highs, color=color)
            ax.plot(curve.values, curve.means, "o", color=color)
            step = max(1, len(curve.values) // 2)
            ax.set_xticks(curve.values[::step], curve.words[::step])
        else:
            ax.fill_between(curve.values, curve.lows, curve.highs, color=color, alpha=0.3, linewidth=0)
            ax.plot(curve.values, curve.means, "-", color=color)
        first, last = curve.values[0], curve.values[-1]
        near = 0.03 * (last - first)
        marks = [x for x in curve.rows if first - near <= x <= last + near]
        ax.plot(marks, [0.03] * len(marks), "|", color="0.35", markeredgewidth=0.5, transform=ax.get_xaxis_transform())
        ax.set(xlim=(first - near, last + near), ylim=limits)
    for write, label in zip((ax.set_xlabel, ax.set_ylabel), labels, strict=True):
        write(_short(label, LONGEST_LABEL), parse_math=False)
    return Drawing(ax)


MOST_SURPRISES = 10  # rows in the table
MOST_INPUTS = 3  # inputs of a row: those on which the predictions depend most
LONGEST_INPUT = 24  # letters of an input
LONGEST_NUMBER = 12  # letters of a number with decimals, such as -1.23457e-05
LARGE = 1e4  # smallest number in the file that gets commas, since smaller ones may be years


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
    columns = () if subject.inputs is None or subject.drivers is None else subject.drivers.columns
    inputs = [driver.name for driver in columns[:MOST_INPUTS]]
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
            "is_narrow": any(
                not is_outside and float(scores[row]) > float(scores.mean()) + MUCH_WORSE
                for row, (_, is_outside) in zip(worst, cells, strict=True)
            ),
        },
    )


def _inputs(subject: Subject, row: int, names: Sequence[str]) -> list[str]:
    """Return a short text for each column in `names`: the input of a test row before standardisation."""
    if subject.inputs is None:
        return []
    cells, kinds = subject.inputs.iloc[row], {column.name: column.kind for column in subject.columns}
    return [_short(_shown(cells[name], is_number=kinds.get(name) == "number"), LONGEST_INPUT) for name in names]


def _shown(cell: str | float | None, *, is_number: bool) -> str:
    """Return a large or long number as in other tables, and any other cell as in the file."""
    if pandas.isna(cell):
        return "missing"
    text = str(cell)
    is_long = len(text) > LONGEST_NUMBER and not text.isdigit()
    with suppress(ValueError):
        if not isinstance(cell, str) or is_long or (is_number and (abs(float(text)) >= LARGE or text.endswith(".0"))):
            return six_digits(float(text))
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
        form = f",.{_decimals(widths[outputs[row]])}f"
        digits = 5 - math.floor(math.log10(largest[outputs[row]] or 1))
        exact = round(observed, 0 if digits == -1 else digits)  # seven digits of a whole number are right
        numbers = [six_digits(exact), f"{predicted:{form}}", f"{lower:{form}} to {upper:{form}}"]
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
        most = int(probs.argmax())
        largest, own = (percent(float(probs[i])) for i in (most, label))
        cells.append(([found.classes[label], f"{found.classes[most]}: {largest}", own], most != label))
    return cells
