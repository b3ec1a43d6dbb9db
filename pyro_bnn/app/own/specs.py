"""Names of functions, as typed on the command line."""

from pathlib import Path

__all__ = ["parts_of", "stored"]


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
