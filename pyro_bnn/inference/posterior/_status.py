"""How an inference ended."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """How inference ended.

    Args:
        ok: Whether inference shows no sign of trouble.
        message: Text that says what happened and, unless there is a `remedy`, what to try.
        detail: How it was computed, as at the end of the message; a function that writes a message of its own for the
            same fit adds it.
        remedy: Sentence that says what to try, in the arguments of the function that was called. A caller with
            arguments of its own, such as an estimator, puts its own here.
    """

    ok: bool
    message: str
    detail: str = field(default="", compare=False, repr=False)
    remedy: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()
