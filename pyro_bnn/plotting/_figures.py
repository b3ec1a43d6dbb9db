"""New axes, and the writing of pictures."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure


def new_axes(rows: int, columns: int, *, size: tuple[float, float]) -> np.ndarray:
    """A grid of axes on a figure of its own.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        size: Width and height of the whole figure, in inches.

    Returns:
        Array of axes, shape (rows, columns).
    """
    return Figure(figsize=size, layout="constrained").subplots(rows, columns, squeeze=False)


def save(ax: Axes, path: str | Path) -> None:
    """Write the figure that axes belong to.

    Args:
        ax: Any axes of the figure.
        path: The file; its ending chooses the format.
    """
    figure = ax.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    figure.savefig(path, dpi=120)
