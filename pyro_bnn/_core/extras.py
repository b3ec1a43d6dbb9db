"""Import of optional packages when they are needed."""

import importlib
from typing import Any

from .scope import filtered_warnings


class MissingExtraError(ModuleNotFoundError):
    """Raised if an optional package is missing. The message says how to install it."""


def optional(module: str, package: str, extra: str, *, root: str | None = None) -> Any:
    """Import an optional package without its warnings."""
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
