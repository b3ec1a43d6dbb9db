"""The report's section on how much predictions and their uncertainty depend on each column."""

from collections.abc import Sequence

import numpy as np

from ....results import plotting
from ..drivers import MOST_ROWS, NUM_PERMUTATIONS, TINY, Driver
from ..pictures import drawn, panel
from .section import Section
from .subject import Subject

MOST_DRAWN = 10
"""Largest number of columns in the picture."""

LONGEST = 20
"""Largest number of letters of a column's name in the picture."""


def drivers_section(subject: Subject) -> Section | None:
    """Make the section on how predictions and uncertainty change if a column is permuted; None without columns."""
    if not subject.drivers:
        return None
    values = {
        "drivers": subject.drivers,
        "is_class": subject.classified is not None,
        "picture": _bars(subject.drivers[:MOST_DRAWN]),
        "num_drawn": min(len(subject.drivers), MOST_DRAWN),
        "num_permutations": NUM_PERMUTATIONS,
        "most_rows": MOST_ROWS,
    }
    return Section("What drives the predictions", "drivers.html", values)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _bars(drivers: Sequence[Driver]) -> str:
    """Draw two bars for each column. The longest bar of each kind has the length 1."""
    ax = panel(0.9 + 0.32 * len(drivers))
    place = np.arange(len(drivers))[::-1]
    for offset, color, kind, label in ((0.2, 0, "mean", "prediction"), (-0.2, 1, "epistemic", "epistemic uncertainty")):
        sizes = np.array([getattr(driver, kind) for driver in drivers])
        ax.barh(place + offset, sizes / max(sizes.max(), TINY), 0.38, color=plotting.PALETTE[color], label=label)
    ax.set_yticks(place, [_short(driver.name) for driver in drivers])
    ax.set(xlabel="share of the largest change")
    with plotting.style():
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # above the bars
    return drawn(ax)
