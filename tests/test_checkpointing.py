"""Long computations write their state at intervals, and stop cleanly after a signal."""

import os
import signal
import threading
from pathlib import Path

import pytest

from pyro_bnn._core.checkpointing import Checkpoint, Interrupted, keeping, stopping
from pyro_bnn._core.files import read_state


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_computation_after_its_step_with_its_state_written(tmp_path, number):
    before = handlers()
    done = []

    def compute():
        with keeping(tmp_path / "file", "fit") as keeper:
            for step in range(5):
                if step == 2:
                    os.kill(os.getpid(), number)
                done.append(step)
                keeper.step(lambda: {"done": done})

    with pytest.raises(Interrupted, match=r"call again with the same arguments and `resume='.*file'`") as caught:
        compute()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert read_state(tmp_path / "file", "fit") == {"done": [0, 1, 2]}
    assert handlers() == before


def test_a_second_signal_acts_at_once():
    before, seen = handlers(), []

    def compute():
        with stopping() as is_asked:
            os.kill(os.getpid(), signal.SIGINT)
            seen.append(is_asked())
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("the second signal did nothing")

    with pytest.raises(KeyboardInterrupt) as caught:
        compute()
    assert seen == [True]
    assert not isinstance(caught.value, Interrupted)
    assert handlers() == before


def test_without_a_checkpoint_and_outside_the_main_thread_signals_act_as_before(tmp_path):
    before, seen = handlers(), []
    with keeping(None, "fit") as keeper:
        assert handlers() == before
        keeper.step(lambda: seen.append("state") or {})
        keeper.write(lambda: seen.append("state") or {})

    def compute():
        with keeping(Checkpoint(tmp_path / "file", minutes=0), "fit") as keeper:
            seen.append(handlers())
            keeper.step(dict)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert seen == [before]
    assert (tmp_path / "file").exists()


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping() as is_asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert not is_asked()
    finally:
        signal.signal(signal.SIGINT, before)


def test_states_are_written_every_so_many_minutes(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    written = []
    with keeping(Checkpoint(tmp_path / "file", minutes=2), "fit") as keeper:
        for step in range(10):
            now[0] += 30
            keeper.step(lambda step=step: written.append(step) or {})
    assert written == [3, 7]


def test_what_would_be_lost_or_could_not_be_written_is_refused_before_the_computation(tmp_path):
    def run(path, resume=None):
        with keeping(path, "fit", resume) as keeper:
            keeper.write(dict)

    run(tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    with pytest.raises(FileExistsError, match=r"to resume from it, pass `resume='.*file'`"):
        run(tmp_path / "file")
    with pytest.raises(FileExistsError):
        run(tmp_path / "file", resume=tmp_path / "other")
    assert (tmp_path / "file").read_bytes() == content
    run(tmp_path / "file", resume=str(tmp_path / "file"))
    with pytest.raises(FileExistsError):
        run(tmp_path)
    with pytest.raises(FileNotFoundError, match="must lie in an existing folder"):
        run(tmp_path / "missing" / "file")
    with pytest.raises(OSError, match="choose another folder"):
        run(Path("/proc/file"))
    with pytest.raises(ValueError, match="`checkpoint` must be a path or a Checkpoint, got 3"):
        run(3)
    with pytest.raises(ValueError, match="`minutes` must be a number of at least 0, got -1"):
        Checkpoint("file", minutes=-1)


@pytest.mark.parametrize("name", ["circle", "n" * 300, "null\0"])
def test_a_path_that_cannot_be_is_refused_before_the_computation(tmp_path, name):
    (tmp_path / "circle").symlink_to("circle")
    with (
        pytest.raises(OSError, match=r"`checkpoint` cannot be '.*; choose another path"),
        keeping(tmp_path / name, "fit"),
    ):
        pass
