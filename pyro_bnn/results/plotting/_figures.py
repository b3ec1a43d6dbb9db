"""New axes, and the writing of pictures."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ..._core import checks as _checks
from ._style import WIDTHS, Width, styled


@styled
def new_axes(rows: int, columns: int, *, size: tuple[Width | float, float]) -> np.ndarray:
    """A grid of axes on a figure of its own.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        size: Width and height of the whole figure, in inches; ``"column"`` and ``"page"`` name the widths of one column
            (3.4) and of a page (7) of a paper.

    Returns:
        Array of axes, shape (rows, columns).
    """
    _checks.at_least("rows", rows, 1)
    _checks.at_least("columns", columns, 1)
    sides = _checks.items("size", size, "width and height in inches")
    if len(sides) != 2:
        raise ValueError(f"`size` must be width and height in inches, got {len(sides)} numbers.")
    width = inches(sides[0]) if isinstance(sides[0], str) else _checks.positive("size", sides[0])
    figure = Figure(figsize=(width, _checks.positive("size", sides[1])), layout="constrained")
    return figure.subplots(rows, columns, squeeze=False)


def figure_of_width(width: Width, height: float) -> Figure:
    """An empty figure.

    Args:
        width: Name of its width.
        height: Its height in inches.
    """
    return Figure(figsize=(inches(width), height), layout="constrained")


def inches(width: object) -> float:
    """The width that a name stands for."""
    for name, value in WIDTHS.items():
        if width == name:
            return value
    raise ValueError(f"`width` must be 'column' or 'page', got {width!r}.")


@styled
def save(ax: Axes, path: str | Path) -> None:
    """Write the figure that axes belong to, in its own size: 250 pixels per inch, or with fonts embedded (PDF).

    Args:
        ax: Any axes of the figure.
        path: The file; its ending chooses the format.
    """
    _checks.kind("ax", ax, Axes, "axes, such as those that a function of this module returns")
    path = _checks.path("path", path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"`path` must lie in a folder that exists, got {path}; make {path.parent} first.")
    figure = ax.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    endings = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise ValueError(f"`path` must end in one of {', '.join(endings)}, got {path}; write `picture.png`.")
    figure.savefig(path)


def check_ax(ax: object) -> None:
    """Raise unless the axes to draw on are axes, or None."""
    if ax is not None:
        _checks.kind("ax", ax, Axes, "axes of matplotlib, or None")


def check_axes(axes: object, num_axes: int) -> None:
    """Raise unless the axes to draw on are so many axes, or None."""
    if axes is None:
        return
    given = _checks.items("axes", axes, f"{num_axes} axes of matplotlib, or None")
    for ax in given:
        _checks.kind("axes", ax, Axes, f"{num_axes} axes of matplotlib, or None")
    if len(given) != num_axes:
        raise ValueError(f"`axes` must be {num_axes} axes, or None, got {len(given)}.")


def check_points(data: object) -> None:
    """Raise unless data to show are None, or a pair of tensors with the same number of elements."""
    if data is None:
        return
    parts = _checks.items("data", data, "a pair (x, y) of tensors")
    if len(parts) != 2:
        raise ValueError(f"`data` must be a pair (x, y) of tensors, got {len(parts)}.")
    for part in parts:
        _checks.tensor("data", part)
    if parts[0].numel() != parts[1].numel():
        raise ValueError(
            f"`data` must have as many inputs as targets, got shapes {_checks.shape(parts[0])} and "
            f"{_checks.shape(parts[1])}."
        )
