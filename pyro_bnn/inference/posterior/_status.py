"""How an inference ended."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """How inference ended.

    Args:
        ok: Whether inference shows no sign of trouble.
        message: Text that says what happened and, if there is trouble, what to try.
        detail: How it was computed, as at the end of the message; a function that writes a message of its own for the
            same fit adds it.
    """

    ok: bool
    message: str
    detail: str = field(default="", compare=False, repr=False)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.message
