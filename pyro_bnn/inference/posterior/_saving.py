"""Converts posteriors and calibrations to plain data and back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ._destination import Destination
from ._posterior import Posterior

T = TypeVar("T")


class Calibration(ABC):
    """A correction of a posterior's predictions, learned from rows that were not used in the fit.

    :func:`~pyro_bnn.save_posterior` can store a correction in the posterior's file, even if you wrote its class.
    """

    @abstractmethod
    def to_record(self) -> dict[str, Any]:
        """Return plain data for a file, as in :meth:`Posterior.to_record`."""

    @classmethod
    @abstractmethod
    def from_record(cls, values: Mapping[str, Any]) -> "Calibration":
        """Make the correction from the result of :meth:`to_record`; see :meth:`Posterior.from_record`."""


@dataclass(frozen=True)
class Saved:
    """The record of a posterior or a calibration in a file: the class's name, and the result of `to_record`."""

    kind: str
    content: dict[str, Any]


def saved(value: Posterior | Calibration) -> Saved:
    """Return the record that a file stores, or raise if the value cannot be saved."""
    return Saved(type(value).__name__, value.to_record())


def restored(values: Saved, destination: Destination) -> Posterior:
    """Check a record, and return its posterior. Only `destination.pending` changes."""
    kind: type[Posterior] = _kind_of(values, Posterior)  # type: ignore[type-abstract]  # its subclasses are found
    return kind.from_record(values.content, destination)


def restored_calibration(values: Saved) -> Calibration:
    kind: type[Calibration] = _kind_of(values, Calibration)  # type: ignore[type-abstract]
    return kind.from_record(values.content)


def _kind_of(values: Saved, base: type[T]) -> type[T]:
    """Return the class that a record names: a subclass of `base` that defines `from_record`."""
    every = base.__subclasses__()
    for kind in every:
        every += kind.__subclasses__()  # the loop also visits these
    kinds = {kind.__name__: kind for kind in every if "from_record" in vars(kind)}
    if values.kind not in kinds:
        raise ValueError(f"its kind must be one of {', '.join(sorted(kinds))}, got {values.kind!r}.")
    return kinds[values.kind]
