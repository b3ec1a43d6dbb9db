"""Folders and files that the program writes."""

import json
from pathlib import Path

__all__ = ["check_target", "write_json"]


def check_target(out: Path, force: bool) -> None:
    """Check that a run may be written to a folder, before hours of training, and make the folder's parent.

    Args:
        out: The folder.
        force: Whether an earlier run there may be replaced.

    Raises:
        FileExistsError: If the folder exists, and either `force` is not given or the folder holds no run.
    """
    if out.exists():
        if not force:
            raise FileExistsError(f"{out} exists; choose another --out, or pass --force to replace it.")
        if not (out / "config.json").is_file():
            raise FileExistsError(f"{out} is no training run (it has no config.json); --force will not replace it.")
    out.parent.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write plain data as readable JSON."""
    path.write_text(json.dumps(value, indent=1) + "\n")
