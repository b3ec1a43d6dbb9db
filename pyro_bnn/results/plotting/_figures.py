"""The style of all pictures, new axes, and writing pictures."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import matplotlib
import numpy as np
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from ..._core import checks as _checks

Width = Literal["column", "page"]

WIDTHS: dict[str, float] = {"column": 3.4, "page": 7.0}  # in inches, for a paper with two columns

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#555555")
"""Colours that colour-blind people can distinguish: blue, vermilion, green, purple, orange, sky, black, and dark grey.

References:
    Okabe and Ito (2008), https://jfly.uni-koeln.de/color/. Dark grey replaces yellow, which is too light for lines on
    white.
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
"""A line style for each colour, so that lines also differ in print without colours."""

SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # this font comes with matplotlib, so pictures look the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
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
    "figure.max_open_warning": 0,  # a report has many pictures
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
    "pdf.fonttype": 42,  # keeps letters as text, embedded as TrueType
    "ps.fonttype": 42,
    "svg.fonttype": "path",  # turns letters into curves, so that no font is needed
}

_LOCK = threading.RLock()  # one thread at a time changes Matplotlib's settings, which belong to the whole process

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def style() -> Iterator[None]:
    """Apply the style of this module's pictures to all plots in a `with` block.

    At the end of the block, Matplotlib's settings are restored. Until then, other threads that need the style wait.

    Example:
        >>> from pyro_bnn import plotting
        >>> from pyro_bnn.results.plotting import new_axes
        >>> with plotting.style():
        ...     ax = new_axes(1, 1, size=("column", 2.4))[0, 0]
        ...     _ = ax.plot([1, 2], [3, 4], label="own curve")
        ...     _ = ax.legend()
    """
    with _LOCK, matplotlib.rc_context(SETTINGS):
        yield


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Return a function that does the same as `draw`, but also takes NumPy arrays, and applies :func:`style`."""

    @functools.wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> R:
        with style():
            return draw(*map(_as_tensors, args), **_as_tensors(kwargs))

    return drawing


def _as_tensors(value: Any) -> Any:
    """Convert arrays of numbers to tensors, also those in a dictionary. Other values stay as they are."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "bfiu":
        return torch.tensor(value)
    return {name: _as_tensors(part) for name, part in value.items()} if type(value) is dict else value


@styled
def new_axes(rows: int, columns: int, *, size: tuple[Width | float, float]) -> np.ndarray:
    """Return the axes of a new figure, as an array of shape (rows, columns).

    Args:
        rows: Number of rows.
        columns: Number of columns.
        size: Width and height of the figure, in inches. The width may also be ``"column"``, a column of a paper (3.4
            inches), or ``"page"``, a page without its margins (7 inches).

    Example:
        >>> from pyro_bnn import plotting
        >>> axes = plotting.new_axes(1, 2, size=("page", 2.5))
        >>> axes.shape, axes[0, 0].figure.get_size_inches().tolist()
        ((1, 2), [7.0, 2.5])
    """
    rows = _checks.at_least("rows", rows, 1)
    columns = _checks.at_least("columns", columns, 1)
    sides = _checks.items("size", size, "width and height in inches")
    if len(sides) != 2:
        raise ValueError(f"`size` must be width and height in inches, got {len(sides)} numbers.")
    width = inches(sides[0]) if isinstance(sides[0], str) else _checks.positive("size", sides[0])
    return _new_figure(width, _checks.positive("size", sides[1])).subplots(rows, columns, squeeze=False)


def figure_of_width(width: Width, height: float) -> Figure:
    """Return an empty figure; `height` is in inches."""
    return _new_figure(inches(width), height)


def _new_figure(width: float, height: float) -> Figure:
    """Return an empty figure. If the program has imported pyplot, the figure belongs to pyplot, which can show it."""
    is_main = threading.current_thread() is threading.main_thread()  # windows need the main thread
    pyplot = sys.modules.get("matplotlib.pyplot") if is_main else None
    return (pyplot.figure if pyplot else Figure)(figsize=(width, height), layout="constrained")


def inches(width: str) -> float:
    """Return the width of a "column" or "page"."""
    if width not in [*WIDTHS]:
        raise ValueError(f"`width` must be 'column' or 'page', got {width!r}.")
    return WIDTHS[width]


@styled
def save(ax: Axes | Sequence[Axes] | np.ndarray, path: str | Path) -> None:
    """Write the figure of the given axes to a file.

    There are 250 pixels per inch. A PDF has embedded fonts.

    Args:
        ax: Axes of the figure, or several axes, as the functions of this module return them.
        path: The file, whose ending, such as ".png", determines the format.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pyro_bnn import plotting
        >>> ax = plotting.new_axes(1, 1, size=("column", 2.0))[0, 0]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plotting.save(ax, Path(folder) / "empty.png")
    """
    first: Any = np.asarray(ax, object).flat[0] if isinstance(ax, np.ndarray | list | tuple) and len(ax) else ax
    _checks.kind("ax", first, Axes, "axes, such as those that a function of this module returns")
    path = _checks.file_to_write("path", path)
    figure = first.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    endings = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise ValueError(f"`path` must end in one of {', '.join(endings)}, got {path}; write `picture.png`.")
    figure.savefig(path)


def one_axes(ax: Axes | None, width: Width, shape: float) -> Axes:
    """Return the given axes or, if they are None, new ones in a figure whose height is `shape` times its width."""
    if ax is None:
        return figure_of_width(width, shape * inches(width)).subplots()
    _checks.kind("ax", ax, Axes, "axes of matplotlib, or None")
    return ax


def panels(axes: Any, count: int, width: Width, *, on_page: float, in_column: float) -> Any:
    """Return the given axes, or new ones: side by side on a "page", stacked in a "column"."""
    check_axes(axes, count)
    if axes is not None:
        return axes
    if width == "page":
        return figure_of_width(width, on_page).subplots(1, count)
    return figure_of_width(width, in_column).subplots(count, 1)


def check_axes(axes: object, num_axes: int) -> None:
    """Raise if `axes` is given, but does not have `num_axes` axes."""
    if axes is None:
        return
    given = _checks.items("axes", axes, f"{num_axes} axes of matplotlib, or None")
    for ax in given:
        _checks.kind("axes", ax, Axes, f"{num_axes} axes of matplotlib, or None")
    if len(given) != num_axes:
        raise ValueError(f"`axes` must be {num_axes} axes, or None, got {len(given)}.")


def flat(values: Tensor) -> np.ndarray:
    return values.detach().flatten().cpu().numpy()


def items_of(name: str, values: object, example: str) -> list:
    """Return a list, array or tensor as a list; `example` says what is expected."""
    return _checks.items(name, values.tolist() if isinstance(values, Tensor) else values, example)


def points_of(data: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the inputs and targets of `data` as flat arrays; None if `data` is None."""
    if data is None:
        return None
    parts = _checks.items("data", data, "a pair (x, y) of tensors")
    if len(parts) != 2:
        raise ValueError(f"`data` must be a pair (x, y) of tensors, got {len(parts)}.")
    x, y = (flat(_checks.tensor("data", _as_tensors(part))) for part in parts)
    if len(x) != len(y):
        raise ValueError(f"`data` must have as many inputs as targets, got {len(x)} and {len(y)} numbers.")
    return x, y
