"""Makes dataclasses from JSON. Pydantic checks each field, and one error message names all faults."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from .._core.names import nearest

T = TypeVar("T")

IN_PLAIN_WORDS = {
    "Input should be": "must be",
    "String should": "must",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than": "below",
}
"""Phrases in Pydantic's messages, and simpler phrases that replace them."""


def parsed(text: str | bytes) -> Any:
    """Read plain data from JSON."""
    from pydantic_core import from_json

    return from_json(text)


def checked(kind: type[T], values: object) -> T:
    """Make a dataclass from plain data. The annotations of the fields define what is valid."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        names = [each.name for each in fields(kind)] if is_dataclass(kind) else []
        clauses = [_clause(fault, names) for fault in error.errors(include_url=False)]
        raise ValueError(f"{'; '.join(clauses)}.") from error


def _clause(fault: Any, names: Sequence[str]) -> str:
    name = f"`{'.'.join(map(str, fault['loc']))}`" if fault["loc"] else "the content"
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"]).rstrip(".")
    if fault["type"] == "missing":
        return f"{name} is missing"
    if fault["type"] == "unexpected_keyword_argument":
        near = nearest(str(fault["loc"][-1]), names)
        return f"{name} is unknown" + (f" (nearest: `{near}`)" if near else "")
    words = fault["msg"]
    for old, new in IN_PLAIN_WORDS.items():
        words = words.replace(old, new)
    value, got = fault["input"], repr(fault["input"])
    is_share = fault["type"] == "less_than" and fault["ctx"]["lt"] == 1
    words = words.replace("below 1", "at least 0 and below 1") if is_share else words
    hint = f" (did you mean {value / 100:g}?)" if is_share and 10 <= value < 100 else ""  # 2 may mean 0.2, or 2 %
    if fault["type"] == "literal_error" and (meant := nearest(str(value), re.findall("'(.*?)'", words))):
        hint = f" (did you mean {meant!r}?)"
    return f"{name} {words}, got {got if len(got) <= 80 else type(value).__name__}{hint}"
