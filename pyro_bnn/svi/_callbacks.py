"""What a fit calls after each epoch."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..history import History

Callback = Callable[[History], bool | None]
"""Function of the history, called after each epoch; a true result ends the fit."""


@runtime_checkable
class StatefulCallback(Protocol):
    """A callback that remembers something; checkpoints hold its state.

    Both methods are those of torch's optimizers and schedules. The state is plain data: numbers, texts, tensors, and
    lists and dictionaries of these.
    """

    def __call__(self, history: History) -> bool | None:
        """Called after each epoch; a true result ends the fit."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
