"""A folder that the program writes: its paths, its lock, and the manifest of its files with their checksums."""

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._core.files import DamagedFileError, check_name, write_atomically
from .._core.records import record
from .remedies import MANIFEST as MANIFEST
from .validation import parsed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHECKPOINT, PROGRESS = "checkpoint", ".progress"  # names of files while a folder is unfinished
PART = ".part-"  # beginning of the name of a file that is being written
FORMAT, VERSION = "pyro_bnn folder", 1

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
"""Pattern of the names of the program's files: at most 100 characters, without a folder or a dot in front."""


@dataclass
class Manifest:
    """The list of the files that the program wrote to a folder. The program deletes no other file in the folder."""

    command: str  # the command that made the folder
    is_finished: bool = False  # whether that command has written everything
    replaces: bool = False  # whether the folder is to replace an earlier one
    files: dict[str, str] = field(default_factory=dict)  # checksum of each file, by its name

    def write(self, folder: Path) -> None:
        """Write the manifest to its folder atomically."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        text = json.dumps({**content, "sha256": _checksum_of(content)}, indent=1) + "\n"
        write_atomically(folder / MANIFEST, lambda file: file.write(text.encode()))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a folder."""
        path = folder / MANIFEST
        try:
            content = parsed(path.read_bytes())
            is_whole = content.pop("sha256") == _checksum_of(content) and content.pop("format") == FORMAT
            version = content.pop("version")
            is_later = is_whole and type(version) is int and version > VERSION
            manifest = cls("") if is_later else record(cls, content, "manifest")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(path) from error
        if is_later:
            raise ValueError(f"{folder} was written by a later version of pyro-bnn; install that version.")
        are_names = all(name != MANIFEST and FILE_NAME.fullmatch(name) for name in manifest.files)
        if not (is_whole and are_names and type(version) is int and version == VERSION):
            raise _damaged(path)
        return manifest

    def owns(self, path: Path) -> bool:
        """Return whether the program wrote the file at `path`, even if the file is incomplete."""
        if path.is_dir() and not path.is_symlink():
            return False
        is_left = path.name.startswith(PART) or (path.name.startswith(".") and path.name.endswith(".part"))
        return path.name in (*self.files, MANIFEST, CHECKPOINT, PROGRESS) or is_left

    def others(self, folder: Path) -> list[str]:
        """Return the names of the files and folders that the program did not write."""
        return sorted(path.name for path in folder.iterdir() if not self.owns(path))


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest, which means that the program wrote the folder."""
    return (folder / MANIFEST).is_file()


def verified(folder: str | Path, name: str) -> Path:
    """Return the path of a file in a folder; raise DamagedFileError if it is missing, damaged or edited."""
    path = Path(folder) / name
    expected = Manifest.read(Path(folder)).files.get(name)
    if expected is None or not path.is_file():
        raise DamagedFileError(f"{path} is missing; take it from a copy of the folder, or make the folder again.")
    if checksum(path) != expected:
        raise _damaged(path)
    return path


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _checksum_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is damaged or was edited: its checksum does not fit its content; take it from a copy of the folder, "
        "or make the folder again (settings are options of `pyro-bnn train`)."
    )


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

    The system releases the lock if the process dies. Unlike lock libraries, this function removes the lock file at the
    end. If another process removes the file after this process has opened it, this process makes a new lock file.
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
