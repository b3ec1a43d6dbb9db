"""The manifest of a folder: which files in it the program wrote, and their checksums."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import Field

from .._core.files import DamagedFileError, write_atomically
from .validation import STRICT, checked, parsed

__all__ = ["MANIFEST", "PROGRESS", "FileRecord", "Manifest", "digest", "has_manifest", "verified"]

MANIFEST = "manifest.json"
PART, PROGRESS = ".part-", ".progress"
"""Beginning of names of files that are being written, and the file that says how far a command has come."""

FORMAT = "pyro_bnn folder"
VERSION = 1
"""Version of manifests; a folder with a later one is refused."""


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Names that the program gives to files: none reaches out of its folder, is hidden, or is too long for a disk."""


@dataclass(frozen=True)
class FileRecord:
    """What a file must be.

    Args:
        size: Number of bytes.
        sha256: Checksum of the content, as hexadecimal digits.
    """

    __pydantic_config__ = STRICT

    size: Annotated[int, Ge(0)]
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """The record of a file as it is."""
        return cls(path.stat().st_size, digest(path))


@dataclass
class Manifest:
    """The files that the program wrote to a folder. All others are not the program's, and it does not delete them.

    Args:
        command: The command that made the folder.
        is_finished: Whether the command has ended well.
        replaces: Whether the folder shall take the place of an earlier one.
        files: Each file by its name; None for one that is still being written.
    """

    __pydantic_config__ = STRICT

    command: str
    is_finished: bool = False
    replaces: bool = False
    files: dict[FileName, FileRecord | None] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the manifest to a folder.

        Raises:
            OSError: If it cannot be written.
        """
        content = {
            "format": FORMAT,
            "version": VERSION,
            "command": self.command,
            "is_finished": self.is_finished,
            "replaces": self.replaces,
            "files": {name: record and vars(record) for name, record in sorted(self.files.items())},
        }
        text = json.dumps({**content, "sha256": _digest_of(content)}, indent=1) + "\n"
        write_atomically(folder / MANIFEST, lambda file: file.write(text.encode()))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder.

        Raises:
            FileNotFoundError: If the folder has none.
            DamagedFileError: If it is damaged.
            ValueError: If it is of a later version.
        """
        path = folder / MANIFEST
        try:
            content = parsed(path.read_bytes())
            is_whole = content.pop("sha256") == _digest_of(content) and content.pop("format") == FORMAT
            version = content.pop("version")
            is_later = is_whole and type(version) is int and version > VERSION
            manifest = cls("") if is_later else checked(cls, content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedFileError(_is_damaged(path)) from error
        if is_later:
            raise ValueError(f"{folder} was written by a later version of pyro-bnn; install that one.")
        is_known = type(version) is int and version == VERSION and content.keys() == {*vars(manifest)}
        if not (is_whole and is_known) or MANIFEST in manifest.files:
            raise DamagedFileError(_is_damaged(path))
        return manifest

    def lists(self, name: str) -> bool:
        """Whether a file of this name is the program's, or would be taken for one."""
        return name in (*self.files, MANIFEST, PROGRESS) or name.startswith(PART)

    def own(self, folder: Path) -> Iterator[Path]:
        """The program's files in a folder, the manifest last; also what a killed process has left of them."""
        for name in [*self.files, PROGRESS, MANIFEST]:
            left = [*folder.glob(f".{name}.*.part"), folder / part_of(name), folder / name]
            yield from (path for path in left if path.is_symlink() or path.is_file())


def part_of(name: str) -> str:
    """Name of a file while it is being written; its ending is that of the file."""
    return f"{PART}{name}"


def has_manifest(folder: Path) -> bool:
    """Whether a folder is one of the program's."""
    return (folder / MANIFEST).is_file()


def verified(folder: str | Path, name: str) -> Path:
    """The path of a file of a folder, after its checksum was verified.

    Args:
        folder: The folder.
        name: Name of the file.

    Raises:
        FileNotFoundError: If the folder has no manifest.
        DamagedFileError: If the file is missing, damaged or was edited.
    """
    path = Path(folder) / name
    record = Manifest.read(Path(folder)).files.get(name)
    if record is None or not path.is_file():
        raise DamagedFileError(f"{path} is missing; take it from a copy of the folder, or make the folder anew.")
    if record != FileRecord.of(path):
        raise DamagedFileError(_is_damaged(path))
    return path


def digest(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        result = hashlib.sha256()
        while block := file.read(1 << 20):
            result.update(block)
    return result.hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_damaged(path: Path) -> str:
    return (
        f"{path} is damaged or was edited: its checksum does not fit its content; take it from a copy of the folder, "
        "or make the folder anew (settings are options of `pyro-bnn train`)."
    )
