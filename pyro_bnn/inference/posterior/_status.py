"""How an inference ended."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """How inference ended.

    Args:
        ok: Whether inference shows no sign of trouble.
        message: Text that says what happened and, unless there is a `remedy`, what to try.
        detail: How it was computed, which is the end of the message; a function that writes its own message for the
            same fit appends it.
        remedy: Sentence that says what to try, in terms of the called function's arguments. A caller with other
            arguments, such as an estimator, replaces it.
    """

    ok: bool
    message: str
    detail: str = field(default="", compare=False, repr=False)
    remedy: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()
