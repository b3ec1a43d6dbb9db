"""Legends and files of the pictures."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pyro_bnn import plotting


def legend_above(ax: Axes) -> None:
    """The legend above the axes in one row, where it hides neither data nor grid."""
    if ax.get_legend():
        ax.get_legend().remove()
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=5)


def write(ax: Axes, path: Path, num_colors: int = 32, table: Iterable[str] = ()) -> None:
    """Write a picture in few colours, a third of the size, with the table it shows; means of clusters keep greys."""
    plotting.save(ax, path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(num_colors, kmeans=2, dither=Image.Dither.NONE)
    notes = PngInfo()
    notes.add_text("table", "\n".join(table), zip=True)
    small.save(path, optimize=True, pnginfo=notes)
