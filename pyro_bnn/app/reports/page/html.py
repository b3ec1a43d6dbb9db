"""Pieces of HTML: text, tables and pictures, everything inside of one file."""

import base64
import struct
import tempfile
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from .... import plotting

__all__ = ["details", "figure", "figures", "image", "panel", "paragraph", "plain", "table"]

LARGEST_DRAWING = 120_000
"""A drawing of more bytes than this (one of many points) becomes an image of pixels; heuristic."""


def plain(text: str) -> str:
    """Plain text as HTML; a number and its per cent sign, or its error, stay on one line."""
    return escape(text).replace(" %", "&nbsp;%").replace(" ± ", "&nbsp;±&nbsp;")


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{plain(text)}</p>"


def details(summary: str, body: str) -> str:
    """A part that is folded until it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, is_words: bool = False) -> str:
    """A table whose first column names the rows.

    Args:
        header: Names of the columns.
        rows: Cells, as plain text.
        caption: What the table shows.
        is_words: Whether the cells are words rather than numbers.
    """
    kind = ' class="words"' if is_words else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{plain(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}"><table{kind}>'
        f"<caption><span>{plain(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(ax: Any, *, alt: str, caption: str = "") -> str:
    """A picture, drawn by `plotting`.

    Args:
        ax: Any axes of the picture, of matplotlib.
        alt: What is to be seen, for those who do not see it.
        caption: Text below.
    """
    below = f"<figcaption>{plain(caption)}</figcaption>" if caption else ""
    return f'<figure><img src="{_address(ax)}" alt="{escape(alt)}">{below}</figure>'


def panel(height: float = 2.6) -> Any:
    """New axes of the width of a column, which is that of a telephone's screen.

    Args:
        height: Height in inches.
    """
    with plotting.style():
        return plotting.new_axes(1, 1, size=("column", height))[0, 0]


def figures(*parts: str) -> str:
    """Pictures side by side where the page is wide enough."""
    return f'<div class="figures">{"".join(parts)}</div>'


def image(grey: Tensor, *, alt: str) -> str:
    """A grey image, dark on light as in print.

    Args:
        grey: Values in [0, 1], shape (H, W); 1 is black.
        alt: What is to be seen.
    """
    content = _png((255 * (1 - grey.detach().cpu())).round().byte())
    return f'<img class="pixels" src="{_data("image/png", content)}" alt="{escape(alt)}">'


def _address(ax: Any) -> str:
    """The picture itself in the form of an address: a drawing if it is small, else pixels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        plotting.save(ax, path)
        if path.stat().st_size <= LARGEST_DRAWING:
            return _data("image/svg+xml", path.read_bytes())
        plotting.save(ax, path.with_suffix(".png"))
        return _data("image/png", path.with_suffix(".png").read_bytes())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _png(levels: Tensor) -> bytes:
    """A PNG file of grey levels, dtype uint8 and shape (H, W).

    References:
        https://www.w3.org/TR/png/, sections 5.3 and 11.2.
    """

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = levels.shape
    rows = b"".join(b"\0" + bytes(row) for row in levels.tolist())  # filter 0: as they are
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits, grey
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
