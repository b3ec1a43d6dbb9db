"""The folder of data sets, and the error for missing files."""

import os
from pathlib import Path

from .._core import checks as _checks


class MissingDataError(FileNotFoundError):
    """The files of a data set are not in its folder."""


def data_folder(root: object) -> Path:
    """`root`, or if it is None the environment variable ``PYRO_BNN_DATA``, or if this is not set ``data``."""
    return Path(os.environ.get("PYRO_BNN_DATA") or "data") if root is None else _checks.path("root", root)
