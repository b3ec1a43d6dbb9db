"""Pictures as addresses that hold the picture itself, so that a page needs no other file."""

import base64
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from ....results import plotting

__all__ = ["drawn", "panel", "pixels"]

LARGEST_DRAWING = 120_000
"""A drawing of more bytes than this (one of many points) becomes an image of pixels; heuristic."""


def panel(height: float = 2.6) -> Any:
    """New axes, so many inches high, of the width of a column, which is that of a telephone's screen."""
    with plotting.style():
        return plotting.new_axes(1, 1, size=("column", height))[0, 0]


def drawn(ax: Any) -> str:
    """The figure of axes of matplotlib: a drawing if it is small, else pixels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        plotting.save(ax, path)
        if path.stat().st_size <= LARGEST_DRAWING:
            return _address("image/svg+xml", path.read_bytes())
        path = path.with_suffix(".png")
        plotting.save(ax, path)
        return _address("image/png", path.read_bytes())


def pixels(grey: Tensor) -> str:
    """A grey image of shape (H, W), with values in [0, 1], dark on light as in print: 1 is black."""
    file = io.BytesIO()
    Image.fromarray((255 * (1 - grey.detach().cpu())).round().byte().numpy()).save(file, "PNG")
    return _address("image/png", file.getvalue())


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
