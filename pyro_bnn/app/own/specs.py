"""What is typed on the command line: names of functions, and endings of files."""

from pathlib import Path

__all__ = ["TABLES", "parts_of", "stored"]

TABLES = (".csv", ".tsv", ".txt", ".parquet")
"""Endings of the files that are read as tables."""


def parts_of(spec: str) -> tuple[str, str]:
    """The file or module, and the function, that a text names.

    Raises:
        ValueError: If it is not of the form FILE.py:FUNCTION or MODULE:FUNCTION.

    Example:
        >>> parts_of("nets/lenet.py:make")
        ('nets/lenet.py', 'make')
    """
    place, colon, function = spec.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ValueError(f"`net` must be mlp, FILE.py:FUNCTION or MODULE:FUNCTION, got {spec!r}.")
    return place, function


def stored(spec: str) -> str:
    """The name of a function as a run's configuration has it: a file with its full path."""
    place, function = parts_of(spec)
    return f"{Path(place).resolve()}:{function}" if place.endswith(".py") else spec
