"""The paths and the lock of a folder that is being written."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .._core.files import check_name

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Place:
    """The path of a folder that is to be written."""

    shown: Path  # as the user wrote it
    real: Path  # absolute, without links and dots

    @classmethod
    def of(cls, folder: str | Path) -> "Place":
        """Return the :class:`Place` of a folder, given its path. Links to folders are followed."""
        shown = Path(folder)
        check_name(shown)
        if shown.is_symlink() and not shown.exists():
            raise FileNotFoundError(f"{shown} is a link to {shown.readlink()}, which is not there; remove the link.")
        return cls(shown, shown.resolve())

    @property
    def part(self) -> Path:
        """The path of the folder while it is being written."""
        return self.real.parent / f".{self.real.name}.part"

    @property
    def lock(self) -> Path:
        """The path of the lock file. While a command writes the folder, this file contains the command's name."""
        return self.real.parent / f".{self.real.name}.lock"


@contextmanager
def locked(place: Place, command: str) -> Iterator[None]:
    """Hold the lock of a folder in a `with` block, so that no other command writes the folder.

    The system releases the lock if the process dies. Unlike lock libraries, this function removes the lock file, so
    another process may remove it after this process has opened it; then this process makes a new lock file.
    """
    if fcntl is None:
        raise OSError(f"{place.shown} cannot be locked: this system has no POSIX file locks; on Windows, use WSL.")
    with told(place):
        descriptor = _lock(place)
        while not os.fstat(descriptor).st_nlink:
            os.close(descriptor)
            descriptor = _lock(place)
    try:
        place.lock.write_text(f"process {os.getpid()} on {socket.gethostname()} (pyro-bnn {command})")
        yield
    finally:
        with suppress(OSError):  # a lock file that stays does no harm
            place.lock.unlink()
        os.close(descriptor)


def _lock(place: Place) -> int:
    descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 999).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise BlockingIOError(f"{place.shown} is being written by {holder}; wait until it ends.") from None
    return descriptor


@contextmanager
def told(place: Place) -> Iterator[None]:
    """Turn system errors (`OSError`) in a `with` block into errors with messages that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # it has such a message already
            raise
        where = "" if error.filename is None else f": {error.filename}"
        raise OSError(
            f"{place.shown} cannot be written ({(error.strerror or str(error)).lower()}{where}); choose another folder."
        ) from error
