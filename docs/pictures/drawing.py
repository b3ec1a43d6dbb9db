"""Legends and files of the pictures."""

import sys
from pathlib import Path

from matplotlib.axes import Axes

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, whose path is this folder
from benchmarks._results import save_small

__all__ = ["legend_above", "save_small"]


def legend_above(ax: Axes) -> None:
    """The legend above the axes at the left, where it hides neither data nor grid."""
    if ax.get_legend():
        ax.get_legend().remove()
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=5)
