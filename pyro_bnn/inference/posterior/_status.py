"""The status of a posterior."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """How inference ended.

    Args:
        ok: Whether inference shows no sign of trouble.
        message: Text that says what happened and, if there is no `remedy`, what to try.
        detail: The last part of the message, about how the result was computed. A caller that writes its own message
            appends this part.
        remedy: Advice on what to try, in terms of the arguments of the called function. A caller with other arguments,
            such as a scikit-learn estimator, replaces it.
    """

    ok: bool
    message: str
    detail: str = field(default="", compare=False, repr=False)
    remedy: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()
