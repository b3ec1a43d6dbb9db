"""Folders that the program writes: locked, proven to be writable before anything is computed, and never half there."""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .._core.files import DamagedFileError
from . import exchange
from .exchange import CHECKPOINT, Place, locked, told
from .files import synchronise
from .manifest import PROGRESS, FileRecord, Manifest, has_manifest, part_of

__all__ = ["Folder", "creating", "find_run", "resuming", "updating"]


class Folder:
    """A folder that this process writes to. Each file appears whole, and the manifest lists it.

    Args:
        path: Where the files are written.
        place: Where the folder is, or will be at the end.
        manifest: The folder's manifest.
    """

    def __init__(self, path: Path, place: Place, manifest: Manifest) -> None:
        self.path, self.place, self.manifest = path, place, manifest

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """A context in which a file is written to the path that it yields; afterwards it is in its place, whole.

        Args:
            name: Name of the file.
        """
        self.claim(name)
        part = self.path / part_of(name)
        try:
            yield part
            synchronise(part)
            self.manifest.files[name] = FileRecord.of(part)
            os.replace(part, self.path / name)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def write_json(self, name: str, value: object) -> None:
        """Write plain data as readable JSON."""
        self.write_text(name, json.dumps(value, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text."""
        with self.new(name) as path:
            path.write_text(text, encoding="utf-8")

    def __contains__(self, name: str) -> bool:
        """Whether the program has written a file of this name, and it is there."""
        return name in self.manifest.files and (self.path / name).is_file()

    def discard(self, name: str) -> None:
        """Remove a file that the program wrote, if it is there."""
        if name in self:
            (self.path / name).unlink()
            del self.manifest.files[name]
            self.manifest.write(self.path)

    def claim(self, name: str) -> Path:
        """List a file as the program's before it is written, so that it is so even if the process is killed.

        Returns:
            Its path.
        """
        self.check_free(name)
        if name not in self.manifest.files or self.manifest.files[name] is not None:
            self.manifest.files[name] = None
            self.manifest.write(self.path)
        return self.path / name

    def check_free(self, *names: str) -> None:
        """Check that files may be written.

        Raises:
            FileExistsError: If one of them is there and the program has not written it.
        """
        for name in names:
            if name not in self.manifest.files and os.path.lexists(self.path / name):
                raise FileExistsError(
                    f"{self.place.shown / name} was not written by pyro-bnn; move it away or rename it."
                )

    def note(self, progress: str) -> None:
        """Say how far this process has come, to other commands; such as ``12 of 40 epochs``."""
        (self.path / PROGRESS).write_text(progress)

    def require(self, num_bytes: int) -> None:
        """Check that a disk has room.

        Raises:
            OSError: If it has less than so many bytes.
        """
        free = shutil.disk_usage(self.path).free
        if free < num_bytes:
            raise OSError(
                f"{self.place.shown} needs about {num_bytes / 1e6:.1f} MB, and its disk has {free / 1e6:.1f} MB left; "
                "make room or choose another --out."
            )

    def record(self) -> None:
        """Bring the manifest up to date: files that were claimed and not written are no longer listed."""
        for name in [name for name, record in self.manifest.files.items() if record is None]:
            path = self.path / name
            if path.is_file():
                self.manifest.files[name] = FileRecord.of(path)
            else:
                del self.manifest.files[name]
        self.manifest.write(self.path)


@contextmanager
def creating(out: str | Path, *, command: str, force: bool = False) -> Iterator[Folder]:
    """A context in which a folder is made; it is in its place only at the end, and complete.

    If the context ends with an exception, nothing of it stays, and an earlier folder is as it was; except that with a
    checkpoint in it the unfinished folder stays, for :func:`resuming`.

    Args:
        out: The folder.
        command: The command, such as ``train``.
        force: Replace an earlier folder of the program. Files in it that the program did not write move to the new one.

    Raises:
        FileExistsError: If the folder exists, and `force` is not given or it is not the program's.
        BlockingIOError: If another process makes the same folder.
        OSError: If the folder cannot be written.
    """
    place = Place.of(out)
    _check_target(place)
    made = _make_parents(place)
    try:
        with locked(place, command):
            exchange.settle(place)
            _check_free(place, force)
            folder = Folder(place.part, place, Manifest(command, replaces=force))
            try:
                with told(place):
                    place.part.mkdir()
                    folder.manifest.write(place.part)
                    if place.real.exists():
                        shutil.copymode(place.real, place.part)
                yield from _working(folder)
            finally:
                _tidy(place)
    finally:
        for parent in made:
            with suppress(OSError):  # not empty: it is in use
                parent.rmdir()


@contextmanager
def resuming(run: str | Path) -> Iterator[Folder]:
    """A context in which an unfinished training run goes on from its checkpoint; at the end it is in its place.

    Args:
        run: The folder that the finished run will be.

    Raises:
        FileNotFoundError: If there is no unfinished run.
        FileExistsError: If the run is finished.
        BlockingIOError: If another process goes on with it.
    """
    place = Place.of(run)
    if not place.part.is_dir():
        if has_manifest(place.real):
            raise FileExistsError(
                f"{run} is finished: there is nothing to resume; see it by `pyro-bnn evaluate {run}`."
            )
        raise FileNotFoundError(f"{run} holds no training run, finished or not; make one with `pyro-bnn train`.")
    with locked(place, "train"):
        exchange.settle(place)
        if not place.part.exists():
            raise FileExistsError(
                f"{run} is finished: there is nothing to resume; see it by `pyro-bnn evaluate {run}`."
            )
        if not exchange.is_resumable(place.part):
            raise FileNotFoundError(f"{run} was stopped before its first checkpoint; train it anew.")
        folder = Folder(place.part, place, Manifest.read(place.part))
        if place.real.exists() and not folder.manifest.replaces:
            raise FileExistsError(f"{run} has come into being since the unfinished run began; move it away.")
        yield from _working(folder)


@contextmanager
def updating(run: str | Path, *, command: str, writes: Sequence[str] = ()) -> Iterator[Folder]:
    """A context in which files are added to a finished folder, or replaced in it.

    Args:
        run: The folder.
        command: The command, such as ``evaluate``.
        writes: Names of the files that may be written.

    Raises:
        FileNotFoundError: If there is no such folder.
        FileExistsError: If one of the files is there and the program has not written it.
        BlockingIOError: If another process writes to the folder.
        OSError: If the folder cannot be written.
    """
    place = Place.of(find_run(run))
    with locked(place, command):
        with told(place):
            if not _is_writable(place.real):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place.real))
        folder = Folder(place.real, place, Manifest.read(place.real))
        folder.check_free(*writes)
        try:
            yield folder
        finally:
            folder.record()


def find_run(run: str | Path) -> Path:
    """The folder of a finished run, unchanged. What a killed process has left half done is finished first.

    Raises:
        FileNotFoundError: If there is none; the message says whether there is an unfinished one.
        BlockingIOError: If it is being made.
    """
    place = Place.of(run)
    part = exchange.manifest_of(place.part)
    if place.old.exists() or (part is not None and part.is_finished):
        with locked(place, "train"):
            exchange.settle(place)
    if has_manifest(place.real):
        return Path(run)
    if part is None or place.real.exists():
        raise FileNotFoundError(
            f"{run} holds no training run: there is no {Path(run) / 'manifest.json'}; make one with `pyro-bnn train`."
        )
    state = _progress(place) or "its training has begun"
    if exchange.is_locked(place):
        raise BlockingIOError(f"{run} is being trained: {state}; wait until it is finished.")
    if exchange.is_resumable(place.part):
        raise FileNotFoundError(f"{run} is not finished: {state}; `pyro-bnn train --resume {run}` goes on.")
    raise FileNotFoundError(f"{run} was stopped before its first checkpoint; train it anew.")


def _working(folder: Folder) -> Iterator[Folder]:
    """Yield the folder, and put it in its place afterwards."""
    place = folder.place
    try:
        yield folder
    except KeyboardInterrupt as error:
        if exchange.is_resumable(place.part):
            raise KeyboardInterrupt(f"stopped; `pyro-bnn train --resume {place.shown}` goes on.") from error
        raise
    for name in (CHECKPOINT, PROGRESS):
        (place.part / name).unlink(missing_ok=True)
    folder.manifest.is_finished = True
    folder.record()
    exchange.publish(place)


def _tidy(place: Place) -> None:
    """Remove what is left of the hidden folder, unless it is of use."""
    with suppress(OSError, ValueError):  # what cannot be removed stays; its manifest says whose it is
        manifest = exchange.manifest_of(place.part)
        if place.part.is_dir() and not (manifest and manifest.is_finished) and not exchange.is_resumable(place.part):
            exchange.clear(place.part)


def _progress(place: Place) -> str:
    """How far an unfinished run has come, or an empty text."""
    try:
        return (place.part / PROGRESS).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _check_target(place: Place) -> None:
    """Raise if a folder can never be made at a place."""
    shown, real = place.shown, place.real
    if real.exists() and not real.is_dir():
        raise FileExistsError(f"{shown} is a file; choose another --out.")
    here = Path.cwd().resolve()
    if real == here or real in here.parents:
        raise FileExistsError(f"{shown} is or holds the folder you are in; choose another --out.")
    if os.path.ismount(real):
        raise FileExistsError(f"{shown} is a mounted disk; choose a folder in it, such as {shown / 'run'}.")


def _check_free(place: Place, force: bool) -> None:
    """Raise if something is at a place that is not to be replaced; else remove what a killed process left there."""
    part, shown = place.part, place.shown
    if os.path.lexists(part) and not exchange.is_ours(part):
        raise FileExistsError(f"{part} is in the way; move it away or choose another --out.")
    if exchange.is_resumable(part) and not force:
        state = _progress(place) or "it has a checkpoint"
        raise FileExistsError(
            f"{shown} is not finished: {state}; `pyro-bnn train --resume {shown}` goes on, and --force begins anew."
        )
    if place.real.exists() and any(place.real.iterdir()):
        if not force:
            raise FileExistsError(f"{shown} exists; choose another --out, or pass --force to replace it.")
        if not has_manifest(place.real):
            raise FileExistsError(
                f"{shown} was not made by pyro-bnn (it has no manifest.json); --force will not replace it."
            )
        try:
            Manifest.read(place.real)
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{shown / 'manifest.json'} is damaged, and it is not known which files in {shown} are pyro-bnn's; "
                "move that folder away."
            ) from error
        if not _is_writable(place.real):
            raise PermissionError(f"{shown} cannot be replaced: permission denied; choose another --out.")
    manifest = exchange.manifest_of(part)
    if manifest is not None and manifest.is_finished:
        raise FileExistsError(f"{part} holds a finished run that could not be moved to its place; move it away.")
    if os.path.lexists(place.old):
        raise FileExistsError(f"{place.old} is in the way; move it away or choose another --out.")
    if part.exists():
        exchange.check_alone(part)
        exchange.clear(part)


def _make_parents(place: Place) -> list[Path]:
    """Make the folders above a place; returns those that were made, the innermost first."""
    missing = [parent for parent in place.real.parents if not os.path.lexists(parent)]
    with told(place):
        place.real.parent.mkdir(parents=True, exist_ok=True)
    return missing
