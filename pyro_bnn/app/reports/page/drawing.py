"""Pictures as addresses that hold the picture itself, so that a page needs no other file."""

import base64
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from ....results import plotting

__all__ = ["Picture", "drawn", "panel", "pixels"]

LARGEST_DRAWING = 120_000
"""A drawing of more bytes than this (one of many points) becomes an image of pixels; heuristic."""


@dataclass(frozen=True)
class Picture:
    """A picture on the page.

    Args:
        address: The picture itself, in the form of an address.
        alt: What is to be seen, for those who do not see it.
        caption: Text below.
    """

    address: str
    alt: str
    caption: str = ""


def panel(height: float = 2.6) -> Any:
    """New axes of the width of a column, which is that of a telephone's screen.

    Args:
        height: Height in inches.
    """
    with plotting.style():
        return plotting.new_axes(1, 1, size=("column", height))[0, 0]


def drawn(ax: Any, *, alt: str, caption: str = "") -> Picture:
    """A picture that was drawn by `plotting`: a drawing if it is small, else pixels.

    Args:
        ax: Any axes of the picture, of matplotlib.
        alt: What is to be seen.
        caption: Text below.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        plotting.save(ax, path)
        if path.stat().st_size <= LARGEST_DRAWING:
            return Picture(_address("image/svg+xml", path.read_bytes()), alt, caption)
        plotting.save(ax, path.with_suffix(".png"))
        return Picture(_address("image/png", path.with_suffix(".png").read_bytes()), alt, caption)


def pixels(grey: Tensor, *, alt: str) -> Picture:
    """A grey image, dark on light as in print.

    Args:
        grey: Values in [0, 1], shape (H, W); 1 is black.
        alt: What is to be seen.
    """
    file = io.BytesIO()
    Image.fromarray((255 * (1 - grey.detach().cpu())).round().byte().numpy()).save(file, "PNG")
    return Picture(_address("image/png", file.getvalue()), alt)


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
