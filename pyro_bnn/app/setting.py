"""How a setting of a run is declared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NETWORK, FIT, OWN = "Data, network and prior", "Fit", "Tables and arrays of your own"
"""Headings in the help of the command line."""

KINDS = {"images": "image sets", "table": "tables", "arrays": "arrays"}
"""Kinds of data, and the words for several items of each."""


@dataclass(frozen=True)
class Setting:
    """What the command line and the checks need to know about a setting.

    Args:
        help: What the setting is, for the help.
        panel: Heading in the help.
        choices: Accepted texts, for completion; texts that end with a colon are prefixes.
        default: The help's text about the default; None if recipes set it, an empty text to say nothing.
        kinds: The kinds of data that have this setting; for others it keeps its default.
        check: Function that raises ValueError if a value is wrong.
    """

    help: str
    panel: str
    choices: tuple[str, ...] = ()
    default: str | None = None
    kinds: tuple[str, ...] = tuple(KINDS)
    check: Callable[[Any], object] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Adds the check to pydantic's checks of the annotation."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if self.check is not None:
            self.check(value)
        return value
