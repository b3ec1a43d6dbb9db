"""Folders that the program writes. A folder appears at its path only when it is complete.

The folder ``NAME`` is first written as ``.NAME.part`` beside it, while the lock ``.NAME.lock`` is held. At the end,
``.NAME.part`` is renamed to ``NAME``. An earlier folder ``NAME`` is replaced; files that other programs wrote there are
first moved to ``.NAME.part``. If the process is killed during the replacement, the next command on ``NAME`` finishes
it.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .._core.files import DamagedFileError, synchronise
from .manifest import CHECKPOINT, MANIFEST, PART, PROGRESS, Manifest, Place, checksum, has_manifest, locked, told
from .remedies import no_run, quote

PNG = ".png"  # ending of all pictures in lists of files, replaced by the folder's picture format when one is written
NOTHING_KEPT = (
    "was stopped, and nothing of it is kept: only variational fits (--method svi) can be resumed; run the same "
    "`pyro-bnn train` command again."
)
"""What to say about an unfinished run without a checkpoint."""


@dataclass
class Folder:
    """A folder to which this process writes. Each file appears in the folder only after it has been written whole."""

    path: Path  # where the files are written
    place: Place  # its final path
    manifest: Manifest
    picture_format: str = "png"  # ending of the files of pictures

    def in_format(self, name: str) -> str:
        """Return the file's name. The name of a picture gets the ending of the folder's picture format."""
        return f"{name.removesuffix(PNG)}.{self.picture_format}" if name.endswith(PNG) else name

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Yield a temporary path to write to. Rename the file to `name` if the `with` block ends without an error."""
        self.check_free(name)
        part = self.path / f"{PART}{name}"
        try:
            yield part
            synchronise(part)
            self.manifest.files[name] = checksum(part)
            self.manifest.write(self.path)
            part.replace(self.path / name)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def write_json(self, name: str, value: object) -> None:
        """Write plain data to a file as JSON with line breaks."""
        self.write_text(name, json.dumps(value, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text to a file in UTF-8."""
        with self.new(name) as path:
            path.write_text(text, encoding="utf-8")

    def __contains__(self, name: str) -> bool:
        return name in self.manifest.files and (self.path / name).is_file()

    def discard(self, name: str) -> None:
        """Remove a file, if the program wrote it and it still exists."""
        if name in self:
            (self.path / name).unlink()
            del self.manifest.files[name]
            self.manifest.write(self.path)

    def check_free(self, *names: str) -> None:
        """Raise FileExistsError if another program wrote a file with a name in `names`.

        The file may be in this folder, or in the earlier folder that this folder will replace.
        """
        earlier = _manifest_of(self.place.real) or Manifest("")
        for name in names:
            for folder, manifest in ((self.path, self.manifest), (self.place.real, earlier)):
                if name not in manifest.files and os.path.lexists(folder / name):
                    raise FileExistsError(
                        f"{self.place.shown / name} was not written by pyro-bnn; move it away or rename it."
                    )

    def note(self, progress: str) -> None:
        """Store the progress, such as ``12 of 40 epochs``, for messages of other commands."""
        (self.path / PROGRESS).write_text(progress)

    def require(self, num_bytes: int) -> None:
        """Raise OSError if the disk has no room for `num_bytes` bytes."""
        free = shutil.disk_usage(self.path).free
        if free < num_bytes:
            raise OSError(
                f"{self.place.shown} needs about {num_bytes / 1e6:.1f} MB, and its disk has {free / 1e6:.1f} MB left; "
                "make room or choose another --out."
            )


@contextmanager
def creating(out: str | Path, *, command: str, force: bool = False, picture_format: str = "png") -> Iterator[Folder]:
    """Yield a new folder to write to, which appears at the path `out` at the end of the `with` block.

    After an exception, an earlier folder at `out` is unchanged, and the new folder is kept only if it has a checkpoint.
    """
    place = Place.of(out)
    _check_target(place)
    made = [parent for parent in place.real.parents if not os.path.lexists(parent)]
    with told(place):
        place.real.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(place, command):
            _settle(place)
            _make_room(place, force)
            manifest = Manifest(command, replaces=force)
            try:
                with told(place):
                    place.part.mkdir()
                    manifest.write(place.part)
                    if place.real.exists():
                        shutil.copymode(place.real, place.part)
                yield from _working(Folder(place.part, place, manifest, picture_format))
            finally:
                with suppress(OSError, ValueError):  # files that cannot be removed stay, with their manifest
                    if not manifest.is_finished and not is_resumable(place):
                        _clear(place.part, manifest)
    finally:
        for parent in made:
            with suppress(OSError):  # the parent is not empty
                parent.rmdir()


@contextmanager
def resuming(run: str | Path) -> Iterator[Folder]:
    """Yield the folder of an unfinished training run. The folder gets its final name at the end of the `with` block."""
    place = Place.of(run)
    if not place.part.is_dir() and not has_manifest(place.real):
        raise no_run(run, ", finished or not")
    with locked(place, "train"):
        _settle(place)
        if not place.part.exists():
            raise FileExistsError(
                f"{run} is finished: there is nothing to resume; evaluate it with `pyro-bnn evaluate {quote(run)}`."
            )
        if not is_resumable(place):
            raise FileNotFoundError(f"{run} {NOTHING_KEPT}")
        folder = Folder(place.part, place, Manifest.read(place.part))
        if place.real.exists() and not folder.manifest.replaces:
            raise FileExistsError(f"{run} was created after the unfinished run began; move it away.")
        yield from _working(folder)


@contextmanager
def updating(
    run: str | Path, *, command: str, writes: Sequence[str] = (), picture_format: str = "png"
) -> Iterator[Folder]:
    """Yield a finished folder to write to.

    `writes` has the names of the new files. Raise FileExistsError if another program wrote a file with such a name.
    """
    place = Place.of(find_run(run))
    with locked(place, command):
        folder = Folder(place.real, place, Manifest.read(place.real), picture_format)
        with told(place):
            folder.manifest.write(place.real)  # this tests that the folder is writable
        folder.check_free(*map(folder.in_format, writes))
        yield folder


def find_run(run: str | Path) -> Path:
    """Return the path `run`; raise if there is no finished run.

    If a killed process left a finished run under its temporary name, rename it first.
    """
    place = Place.of(run)
    part = _manifest_of(place.part)
    if part is not None and part.is_finished:
        with locked(place, "train"):
            _settle(place)
    if has_manifest(place.real):
        return Path(run)
    if part is None or place.real.exists():
        raise no_run(run, f": there is no {Path(run) / MANIFEST}")
    try:
        with locked(place, "look"):
            pass
    except BlockingIOError:
        raise BlockingIOError(f"{run} is being trained: {_progress(place)}; wait until it is finished.") from None
    if is_resumable(place):
        raise FileNotFoundError(
            f"{run} is not finished: {_progress(place)}; `pyro-bnn train --resume {quote(run)}` continues it."
        )
    raise FileNotFoundError(f"{run} {NOTHING_KEPT}")


def is_resumable(place: Place) -> bool:
    """Return whether the unfinished folder of a path exists and contains a checkpoint."""
    manifest = _manifest_of(place.part)
    return manifest is not None and not manifest.is_finished and (place.part / CHECKPOINT).is_file()


def _working(folder: Folder) -> Iterator[Folder]:
    """Yield an unfinished folder to write to, and rename it to its final name at the end."""
    place = folder.place
    try:
        yield folder
    except KeyboardInterrupt as error:
        if is_resumable(place):
            raise KeyboardInterrupt(
                f"stopped; `pyro-bnn train --resume {quote(place.shown)}` continues it. Until then, its files are in "
                f"the hidden folder {place.part.name}."
            ) from error
        if folder.manifest.command == "train":
            raise KeyboardInterrupt(f"{place.shown} {NOTHING_KEPT}") from error
        raise
    folder.manifest.is_finished = True
    folder.manifest.write(place.part)
    _publish(place, folder.manifest)


def _settle(place: Place) -> None:
    """Rename a finished folder that a killed process left under its temporary name. The caller must hold the lock."""
    manifest = _manifest_of(place.part)
    if manifest is not None and manifest.is_finished and (manifest.replaces or not place.real.exists()):
        _publish(place, manifest)


def _publish(place: Place, manifest: Manifest) -> None:
    """Rename the finished folder `place.part` to its final name. The caller must hold the lock."""
    try:
        for name in (CHECKPOINT, PROGRESS):
            (place.part / name).unlink(missing_ok=True)
        if place.real.exists() and any(place.real.iterdir()):
            earlier = _manifest_of(place.real)
            if earlier is None or not manifest.replaces:
                raise OSError(errno.ENOTEMPTY, "it was created in the meantime")
            for name in earlier.others(place.real):
                if os.path.lexists(place.part / name):
                    raise OSError(errno.EEXIST, f"pyro-bnn did not write {name} there")
                (place.real / name).rename(place.part / name)
            _clear(place.real, earlier)
        place.part.rename(place.real)
        synchronise(place.real.parent)
    except OSError as error:
        raise OSError(
            f"{place.shown} cannot be written ({error.strerror or error}); all files are in {place.part}: move that "
            "folder to where you want it."
        ) from error


def _clear(folder: Path, manifest: Manifest) -> None:
    """Remove the program's files from a folder, and also remove the folder if no other file is in it."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):  # the manifest last
        if manifest.owns(path):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _manifest_of(folder: Path) -> Manifest | None:
    return Manifest.read(folder) if has_manifest(folder) else None


def _progress(place: Place) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return (place.part / PROGRESS).read_text()
    return "its training has begun"


def _check_target(place: Place) -> None:
    """Raise if a path cannot become a folder."""
    shown, real = place.shown, place.real
    if real.exists() and not real.is_dir():
        raise FileExistsError(f"{shown} is a file; choose another --out.")
    here = Path.cwd().resolve()
    if real == here or real in here.parents:
        raise FileExistsError(f"{shown} is or holds the folder you are in; choose another --out.")
    if os.path.ismount(real):
        raise FileExistsError(f"{shown} is a mounted disk; choose a folder in it, such as {shown / 'run'}.")


def _make_room(place: Place, force: bool) -> None:
    """Raise if an earlier folder must not be replaced. Otherwise remove `place.part` if a killed process left it."""
    part, shown = place.part, place.shown
    manifest = _manifest_of(part) or Manifest("")
    others = manifest.others(part) if part.is_dir() else []
    is_ours = part.is_dir() and not part.is_symlink() and (has_manifest(part) or not others)
    if os.path.lexists(part) and not is_ours:
        raise FileExistsError(f"{part} is in the way; move it away or choose another --out.")
    if is_resumable(place) and not force:
        raise FileExistsError(
            f"{shown} is not finished: {_progress(place)}; `pyro-bnn train --resume {quote(shown)}` continues it, and "
            "--force starts again."
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
                f"{shown / MANIFEST} is damaged, so pyro-bnn cannot tell which files in {shown} it wrote; move that "
                "folder away."
            ) from error
        if not os.access(place.real, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(f"{shown} cannot be replaced: permission denied; choose another --out.")
    if manifest.is_finished:
        raise FileExistsError(f"{part} holds a finished run that could not be moved to its place; move it away.")
    if others:
        raise FileExistsError(f"{part} holds files that pyro-bnn did not write ({', '.join(others)}); move them away.")
    if part.exists():
        _clear(part, manifest)
