"""Folders that commands write: no result is lost, and files of other programs do not change."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

from pyro_bnn.app import manifest
from pyro_bnn.app.folders import creating, find_run, updating
from pyro_bnn.app.manifest import verified

from .folders import NEW, OLD, content, fail, make, make_good


@pytest.fixture
def good(tmp_path):
    return make_good(tmp_path / "run")


def test_a_folder_is_there_only_when_it_is_complete(tmp_path):
    out = tmp_path / "a" / "run"
    with creating(out, command="train") as folder:
        folder.write_json("config.json", {"seed": 1})
        assert not out.exists()
    assert sorted(os.listdir(out)) == ["config.json", "manifest.json"]
    assert os.listdir(out.parent) == ["run"]
    assert verified(out, "config.json").read_text() == '{\n "seed": 1\n}\n'


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path / "a" / "b" / "run", "config.json")
    assert os.listdir(tmp_path) == []


def test_force_replaces_what_the_program_wrote_and_keeps_the_rest(good):
    (good / "plots").mkdir()
    make(good / "plots" / "nested")
    (good / "link").symlink_to("/nowhere")
    make(good, force=True)
    assert content(good) == NEW
    assert content(good / "plots" / "nested") == {"config.json": "new", "result.json": "new"}
    assert (good / "link").readlink() == Path("/nowhere")
    assert os.listdir(good.parent) == ["run"]


def test_a_strangers_file_of_the_same_name_is_not_replaced(good):
    (good / "extra.json").write_text("mine")
    with pytest.raises(FileExistsError, match=r"run/extra\.json was not written by pyro-bnn; move it away"):
        make(good, force=True, names=("config.json", "extra.json"))
    assert content(good) == {**OLD, "extra.json": "mine"}
    assert os.listdir(good.parent) == ["run"]


def test_a_strangers_file_that_comes_meanwhile_is_kept(good):
    def overtaken():
        with creating(good, command="train", force=True) as folder:
            folder.write_text("extra.json", "new")
            (good / "extra.json").write_text("mine")

    with pytest.raises(OSError, match=r"did not write extra\.json there\); all files are in .*\.run\.part"):
        overtaken()
    assert content(good) == {**OLD, "extra.json": "mine"}
    assert content(good.parent / ".run.part") == {"extra.json": "new"}
    (good / "extra.json").unlink()
    assert content(find_run(good)) == {"extra.json": "new", "thesis.txt": "thesis"}


def test_a_failure_with_force_leaves_the_earlier_folder(good):
    with pytest.raises(ZeroDivisionError):
        fail(good, "config.json", force=True)
    assert content(good) == OLD
    assert os.listdir(good.parent) == ["run"]


# --- targets that are refused -----------------------------------------------------------------------------------------


def a_file(base):
    (base / "run").write_text("text")


def a_dangling_link(base):
    (base / "run").symlink_to("nowhere")


def a_circle(base):
    (base / "run").symlink_to(base / "run")


def somebody_elses_folder(base):
    (base / "run").mkdir()
    (base / "run" / "config.json").write_text("{}")


def a_file_above(base):
    (base / "above").write_text("text")


def a_hidden_folder_in_the_way(base):
    (base / ".run.part").mkdir()
    (base / ".run.part" / "mine.txt").write_text("text")


def nothing(base):
    pass


def a_damaged_manifest(base):
    make(base / "run")
    (base / "run" / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    ("before", "out", "message"),
    [
        (a_file, "run", "run is a file; choose another --out"),
        (a_dangling_link, "run", "run is a link to nowhere, which is not there; remove the link"),
        (a_circle, "run", "run is a link to .*run, which is not there; remove the link"),
        (somebody_elses_folder, "run", "run was not made by pyro-bnn"),
        (a_file_above, "above/run", r"above/run cannot be written \(.*above.*\); choose another"),
        (a_hidden_folder_in_the_way, "run", r"\.run\.part is in the way"),
        (a_damaged_manifest, "run", "manifest.json is damaged, so pyro-bnn cannot tell which files"),
        (nothing, ".", "is or holds the folder you are in"),
        (nothing, "..", "is or holds the folder you are in"),
        (nothing, "/", "is or holds the folder you are in"),
        (nothing, "~", "is or holds the folder you are in"),
        (nothing, "/proc", "is a mounted disk; choose a folder in it"),
        (nothing, "n" * 250, "file name too long"),
        (nothing, "bad\udcff", "must be in UTF-8"),
    ],
)
@pytest.mark.parametrize("force", [True, False])
def test_a_target_that_cannot_be_is_refused_before_anything_happens(tmp_path, monkeypatch, before, out, message, force):
    base = tmp_path / "base"
    base.mkdir()
    before(base)
    monkeypatch.chdir(base)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = sorted(os.walk(tmp_path))
    if not force and (base / "run").is_dir():
        message = "run exists; choose another --out, or pass --force"
    with pytest.raises((OSError, ValueError), match=message):
        make(Path(out).expanduser(), force=force)
    assert sorted(os.walk(tmp_path)) == found


def test_an_empty_folder_is_taken_and_a_link_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    make(tmp_path / "run", "old")
    make(tmp_path / "run", force=True)
    assert (tmp_path / "run").is_symlink()
    assert content(tmp_path / "disk") == {"config.json": "new", "result.json": "new"}
    assert sorted(os.listdir(tmp_path)) == ["disk", "run"]


@pytest.fixture
def ordinary_user():
    """A folder of a user without privileges, who runs the test."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)  # nobody
    base = Path(tempfile.mkdtemp())
    yield base
    for path in (base, *base.iterdir()):
        path.chmod(0o777)
    shutil.rmtree(base)
    if is_root:
        os.seteuid(0)


