"""Folders that commands write, most of them made without the computation."""

from pyro_bnn.app import runs
from pyro_bnn.app.folders import creating


def train_run(config, data, out):
    """Train as configured; returns the model and the posterior."""
    with creating(out, command="train") as folder:
        return runs.fit(config, data, folder)


def make(out, text="new", *, force=False, names=("config.json", "result.json")):
    """A folder with a few files."""
    with creating(out, command="train", force=force) as folder:
        for name in names:
            folder.write_text(name, text)


def fail(out, *names, error=ZeroDivisionError, **options):
    """Write some files to a folder, and fail."""
    with creating(out, command="train", **options) as folder:
        for name in names:
            folder.write_text(name, "new")
        raise error


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file() and path.name != "manifest.json"}


OLD = {"config.json": "old", "result.json": "old", "old.json": "old", "thesis.txt": "thesis"}
NEW = {"config.json": "new", "result.json": "new", "thesis.txt": "thesis"}


def make_good(out):
    """An earlier run, and in its folder a file of another program."""
    make(out, "old", names=("config.json", "result.json", "old.json"))
    (out / "thesis.txt").write_text("thesis")
    return out
