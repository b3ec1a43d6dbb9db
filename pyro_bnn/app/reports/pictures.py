"""Writes pictures to files, or as data URLs for a page that needs no other files."""

import base64
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ...results import plotting
from ..config import PICTURE_FORMATS
from ..folders import PNG, Folder
from ..numbers import percent

LARGEST_DRAWING = 120_000  # heuristic: bytes of a vector drawing; a larger one becomes an image of pixels
MOST_TICKS = 5  # intervals between the ticks of an axis
NARROW = 0.5  # share of the width of a figure; an axis that is shorter has two ticks
THOUSANDS, MANY = 1e4, 1e5  # ticks of axes that reach these numbers are such as 20,000 and 200k
MOST_DRAWN = 100  # largest number of rows in a picture of intervals


def pictures_of(folder: Folder, names: Sequence[str]) -> list[str]:
    """Return the names of those pictures in `names` that the folder has, with the ending of its picture format."""
    pictures = [folder.in_format(name) for name in names if name.endswith(PNG)]
    return [name for name in pictures if name in folder]


def readable(ax: Any) -> Any:
    """Give the linear axes of a figure few ticks, without an offset such as 1e6; return `ax`."""
    for each in ax.figure.axes:
        for name, axis in (("x", each.xaxis), ("y", each.yaxis)):
            used = type(axis.get_major_locator()).__name__, type(axis.get_major_formatter()).__name__
            if used != ("AutoLocator", "ScalarFormatter"):  # names, or ticks of a logarithmic axis
                continue
            is_narrow = name == "x" and each.get_position().width < NARROW
            each.locator_params(name, nbins=2 if is_narrow else MOST_TICKS)
            low, high = axis.get_view_interval()
            if is_narrow:  # the first tick and the last one, whose labels have space
                ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
                axis.set_ticks(ticks[:: max(1, len(ticks) - 1)])
            largest = max(map(abs, (low, high)))
            if largest >= THOUSANDS:
                axis.set_major_formatter(_in_thousands if largest >= MANY else "{x:,.0f}")
    return ax


def _in_thousands(value: float, _: int | None = None) -> str:
    """Return the label of a tick, such as 200k or 1.2M."""
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k" if value else "0"


def save_picture(folder: Folder, name: str, ax: Any) -> str:
    """Write the figure of `ax` to a file, remove the same picture in other formats, and return the name of the file."""
    new = folder.in_format(name)
    with folder.new(new) as path:
        plotting.save(readable(ax), path)
    for other in {name.replace(PNG, f".{ending}") for ending in PICTURE_FORMATS} - {new}:
        folder.discard(other)
    return new


def panel(height: float = 2.6) -> Any:
    """Make axes that are `height` inches high and as wide as a text column, so that they fit on a phone's screen."""
    return panels(1, height)[0]


def panels(columns: int, height: float) -> Any:
    """Make several axes beside each other, which are together as wide as a text column."""
    with plotting.style():
        return plotting.new_axes(1, columns, size=("column", height))[0]


def kept_by(values: Tensor) -> tuple[float, float]:
    """Return limits of an axis that leave out far values, which would squeeze all others.

    A value is far if its distance from the range of the middle 90 % exceeds the width of this range.
    """
    low, high = values.double().quantile(values.new_tensor([0.05, 0.95], dtype=torch.double)).tolist()
    width = high - low
    return max(float(values.min()), low - width), min(float(values.max()), high + width)


def cut_axes(ax: Any, x: Tensor, y: Tensor, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
    """Limit the axes, and mark points beyond the limits at the edge."""
    near_x, near_y = x.clamp(*x_limits), y.clamp(*y_limits)
    is_far = (near_x != x) | (near_y != y)
    for (low, high), limit in ((x_limits, ax.set_xlim), (y_limits, ax.set_ylim)):
        margin = 0.05 * (high - low)
        if margin:
            limit(low - margin, high + margin)
    if is_far.any():
        ax.plot(near_x[is_far], near_y[is_far], "x", markersize=5, color="black", label="beyond the axes")


def observed_against_predicted(
    mean: Tensor, y: Tensor, low: Tensor, high: Tensor, *, name: str, level: float
) -> tuple[Any, int]:
    """Plot observed numbers and intervals against predicted means.

    Return the axes, and the number of rows in the plot.
    """
    chosen = mean.argsort()[torch.linspace(0, len(mean) - 1, min(len(mean), MOST_DRAWN)).long()]
    parts = [part[chosen].detach().cpu() for part in (mean, low, high, y)]
    middle, lower, upper, observed = (part.numpy() for part in parts)
    ax = panel(3.2)
    is_inside = (lower <= observed) & (observed <= upper)
    ax.vlines(middle, lower, upper, color="0.6", linewidth=0.8, alpha=0.7, label=f"{percent(level, 0)} interval")
    for part, color, mark, label in (
        (is_inside, 0, "o", "observed, inside"),
        (~is_inside, 1, "D", "observed, outside"),
    ):
        ax.plot(middle[part], observed[part], mark, markersize=3, color=plotting.PALETTE[color], label=label)
    ends = [float(mean.min()), float(mean.max())]
    ax.plot(ends, ends, "k--", linewidth=1, label="predicted mean")
    ax.set(xlabel=f"predicted mean of {name}", ylabel=f"observed {name}")
    cut_axes(ax, parts[0], parts[3], kept_by(parts[0]), kept_by(torch.cat(parts)))
    with plotting.style():
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # above the data instead of over them
    return ax, len(chosen)


@dataclass(frozen=True)
class Drawing:
    """A figure of matplotlib, given by its axes. The figure is drawn only when a page shows it."""

    ax: Any

    def __str__(self) -> str:
        """Return a data URL that contains a vector drawing, or pixels if the vector drawing is large."""
        readable(self.ax)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "picture.svg"
            plotting.save(self.ax, path)
            if path.stat().st_size <= LARGEST_DRAWING:
                return _address("image/svg+xml", path.read_bytes())
            path = path.with_suffix(".png")
            plotting.save(self.ax, path)
            return _address("image/png", path.read_bytes())


def pixels(grey: Tensor) -> str:
    """Return a grey image, shape (H, W), as a data URL. Values lie in [0, 1], and 1 is black."""
    file = io.BytesIO()
    Image.fromarray((255 * (1 - grey.detach().cpu())).round().byte().numpy()).save(file, "PNG")
    return _address("image/png", file.getvalue())


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
