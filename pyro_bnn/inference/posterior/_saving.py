"""Posteriors as plain data, by kind."""

from dataclasses import dataclass
from typing import Any

from ._posterior import Posterior
from ._target import Target


@dataclass(frozen=True)
class Saved:
    """Any posterior in a file.

    Args:
        kind: Name of its class.
        content: What the class says of it; see :meth:`Posterior.to_record`.
    """

    kind: str
    content: dict[str, Any]


def saved(posterior: Posterior) -> Saved:
    """What a file says of a posterior.

    Raises:
        ValueError: If it cannot be saved.
    """
    return Saved(type(posterior).__name__, posterior.to_record())


def restored(values: Saved, target: Target) -> Posterior:
    """The posterior that a file describes, after checks; nothing but `target.pending` changes.

    Raises:
        ValueError: If it is damaged or does not fit; the message names what is wrong.
    """
    kinds = _kinds()
    if values.kind not in kinds:
        raise ValueError(f"its kind must be one of {', '.join(sorted(kinds))}, got {values.kind!r}.")
    return kinds[values.kind].from_record(values.content, target)


def _kinds() -> dict[str, type[Posterior]]:
    """The classes that can be loaded by name, those of other packages too. A class is known once it is imported."""
    kinds = Posterior.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()  # the loop goes on with these
    return {kind.__name__: kind for kind in kinds if "from_record" in vars(kind)}
