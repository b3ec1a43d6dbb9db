"""Locks of folders: one process at a time writes to a folder. The kernel releases a lock when its process ends."""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from .validation import parsed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Lock", "is_held", "progress", "take"]


class Lock:
    """A lock that this process holds. Its file says who holds it, and how far that process has come.

    Args:
        path: The lock's file.
        descriptor: The open and locked file.
        command: What the process does, such as ``train``.
    """

    def __init__(self, path: Path, descriptor: int, command: str) -> None:
        self._descriptor = descriptor
        self._content: dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
        self.note(progress(path))  # what a process that was killed had written

    def note(self, progress: str) -> None:
        """Write how far the process has come, for others to read.

        Args:
            progress: A few words, such as ``12 of 40 epochs``.
        """
        self._content["progress"] = progress
        text = json.dumps(self._content).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def release(self, *paths: Path) -> None:
        """Let others take the lock.

        Args:
            paths: Where the lock's file may be by now; it is removed from there. Without any, it stays and says how
                far the process had come.
        """
        try:
            for path in paths:
                if _is_file_at(self._descriptor, path):
                    with suppress(OSError):  # a file that stays does no harm
                        path.unlink()
        finally:
            os.close(self._descriptor)


def take(path: Path, command: str, *, shown: Path | None = None, wait: bool = False) -> Lock:
    """Take a lock, or say who holds it.

    Args:
        path: The lock's file; it is made if it is missing.
        command: What this process does, such as ``train``.
        shown: The folder as the user knows it, for the error.
        wait: Wait until the lock is free.

    Raises:
        BlockingIOError: If another process holds the lock, and `wait` is not given.
        FileNotFoundError: If the folder is missing.
        OSError: If the file cannot be written, or its file system has no locks.
    """
    if fcntl is None:
        raise OSError(f"{path.parent} cannot be locked: this system has no POSIX file locks; on Windows, use WSL.")
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_file_at(descriptor, path):  # else its holder has removed or moved it while this process waited
                return Lock(path, descriptor, command)
        except BlockingIOError:
            os.close(descriptor)
            raise BlockingIOError(
                f"{shown or path.parent} is being written by {_holder(path)}; wait until it ends."
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    if fcntl is None or not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def progress(path: Path) -> str:
    """How far the process that holds or held a lock had come, or an empty text."""
    return str(_read(path).get("progress", ""))


def _holder(path: Path) -> str:
    content = _read(path)
    if not {"pid", "host", "command"} <= content.keys():
        return "another process"
    return f"process {content['pid']} on {content['host']} (pyro-bnn {content['command']})"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parsed(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return False
