"""One look for all pictures: fonts, lines, colours, and the widths of a column and a page."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar

import matplotlib
from cycler import cycler

Width = Literal["column", "page"]

WIDTHS: dict[Width, float] = {"column": 3.4, "page": 7.0}
"""Widths in inches: one column, and the text of a page, of a paper in two columns."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#555555")
"""Colours that the colour-blind can tell apart: blue, vermilion, green, purple, orange, sky blue, black, and dark grey.

References:
    Okabe and Ito (2008), Color Universal Design, https://jfly.uni-koeln.de/color/; their yellow, too light for lines on
    white, has given way to grey.
"""

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY = PALETTE

DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (2.5, 1.5)),
    (0, (6, 1.5, 1, 1.5, 1, 1.5)),
    (0, (9, 2)),
    (0, (3, 1, 1, 1)),
)
"""Line styles that go with the colours, for print without colours."""

SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: pictures look the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.borderpad": 0.2,
    "legend.handlelength": 2.4,
    "legend.labelspacing": 0.3,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "lines.dashed_pattern": (4, 1.5),
    "errorbar.capsize": 2,
    "hatch.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=PALETTE) + cycler(linestyle=DASHES),
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "savefig.dpi": 250,  # 850 pixels across a column, 1750 across a page
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # letters stay letters, embedded as TrueType
    "ps.fonttype": 42,
    "svg.fonttype": "path",  # letters become curves: no font is needed to show them
}

_LOCK = threading.RLock()
"""Matplotlib's settings are the process's. Of two threads that change them at once, one would restore the other's."""

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def style() -> Iterator[None]:
    """The look of this module's pictures, for what is drawn inside of the `with` block.

    All functions of the module draw in it by themselves. Matplotlib's settings are restored at the end of the block;
    until then other threads that want the style wait.

    Example:
        >>> from pyro_bnn.results.plotting import new_axes
        >>> with style():
        ...     ax = new_axes(1, 1, size=("column", 2.4))[0, 0]
        ...     _ = ax.plot([1, 2], [3, 4], label="own curve")
        ...     _ = ax.legend()
    """
    with _LOCK, matplotlib.rc_context(SETTINGS):
        yield


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """The same function, drawing in the style."""

    @functools.wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> R:
        with style():
            return draw(*args, **kwargs)

    return drawing
