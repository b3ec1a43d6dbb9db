"""Files that the program writes."""

import json
import os
from pathlib import Path

from .._core.files import write_atomically

__all__ = ["synchronise", "write_json"]


def write_json(path: Path, value: object) -> None:
    """Write plain data as readable JSON, whole or not at all."""
    text = json.dumps(value, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def synchronise(path: Path) -> None:
    """Make what was written to a file, or the names in a folder, last through a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
