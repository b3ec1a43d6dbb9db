"""Packages that are installed only where they are wanted."""

import importlib
from typing import Any

from .scope import filtered_warnings


class MissingExtraError(ModuleNotFoundError):
    """A package that a part of this one needs is not installed; the message says how to get it."""


def optional(module: str, package: str, extra: str, *, root: str | None = None) -> Any:
    """A module of another package, imported when it is needed: that is slow, and some warn.

    An installed package that cannot be imported, or that lacks a package of its own, raises its own error.
    """
    root = module.partition(".")[0] if root is None else root
    try:
        with filtered_warnings("ignore"):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != root:
            raise
        raise MissingExtraError(
            f"this needs {package}, which is not installed: run `pip install -e '.[{extra}]'` in the checkout of "
            "pyro-bnn.",
            name=root,
        ) from error
