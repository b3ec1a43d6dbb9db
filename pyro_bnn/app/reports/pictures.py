"""Pictures in folders, in one of several formats."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ...results import plotting
from ..folders import Folder

__all__ = ["in_format", "pictures_of", "save_picture"]

PNG = ".png"
"""Ending of pictures in lists of files; that of another format takes its place."""

FORMATS = ("png", "pdf", "svg")


def in_format(names: Sequence[str], picture_format: str) -> list[str]:
    """Names of files, those of pictures in another format.

    Example:
        >>> in_format(["metrics.json", "loss.png"], "pdf")
        ['metrics.json', 'loss.pdf']
    """
    return [f"{PurePath(name).stem}.{picture_format}" if name.endswith(PNG) else name for name in names]


def pictures_of(folder: Folder, names: Sequence[str], picture_format: str) -> list[str]:
    """Those of the pictures that the folder holds.

    Args:
        folder: The folder.
        names: Names of files, those of pictures in PNG.
        picture_format: Format that the pictures are in.
    """
    return [
        name for name in in_format([name for name in names if name.endswith(PNG)], picture_format) if name in folder
    ]


def save_picture(folder: Folder, name: str, ax: Any, picture_format: str = "png") -> str:
    """Write the figure that axes belong to. The same picture in other formats, of an earlier command, is removed.

    Args:
        folder: The folder.
        name: Name of the file in PNG.
        ax: Any axes of the figure, of matplotlib.
        picture_format: The format, which is its ending.

    Returns:
        Name of the file.
    """
    (new,) = in_format([name], picture_format)
    with folder.new(new) as path:
        plotting.save(ax, path)
    for other in FORMATS:
        if other != picture_format:
            folder.discard(*in_format([name], other))
    return new
