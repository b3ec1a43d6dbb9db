"""What is declared of a setting beside its type."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "Setting"]

KINDS = {"images": "image sets", "table": "tables", "arrays": "arrays"}
"""What data may be, and several of them in words."""


@dataclass(frozen=True)
class Setting:
    """What the command line and the checks have to know of a setting.

    Args:
        help: What the setting is, for the help.
        panel: Heading in the help.
        choices: What may be typed, for completion; texts that end with a colon are beginnings.
        default: What the help says of the default; None for what the recipes have, an empty text for nothing.
        kinds: The data that have this setting; for others it has its default.
        check: Function that raises ValueError if a value is wrong.
    """

    help: str
    panel: str
    choices: tuple[str, ...] = ()
    default: str | None = None
    kinds: tuple[str, ...] = tuple(KINDS)
    check: Callable[[Any], object] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Adds the check to those that pydantic makes of the annotation."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if self.check is not None:
            self.check(value)
        return value
