"""The error for files that are not there."""

import os
from pathlib import Path

from .._core import checks as _checks


class MissingDataError(FileNotFoundError):
    """A data set's files are not in the folder searched."""


def data_folder(root: object) -> Path:
    """The folder of data sets: `root`, else the environment variable ``PYRO_BNN_DATA``, else ``data``."""
    return Path(os.environ.get("PYRO_BNN_DATA") or "data") if root is None else _checks.path("root", root)
