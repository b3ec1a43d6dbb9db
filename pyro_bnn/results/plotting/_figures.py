"""New axes, and the writing of pictures."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from ..._core import checks as _checks
from ._style import WIDTHS, Width, styled


@styled
def new_axes(rows: int, columns: int, *, size: tuple[Width | float, float]) -> np.ndarray:
    """A grid of axes on a figure of its own: an array of shape (rows, columns).

    Args:
        rows: Number of rows.
        columns: Number of columns.
        size: Width and height of the whole figure, in inches; ``"column"`` and ``"page"`` name the widths of one column
            (3.4) and of a page (7) of a paper.
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
    """An empty figure with the width of a name, and a height in inches."""
    return Figure(figsize=(inches(width), height), layout="constrained")


def inches(width: str) -> float:
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


def one_axes(ax: Axes | None, width: Width, shape: float) -> Axes:
    """The axes that are given, or new ones on a figure that is `shape` times as high as wide."""
    if ax is None:
        return figure_of_width(width, shape * inches(width)).subplots()
    _checks.kind("ax", ax, Axes, "axes of matplotlib, or None")
    return ax


def panels(axes: Any, count: int, width: Width, *, on_page: float, in_column: float) -> Any:
    """The axes that are given, or new ones: beside each other on a page, one below the other in a column.

    `on_page` and `in_column` are the heights of the two figures, in inches.
    """
    check_axes(axes, count)
    if axes is not None:
        return axes
    if width == "page":
        return figure_of_width(width, on_page).subplots(1, count)
    return figure_of_width(width, in_column).subplots(count, 1)


def check_axes(axes: object, num_axes: int) -> None:
    """Raise unless the axes to draw on are so many axes, or None."""
    if axes is None:
        return
    given = _checks.items("axes", axes, f"{num_axes} axes of matplotlib, or None")
    for ax in given:
        _checks.kind("axes", ax, Axes, f"{num_axes} axes of matplotlib, or None")
    if len(given) != num_axes:
        raise ValueError(f"`axes` must be {num_axes} axes, or None, got {len(given)}.")


def flat(values: Tensor) -> np.ndarray:
    """The numbers of a tensor in one row."""
    return values.detach().flatten().cpu().numpy()


def points_of(data: object) -> tuple[np.ndarray, np.ndarray] | None:
    """The inputs and targets to show, each in one row; None if there are none."""
    if data is None:
        return None
    parts = _checks.items("data", data, "a pair (x, y) of tensors")
    if len(parts) != 2:
        raise ValueError(f"`data` must be a pair (x, y) of tensors, got {len(parts)}.")
    x, y = (flat(_checks.tensor("data", part)) for part in parts)
    if len(x) != len(y):
        raise ValueError(f"`data` must have as many inputs as targets, got {len(x)} and {len(y)} numbers.")
    return x, y
