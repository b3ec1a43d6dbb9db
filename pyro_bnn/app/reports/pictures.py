"""Pictures in folders."""

from typing import Any

from ... import plotting
from ..folders import Folder

__all__ = ["save_picture"]


def save_picture(folder: Folder, name: str, ax: Any) -> None:
    """Write the figure that axes belong to.

    Args:
        folder: The folder.
        name: Name of the file; its ending chooses the format.
        ax: Any axes of the figure, of matplotlib.
    """
    with folder.new(name) as path:
        plotting.save(ax, path)
