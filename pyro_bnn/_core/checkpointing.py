"""Checkpoints: long computations write their state to a file at intervals, and stop cleanly on a signal."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from . import checks as _checks
from .files import write_state
from .processes import Processes

SHARE = 0.02  # heuristic: writing the state at the ends of epochs takes at most this fraction of a fit's time
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # from Ctrl-C; from `kill`, `docker stop` and job schedulers


@dataclass(frozen=True)
class Checkpoint:
    """The file to which a long computation writes its state, and how often.

    Args:
        path: The file. Its folder must exist.
        minutes: Minutes between two writes; with 0, the state is written after each step.

    Example:
        >>> import pyro_bnn as pb
        >>> pb.Checkpoint("fit.checkpoint", minutes=1.0).minutes
        1.0
    """

    path: str | Path
    minutes: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not str(self.path):
            raise ValueError(f"`checkpoint` must be a path or a Checkpoint, got {_checks.got(self.path)}.")
        if not _checks.as_float(self.minutes) >= 0:
            raise ValueError(f"`minutes` must be a number of at least 0, got {_checks.got(self.minutes)}.")


def renamed(checkpoint: str | Path | Checkpoint | None, rename: Callable[[str | Path], Path]) -> Checkpoint | None:
    """Return the checkpoint with its path replaced by ``rename(path)``; None stays None."""
    if checkpoint is None:
        return None
    given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    return replace(given, path=rename(given.path))


class Interrupted(KeyboardInterrupt):
    """Raised after a signal stopped a computation. The message says how to resume from the saved state."""


class Keeper:
    """Writes a computation's state at intervals, and stops the computation after a signal."""

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        kind: str,
        is_asked: Callable[[], bool],
        *,
        processes: Processes | None = None,
        name: str | Path | None = None,
    ) -> None:
        self._checkpoint, self._kind, self._is_asked = checkpoint, kind, is_asked
        self._processes, self._name = processes or Processes(), name
        self._written, self._cost = time.monotonic(), 0.0

    def end_epoch(self, state: Callable[[], Mapping[str, Any]], *, is_last: bool) -> None:
        """Write the state after the last epoch, and after any other epoch if `SHARE` permits.

        After all epochs but the last, also call :meth:`step`.
        """
        if self._checkpoint is None:
            return
        (is_due,) = self._processes.any([time.monotonic() - self._written >= self._cost / SHARE])
        if is_last or is_due:
            self.write(state)
        if not is_last:
            self.step(state)

    def step(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write the state if the last write was `minutes` ago or a signal came. After a signal, raise `Interrupted`."""
        if self._checkpoint is None:
            return
        is_due = time.monotonic() - self._written >= 60 * self._checkpoint.minutes
        is_asked, is_due = self._processes.any([self._is_asked(), is_due])
        if is_asked or is_due:
            self.write(state)
        if is_asked:
            raise Interrupted(
                f"stopped by a signal; the state is in {self._checkpoint.path}. To continue, call again with the same "
                f"arguments and `resume={str(self._name or self._checkpoint.path)!r}`."
            )

    def write(self, state: Callable[[], Mapping[str, Any]]) -> None:
        if self._checkpoint is not None:
            begin, content = time.monotonic(), state()
            if self._processes.is_first:
                write_state(self._checkpoint.path, self._kind, content)
            self._written = time.monotonic()
            self._cost = self._written - begin


@contextmanager
def keeping(
    checkpoint: str | Path | Checkpoint | None,
    kind: str,
    resume: str | Path | None = None,
    *,
    processes: Processes | None = None,
    name: str | Path | None = None,
) -> Iterator[Keeper]:
    """Yield the `Keeper` of a computation. Without a checkpoint, signals work as usual."""
    if checkpoint is None:
        yield Keeper(None, kind, lambda: False)
        return
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    if processes is None or processes.is_first:
        check_target(Path(checkpoint.path), resume, checkpoint.path if name is None else name)
    with stopping() as is_asked:
        yield Keeper(checkpoint, kind, is_asked, processes=processes, name=name)


def check_target(path: Path, resume: str | Path | None, name: str | Path) -> None:
    """Raise if `path` cannot be written, or if it already exists and is not the file `resume`."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError) as error:  # a loop of links, a name that is too long or contains a null character
        raise OSError(f"`checkpoint` cannot be {str(path)[:100]!r} ({error}); choose another path.") from error
    if path.exists() and not (resume is not None and Path(resume).exists() and path.samefile(resume)):
        raise FileExistsError(
            f"`checkpoint` must be a new file, but {path} exists; to resume from it, pass `resume={str(name)!r}`, "
            "otherwise choose another path or remove it."
        )
    folder = _checks.file_to_write("checkpoint", path).resolve().parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"`checkpoint` cannot be written to {folder} ({error.strerror}); choose another folder."
        ) from error


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM has come. A second signal ends the program as usual."""
    asked = threading.Event()
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        restore()
        asked.set()

    try:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):  # None: the handler was set by C and could not be restored
                    before[number] = handler
                    signal.signal(number, ask)
        yield asked.is_set
    finally:
        restore()


CallbackT = TypeVar("CallbackT", bound=Callable[..., object])


def check_fit(
    *, progress: object = None, checkpoint: object = None, resume: object = None, seed: object = None
) -> None:
    if progress is not None:
        _checks.flag("progress", progress)  # type: ignore[arg-type]
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        Checkpoint(checkpoint)  # type: ignore[arg-type]
    if resume is not None:
        _checks.path("resume", resume)
    if seed is not None:
        _checks.seed(seed)  # type: ignore[arg-type]


def checked_callbacks(callbacks: Iterable[CallbackT]) -> list[CallbackT]:
    example = "a list of functions of the history"
    found: list[CallbackT] = _checks.items("callbacks", callbacks, example)
    for callback in found:
        _checks.function("callbacks", callback, example)
        if isinstance(callback, type):
            name = callback.__name__
            raise ValueError(f"`callbacks` must be functions of the history, got the class {name}; pass {name}(...).")
    return found
