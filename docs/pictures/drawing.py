"""Legends and files of the pictures."""

import sys
from pathlib import Path

from matplotlib.axes import Axes

# for scripts, whose path is this folder
sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[1] / "_extensions"))
from _phone import redraw

from benchmarks._results import save_small

__all__ = ["legend_above", "redraw", "save_small"]


def legend_above(ax: Axes, last: str = "") -> None:
    """The legend above the axes at the left, where it hides neither data nor grid; the entry `last` is at its end."""
    if ax.get_legend():
        ax.get_legend().remove()
    entries = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1] == last)
    ax.figure.legend(*zip(*entries, strict=True), loc="outside upper left", ncols=5)
