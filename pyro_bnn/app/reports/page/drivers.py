"""The report's section on how much predictions and their uncertainty depend on each column."""

from collections.abc import Sequence

import numpy as np

from ....results import plotting
from ..drivers import MOST_ROWS, NUM_PERMUTATIONS, TINY, Driver
from ..numbers import number, percent
from ..pictures import Drawing, panel
from .section import Section, in_series
from .subject import Subject

MOST_DRAWN = 10  # largest number of columns in the picture
CLEAR = 0.2
"""Heuristic: the epistemic uncertainty has clearly changed if it changes by at least this share of its mean, and has
clearly grown if its mean is larger by at least this share."""

LONGEST = 20  # largest number of letters of a column's name in the picture


def drivers_section(subject: Subject) -> Section | None:
    """Make the section on how predictions and uncertainty change if a column is permuted; None without columns."""
    if not subject.drivers:
        return None
    varying = [driver for driver in subject.drivers if driver.varies]
    constant = [driver for driver in subject.drivers if not driver.varies]
    if not varying:
        return None
    values = {
        "drivers": [(driver, doubt_after(driver)) for driver in subject.drivers],
        "is_class": subject.classified is not None,
        "conclusion": conclusion_of(varying, is_class=subject.classified is not None),
        "constant": in_series([driver.name for driver in constant]),
        "num_constant": len(constant),
        "picture": _bars(varying[:MOST_DRAWN]),
        "num_drawn": min(len(varying), MOST_DRAWN),
        "num_permutations": NUM_PERMUTATIONS,
        "most_rows": MOST_ROWS,
    }
    return Section("What drives the predictions", "drivers.html", values)


def conclusion_of(drivers: Sequence[Driver], *, is_class: bool) -> str:
    """Say which column changes the predictions most (the first one), and which the epistemic uncertainty."""
    first, last = drivers[0], max(drivers, key=lambda driver: driver.epistemic)
    doubt = "mutual information" if is_class else "epistemic sd"
    said = f"The predictions depend most on {first.name}. "
    if last.epistemic < CLEAR:
        return f"{said}The {doubt} hardly depends on any single column."
    changed = f"The {doubt} changes most with {last.name}: "
    if last.growth >= 1 + CLEAR:
        return (
            f"{said}{changed}after the exchange it is {number(last.growth)} times as large in the mean. Only the "
            f"combinations of {last.name} with other columns are new in these rows, so the network is less sure where "
            "combinations are rare in the training rows. Expect the same for new rows of this kind."
        )
    return (
        f"{said}{changed}it becomes larger in some rows and smaller in others ({number(last.growth)} times as large in "
        "the mean). So this column tells in which rows the network is unsure."
    )


def doubt_after(driver: Driver) -> str:
    """Say how the exchange of a column changes the epistemic uncertainty: "2.500 times" in the mean, or by "± 35 %"."""
    if abs(driver.growth - 1) >= CLEAR:
        return f"{number(driver.growth)} times"
    return f"± {percent(driver.epistemic, 0)}"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _bars(drivers: Sequence[Driver]) -> Drawing:
    """Draw two bars for each column, in which the longest bar of each colour has the length 1."""
    ax = panel(0.9 + 0.32 * len(drivers))
    place = np.arange(len(drivers))[::-1]
    for offset, color, kind, label in ((0.2, 0, "mean", "prediction"), (-0.2, 1, "epistemic", "epistemic uncertainty")):
        sizes = np.array([getattr(driver, kind) for driver in drivers])
        ax.barh(place + offset, sizes / max(sizes.max(), TINY), 0.38, color=plotting.PALETTE[color], label=label)
    ax.set_yticks(place, [_short(driver.name) for driver in drivers])
    ax.set(xlabel="share of the largest change of the same colour")
    with plotting.style():
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # above the bars
    return Drawing(ax)
