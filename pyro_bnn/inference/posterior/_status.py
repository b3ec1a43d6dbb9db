"""The status of a fit, and the warning that a fit did not end well."""

from dataclasses import dataclass, field

from ..._core.remedies import Advised
from ..._core.scope import warn_of_fit
from ..._core.summary import NOT_OK, OK, UNKNOWN

MOST_CHARACTERS = 250  # heuristic: longest warning that quotes the message instead of naming its attribute


class ConvergenceWarning(UserWarning):
    """A fit ended with a status that is not ok. The message says what is wrong, and what to do."""


@dataclass(frozen=True)
class Status(Advised):
    """How inference ended.

    Args:
        ok: Whether inference shows no sign of trouble; None if unknown, as after a training loop of your own.
        message: What happened. Without a `remedy`, the message also says what to try.
        detail: The last part of the message, about how the result was computed.
        remedy: Advice on what to try, with the argument names of the function that made the fit.
        verdict: What is wrong, by default the part of the message before the first semicolon.
        is_slight: Whether the trouble is small. If so, a comparison with another result is uncertain only if the two
            results differ little.

    Example:
        >>> import pyro_bnn as pb
        >>> status = pb.Status(
        ...     False, "The loss still falls.", remedy="Raise `num_epochs`."
        ... )
        >>> bool(status)
        False
        >>> print(status)
        The loss still falls. Raise `num_epochs`.
    """

    ok: bool | None
    message: str
    detail: str = field(default="", compare=False, repr=False)
    remedy: str = ""
    verdict: str = field(default="", compare=False, repr=False)
    is_slight: bool = field(default=False, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.ok)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    @property
    def label(self) -> str:
        """The first word or words of a summary: "ok", "NOT OK" or "unknown"."""
        return UNKNOWN if self.ok is None else OK if self.ok else NOT_OK

    @property
    def finding(self) -> str:
        """A sentence that says what is wrong: the verdict, or the first part of the message."""
        found = self.verdict or self.message.partition(";")[0].strip()
        return f"{found[:1].upper()}{found[1:].rstrip('.')}."

    def warning(self, name: str = "posterior.status") -> str:
        """Return the text of a warning.

        It says what is wrong and what to try. If the rest of the status's message is short, the text ends with it.

        Args:
            name: Name of the attribute that contains the whole status.
        """
        text = f"{self.finding} {self.remedy}".rstrip()
        facts = self.message if self.verdict else self.message.partition(";")[2]
        more = f"{text} `{name}` says more"
        whole = f"{more}: {facts.strip()}"
        return whole if facts and len(whole) <= MOST_CHARACTERS else f"{more}."


def warn_unless_ok(status: Status) -> None:
    if status.ok is False:
        warn_of_fit(status.warning(), ConvergenceWarning)
