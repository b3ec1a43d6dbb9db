"""Packages that are installed only where they are wanted."""

import importlib
from typing import Any

from ._scope import filtered_warnings


def optional(module: str, package: str, extra: str) -> Any:
    """A module of another package, imported when it is needed: that is slow, and some warn.

    Args:
        module: Name of the module.
        package: Name of the package, for people.
        extra: The extra of this package that installs it.

    Raises:
        ImportError: If it is not installed; the message says how to get it.
    """
    try:
        with filtered_warnings("ignore"):
            return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'pyro-bnn[{extra}]'.") from error
