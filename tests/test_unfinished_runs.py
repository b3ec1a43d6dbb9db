"""Two processes with one folder, processes that are killed, and runs that resume from a checkpoint."""

import os
import shutil
import signal
import sys
import warnings

import pytest

from pyro_bnn.app.folders import creating, find_run, resuming, updating
from pyro_bnn.app.manifest import CHECKPOINT, Manifest, verified

from .folders import NEW, OLD, content, make, make_good


@pytest.fixture
def good(tmp_path):
    return make_good(tmp_path / "run")


# --- two processes ----------------------------------------------------------------------------------------------------


def test_the_second_of_two_writers_is_refused_at_once(tmp_path):
    with creating(tmp_path / "run", command="train") as folder:
        folder.write_text("config.json", "first")
        for force in (False, True):
            with pytest.raises(
                BlockingIOError, match=rf"run is being written by process {os.getpid()} on .* \(pyro-bnn train\)"
            ):
                make(tmp_path / "run", force=force)
        folder.note("3 of 4 epochs")
        with pytest.raises(BlockingIOError, match="run is being trained: 3 of 4 epochs; wait"):
            find_run(tmp_path / "run")
    assert content(tmp_path / "run") == {"config.json": "first"}
    with (
        updating(tmp_path / "run", command="evaluate"),
        pytest.raises(BlockingIOError, match=r"run is being written by .*evaluate"),
        updating(tmp_path / "run", command="prune"),
    ):
        pass


def test_a_folder_that_another_command_writes_to_is_not_replaced(good):
    with updating(good, command="evaluate") as old:
        with pytest.raises(BlockingIOError, match=r"run is being written by .*evaluate.*; wait until it ends"):
            make(good, force=True)
        old.write_text("metrics.json", "old")
    assert content(good) == {**OLD, "metrics.json": "old"}
    make(good, force=True)
    assert content(good) == NEW


def forked(work):
    """The exit status of a copy of this process that does some work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: of threads, which the copy has no use for
        process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1]


def test_a_killed_process_leaves_no_lock(tmp_path):
    def work():
        with creating(tmp_path / "run", command="train") as folder:
            folder.write_text("config.json", "killed")
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(work) == signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == [".run.lock", ".run.part"]
    with pytest.raises(FileNotFoundError, match="run was stopped, and nothing of it is kept: only variational"):
        find_run(tmp_path / "run")
    make(tmp_path / "run")
    assert content(tmp_path / "run") == {"config.json": "new", "result.json": "new"}
    assert os.listdir(tmp_path) == ["run"]


def is_change(event, arguments):
    """Whether an event of the interpreter changes files."""
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")


def test_a_process_that_is_killed_at_any_change_of_a_file_loses_nothing(tmp_path, good):
    """After every change, with and without a command in between, the old or the new run exists and is complete."""

    def killed(out, number):
        def work():
            left = number

            def hook(event, arguments):
                nonlocal left
                if is_change(event, arguments):
                    left -= 1
                    if left == 0:
                        os._exit(9)

            sys.addaudithook(hook)
            make(out, force=True)

        return os.waitstatus_to_exitcode(forked(work)) == 9

    number, seen = 0, set()
    while True:
        number += 1
        out = tmp_path / str(number) / "run"
        shutil.copytree(good, out)
        was_killed = killed(out, number)
        if number % 2:
            found = content(find_run(out))
            assert found in (OLD, NEW), number
            seen.add(found["config.json"])
            for name in Manifest.read(out).files:
                verified(out, name)
        make(out, force=True)
        assert content(out) == NEW, number
        assert os.listdir(out.parent) == ["run"], number
        shutil.rmtree(out.parent)
        if not was_killed:
            break
    assert number > 25
    assert seen == {"old", "new"}


# --- unfinished runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(tmp_path):
    """A run that was stopped after 12 of 40 epochs."""

    def interrupted():
        with creating(tmp_path / "run", command="train") as folder:
            folder.write_text("config.json", "unfinished")
            (folder.path / CHECKPOINT).write_text("state")
            folder.note("12 of 40 epochs")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"stopped; `pyro-bnn train --resume .*run` continues it"):
        interrupted()
    return tmp_path / "run"


def test_an_unfinished_run_says_so_and_can_be_resumed(unfinished):
    for use in (find_run, make):
        with pytest.raises(
            (FileNotFoundError, FileExistsError),
            match=r"is not finished: 12 of 40 epochs; `pyro-bnn train --resume .*` continues it",
        ):
            use(unfinished)
    with pytest.raises(ZeroDivisionError), resuming(unfinished):
        raise ZeroDivisionError
    with resuming(unfinished) as folder:
        assert (folder.path / CHECKPOINT).read_text() == "state"
        assert folder.path.name == ".run.part"
        folder.write_text("result.json", "finished")
    assert content(unfinished) == {"config.json": "unfinished", "result.json": "finished"}
    assert os.listdir(unfinished.parent) == ["run"]
    with pytest.raises(FileExistsError, match="is finished: there is nothing to resume"), resuming(unfinished):
        pass


def test_what_cannot_be_resumed_says_why(tmp_path, unfinished):
    with pytest.raises(FileNotFoundError, match="holds no training run, finished or not"), resuming(tmp_path / "none"):
        pass
    (unfinished.parent / ".run.part" / CHECKPOINT).unlink()
    with (
        pytest.raises(FileNotFoundError, match="was stopped, and nothing of it is kept: only variational"),
        resuming(unfinished),
    ):
        pass


def test_force_begins_an_unfinished_run_anew(unfinished):
    make(unfinished, force=True)
    assert content(unfinished) == {"config.json": "new", "result.json": "new"}
    assert os.listdir(unfinished.parent) == ["run"]


def test_an_unfinished_run_is_not_begun_anew_over_somebody_elses_files(unfinished):
    (unfinished.parent / ".run.part" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"\.run\.part holds files that pyro-bnn did not write \(mine\.txt\)"):
        make(unfinished, force=True)
    assert (unfinished.parent / ".run.part" / "mine.txt").read_text() == "mine"
    assert (unfinished.parent / ".run.part" / CHECKPOINT).read_text() == "state"


def test_a_finished_folder_whose_place_was_taken_meanwhile_is_kept(tmp_path):

    def overtaken():
        with creating(tmp_path / "run", command="train") as folder:
            folder.write_text("config.json", "new")
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "mine.txt").write_text("mine")

    with pytest.raises(OSError, match=r"it was created in the meantime.*all files are in .*\.run\.part"):
        overtaken()
    assert content(tmp_path / "run") == {"mine.txt": "mine"}
    with pytest.raises(FileExistsError, match="exists"):
        make(tmp_path / "run")
    assert content(tmp_path / ".run.part") == {"config.json": "new"}
    shutil.rmtree(tmp_path / "run")
    assert content(find_run(tmp_path / "run")) == {"config.json": "new"}
