"""Where a folder lies while it is made, and how it takes its place: nothing is lost, whenever the process ends.

``NAME`` is made as ``.NAME.part`` beside it, under the lock ``.NAME.lock``. At the end an earlier ``NAME`` becomes
``.NAME.old``, ``.NAME.part`` becomes ``NAME``, files of others move from the old folder to the new one, and the rest of
the old folder is removed. :func:`settle` finishes this for a process that was killed in between.
"""

import errno
import itertools
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .._core.files import check_name
from .files import synchronise
from .manifest import MANIFEST, Manifest, has_manifest
from .validation import parsed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "CHECKPOINT",
    "Place",
    "check_alone",
    "clear",
    "is_locked",
    "is_ours",
    "is_resumable",
    "locked",
    "manifest_of",
    "publish",
    "settle",
    "told",
]

CHECKPOINT = "checkpoint"
"""Name of the file with the state from which an unfinished training run goes on."""


@dataclass(frozen=True)
class Place:
    """Where a folder is to be.

    Args:
        shown: The folder as the user wrote it.
        real: The same without links and dots.
    """

    shown: Path
    real: Path

    @classmethod
    def of(cls, folder: str | Path) -> "Place":
        """The place that a path names; a link to a folder is followed.

        Raises:
            OSError: If the path is a link to nothing or in a circle.
            ValueError: If it is not in UTF-8.
        """
        shown = Path(folder)
        check_name(shown)
        try:
            real = shown.resolve()
            is_dangling = shown.is_symlink() and not shown.exists()
        except (RuntimeError, OSError) as error:  # RuntimeError: a circle, before Python 3.13
            raise FileNotFoundError(f"{shown} cannot be followed: {error}; choose another folder.") from error
        if is_dangling:
            raise FileNotFoundError(f"{shown} is a link to {os.readlink(shown)}, which is not there; remove the link.")
        return cls(shown, real)

    @property
    def part(self) -> Path:
        """The folder while it is being made."""
        return self.real.parent / f".{self.real.name}.part"

    @property
    def old(self) -> Path:
        """The earlier folder, while the new one takes its place."""
        return self.real.parent / f".{self.real.name}.old"

    @property
    def lock(self) -> Path:
        """The lock of all three; it is there only while a command writes, and says which."""
        return self.real.parent / f".{self.real.name}.lock"


@contextmanager
def locked(place: Place, command: str) -> Iterator[None]:
    """A context in which no other command writes to a place. The system's kernel releases the lock of a dead process.

    The file is gone afterwards, which libraries of locks do not promise; so a lock is taken anew if its file was
    removed between its opening and its locking.

    Raises:
        BlockingIOError: If another command writes.
        OSError: If the lock cannot be written, or the system has none.
    """
    if fcntl is None:
        raise OSError(f"{place.shown} cannot be locked: this system has no POSIX file locks; on Windows, use WSL.")
    with told(place):
        while True:
            descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            if not _is_taken(descriptor):
                os.close(descriptor)
                raise BlockingIOError(f"{place.shown} is being written by {_holder(place)}; wait until it ends.")
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)
    try:
        place.lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "command": command}))
        yield
    finally:
        with suppress(OSError):  # a file that stays does no harm
            place.lock.unlink()
        os.close(descriptor)


def is_locked(place: Place) -> bool:
    """Whether a living process writes to a place."""
    if fcntl is None or not place.lock.is_file():
        return False
    with place.lock.open("rb") as file:
        return not _is_taken(file.fileno())


def _is_taken(descriptor: int) -> bool:
    """Take a lock, if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(place: Place) -> str:
    try:
        content = parsed(place.lock.read_bytes())
        return f"process {content['pid']} on {content['host']} (pyro-bnn {content['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextmanager
def told(place: Place) -> Iterator[None]:
    """A context in which what the system says against writing becomes a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # it is one
            raise
        where = "" if error.filename is None else f": {error.filename}"
        raise OSError(
            f"{place.shown} cannot be written ({(error.strerror or str(error)).lower()}{where}); choose another folder."
        ) from error


def manifest_of(folder: Path) -> Manifest | None:
    """The manifest of a folder, or None if it has none."""
    return Manifest.read(folder) if has_manifest(folder) else None


def is_resumable(part: Path) -> bool:
    """Whether an unfinished folder holds a state from which its command can go on."""
    manifest = manifest_of(part)
    return manifest is not None and not manifest.is_finished and (part / CHECKPOINT).is_file()


def is_ours(folder: Path) -> bool:
    """Whether a hidden folder is the program's: it has a manifest, or nothing but what comes before one."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return has_manifest(folder) or all(path.name.startswith(f".{MANIFEST}.") for path in folder.iterdir())


def settle(place: Place) -> None:
    """Finish what a killed process has left half done. The caller holds the lock.

    Raises:
        OSError: If it cannot be finished.
    """
    manifest = manifest_of(place.part)
    if manifest is not None and manifest.is_finished and (manifest.replaces or not place.real.exists()):
        publish(place)
    elif is_ours(place.old) and not place.real.exists():
        os.rename(place.old, place.real)
    elif is_ours(place.old):
        _retire(place.old, place.real)


def publish(place: Place) -> None:
    """Put the finished folder `place.part` in its place, as the last step. The caller holds the lock.

    Raises:
        OSError: If that cannot be done. An earlier folder is then where it was.
    """
    try:
        if place.real.exists() and any(place.real.iterdir()):
            manifest = manifest_of(place.part)
            if manifest is None or not manifest.replaces:
                raise OSError(errno.ENOTEMPTY, "it has come into being meanwhile")
            if is_ours(place.old):
                _retire(place.old, place.real)
            os.rename(place.real, place.old)
        try:
            os.rename(place.part, place.real)
        except BaseException:
            if is_ours(place.old) and not place.real.exists():
                os.rename(place.old, place.real)
            raise
        if is_ours(place.old):
            _retire(place.old, place.real)
        synchronise(place.real.parent)
    except OSError as error:
        raise OSError(
            f"{place.shown} cannot be written ({error.strerror or error}); all files are in {place.part}: move that "
            "folder to where you want it."
        ) from error


def _retire(old: Path, new: Path) -> None:
    """Remove the program's files from an old folder, and move all others to the new one."""
    for name in _strangers(old):
        if not os.path.lexists(new / name):
            with suppress(OSError):  # such as a mounted folder: it stays where it is
                os.rename(old / name, new / name)
    if _strangers(old):
        kept = next(path for path in map(new.with_name, _names(new.name)) if not os.path.lexists(path))
        os.rename(old, kept)
        warnings.warn(f"files of the earlier {new} that pyro-bnn did not write are in {kept}.", stacklevel=2)
        old = kept
    clear(old)


def _names(name: str) -> Iterator[str]:
    return (f"{name}.kept-{number}" for number in itertools.count(1))


def _strangers(folder: Path) -> list[str]:
    """Names of what is in a folder and is not the program's."""
    manifest = manifest_of(folder) or Manifest("")
    own = {path.name for path in manifest.own(folder)}
    return sorted(path.name for path in folder.iterdir() if path.name not in own)


def check_alone(folder: Path) -> None:
    """Check that a folder holds nothing but files of the program.

    Raises:
        FileExistsError: If there are files of others.
    """
    strangers = _strangers(folder)
    if strangers:
        raise FileExistsError(f"{folder} holds files that pyro-bnn did not write ({', '.join(strangers)}); move them.")


def clear(folder: Path) -> None:
    """Remove the program's files from a folder, and the folder itself if nothing else is in it."""
    for path in (manifest_of(folder) or Manifest("")).own(folder):
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
