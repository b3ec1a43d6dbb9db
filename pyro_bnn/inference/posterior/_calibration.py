"""The interface of a correction of a posterior's predictions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Calibration(ABC):
    """A correction of a posterior's predictions, learned from rows that took no part in the fit.

    :func:`~pyro_bnn.save_posterior` keeps it in the posterior's file. Your own class can be kept there, too, if it
    inherits from this one.
    """

    @abstractmethod
    def to_record(self) -> dict[str, Any]:
        """Plain data for a file: None, numbers, texts, tensors, and lists, tuples and dictionaries of these.

        Raises:
            ValueError: If it cannot be saved; the message says what to do instead.
        """

    @classmethod
    @abstractmethod
    def from_record(cls, values: Mapping[str, Any]) -> "Calibration":
        """The correction in a file. All content must be checked, since the file may be forged.

        Args:
            values: The result of :meth:`to_record`.

        Raises:
            ValueError: If the values are damaged; the message says what is wrong.
        """
