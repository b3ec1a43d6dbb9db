"""Converts posteriors to plain data and back."""

from dataclasses import dataclass
from typing import Any

from ._destination import Destination
from ._posterior import Posterior


@dataclass(frozen=True)
class Saved:
    """Any posterior in a file: the name of its class, and the result of its :meth:`Posterior.to_record`."""

    kind: str
    content: dict[str, Any]


def saved(posterior: Posterior) -> Saved:
    """The record of a posterior for a file; raises if it cannot be saved."""
    return Saved(type(posterior).__name__, posterior.to_record())


def restored(values: Saved, destination: Destination) -> Posterior:
    """The posterior in a record, after checks; only `destination.pending` changes.

    Any imported subclass of :class:`Posterior` is found by its name.
    """
    every = Posterior.__subclasses__()
    for kind in every:
        every += kind.__subclasses__()  # the loop also visits these
    kinds = {kind.__name__: kind for kind in every if "from_record" in vars(kind)}
    if values.kind not in kinds:
        raise ValueError(f"its kind must be one of {', '.join(sorted(kinds))}, got {values.kind!r}.")
    return kinds[values.kind].from_record(values.content, destination)
