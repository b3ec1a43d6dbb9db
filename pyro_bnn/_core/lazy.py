"""Public names of a package that are imported when they are first used."""

import ast
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path


def attach(
    package: str, sources: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the functions `__getattr__` and `__dir__` and the list `__all__` of a package.

    `sources` has the relative module of each name, or "." if the name is itself a module of the package.
    """
    names = sorted(sources)

    def load(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        if sources[name] == ".":
            return importlib.import_module(f".{name}", package)
        return getattr(importlib.import_module(sources[name], package), name)

    return load, lambda: list(names), names


def names_in(stub: Path) -> dict[str, str]:
    """Return ``{name: relative module}`` for all imports ``from .module import name as name`` in a stub."""
    imports = (node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom))
    return {alias.name: f".{node.module or ''}" for node in imports for alias in node.names}
