"""Pictures in folders, in one of several formats."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ...results import plotting
from ..folders import Folder

__all__ = ["in_format", "pictures_of", "save_picture"]

PNG = ".png"
"""Ending of pictures in lists of file names; the chosen format's ending replaces it."""

FORMATS = ("png", "pdf", "svg")


def in_format(names: Sequence[str], picture_format: str) -> list[str]:
    """File names; pictures get the ending of another format.

    Example:
        >>> in_format(["metrics.json", "loss.png"], "pdf")
        ['metrics.json', 'loss.pdf']
    """
    return [f"{PurePath(name).stem}.{picture_format}" if name.endswith(PNG) else name for name in names]


def pictures_of(folder: Folder, names: Sequence[str], picture_format: str) -> list[str]:
    """The pictures among them that the folder holds."""
    pictures = [name for name in names if name.endswith(PNG)]
    return [name for name in in_format(pictures, picture_format) if name in folder]


def save_picture(folder: Folder, name: str, ax: Any, picture_format: str = "png") -> str:
    """Write the figure of matplotlib axes; returns the name of the file.

    If an earlier command wrote the picture in other formats, those files are removed.
    """
    files = {ending: name.replace(PNG, f".{ending}") for ending in FORMATS}
    new = files.pop(picture_format)
    with folder.new(new) as path:
        plotting.save(ax, path)
    for other in files.values():
        folder.discard(other)
    return new
