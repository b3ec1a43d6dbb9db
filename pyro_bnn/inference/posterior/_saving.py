"""Posteriors as plain data, by kind."""

from dataclasses import dataclass
from typing import Any

from ._destination import Destination
from ._posterior import Posterior


@dataclass(frozen=True)
class Saved:
    """Any posterior in a file: the name of its class, and its :meth:`Posterior.to_record`."""

    kind: str
    content: dict[str, Any]


def saved(posterior: Posterior) -> Saved:
    """What a file says of a posterior, if it can be saved."""
    return Saved(type(posterior).__name__, posterior.to_record())


def restored(values: Saved, destination: Destination) -> Posterior:
    """The posterior that a file describes, after checks; nothing but `destination.pending` changes.

    A class, of this package or another, is known by its name once it is imported.
    """
    every = Posterior.__subclasses__()
    for kind in every:
        every += kind.__subclasses__()  # the loop goes on with these
    kinds = {kind.__name__: kind for kind in every if "from_record" in vars(kind)}
    if values.kind not in kinds:
        raise ValueError(f"its kind must be one of {', '.join(sorted(kinds))}, got {values.kind!r}.")
    return kinds[values.kind].from_record(values.content, destination)