def test_what_may_not_be_written_is_refused_at_once(ordinary_user):
    make(ordinary_user / "run", "old")
    (ordinary_user / "run").chmod(0o555)
    with pytest.raises(OSError, match="run cannot be replaced: permission denied"):
        make(ordinary_user / "run", force=True)
    with (
        pytest.raises(OSError, match=r"run cannot be written \(permission denied: .*\); choose another folder"),
        updating(ordinary_user / "run", command="evaluate"),
    ):
        pass
    ordinary_user.chmod(0o555)
    for out in ("other", "run"):
        with pytest.raises(OSError, match=rf"{out} cannot be written \(permission denied: .*\); choose another folder"):
            make(ordinary_user / out, force=True)
    assert content(ordinary_user / "run") == {"config.json": "old", "result.json": "old"}


def test_a_full_disk_loses_nothing(good, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with creating(good, command="train", force=True) as folder:
            folder.write_text("config.json", "new")
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
            with pytest.raises(OSError, match="File too large"):
                folder.write_text("result.json", "new" * 5_000)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert content(good) == OLD
    assert os.listdir(good.parent) == ["run"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 10_000_000))
    with creating(good.parent / "other", command="train") as folder:
        folder.require(9_000_000)
        with pytest.raises(OSError, match=r"other needs about 11\.0 MB, and its disk has 10\.0 MB left"):
            folder.require(11_000_000)


# --- additions to a finished run --------------------------------------------------------------------------------------


def test_additions_do_not_replace_somebody_elses_files(good):
    (good / "metrics.json").write_text("mine")
    with (
        pytest.raises(FileExistsError, match=r"run/metrics\.json was not written by pyro-bnn; move it"),
        updating(good, command="evaluate", writes=("metrics.json",)),
    ):
        pytest.fail("it is refused before anything is computed")
    with pytest.raises(FileExistsError), updating(good, command="evaluate") as folder:
        folder.write_text("metrics.json", "ours")
    assert content(good) == {**OLD, "metrics.json": "mine"}


def test_an_addition_that_fails_leaves_the_earlier_file(good):
    with updating(good, command="evaluate") as folder:
        folder.write_text("metrics.json", "first")

    def failing():
        with updating(good, command="evaluate") as folder, folder.new("metrics.json") as path:
            path.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert content(good) == {**OLD, "metrics.json": "first"}
    assert verified(good, "metrics.json").read_text() == "first"


def test_a_system_without_locks_is_refused_politely(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "fcntl", None)
    with pytest.raises(OSError, match="this system has no POSIX file locks; on Windows, use WSL"):
        make(tmp_path / "run")
