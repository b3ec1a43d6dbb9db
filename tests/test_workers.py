"""Jobs in several processes: results, errors, deaths and interruptions."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn._core.workers import WorkerError, side_by_side

SECONDS = 120
"""Time for a process to start on a busy machine."""


def wait_for(path):
    end = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def together(index, path, act):
    """A job that runs in a worker process at least once: this process waits for it."""
    if os.getpid() == int(path.name):
        wait_for(path / "met")
        return index, os.getpid()
    (path / "met").touch()
    return act(index)


def pid_and_state(index):
    return index, os.getpid(), torch.get_num_threads(), torch.tensor([0.5]).dtype


class OwnError(Exception):
    """An error that cannot be made from its message, and so cannot be pickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def fail(index):
    raise ValueError(f"no luck with {index}")


def fail_in_a_way_of_its_own(index):
    raise OwnError("one", "two")


def die(index):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def place(tmp_path):
    """A folder with the name of this process."""
    path = tmp_path / str(os.getpid())
    path.mkdir()
    return path


def run(place, act, count=4):
    done = []
    job = functools.partial(together, path=place, act=act)
    found = side_by_side(job, count, num_workers=2, num_threads=1, done=lambda: done.append(1))
    assert len(done) == count
    return found


def test_other_processes_take_part_with_the_same_settings_of_torch(place):
    found = run(place, pid_and_state)
    assert [result[0] for result in found] == [0, 1, 2, 3]
    others = [result for result in found if result[1] != os.getpid()]
    assert others
    assert all(result[2:] == (1, torch.float64) for result in others)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        pytest.param(fail_in_a_way_of_its_own, RuntimeError, "OwnError: one and two", marks=pytest.mark.nightly),
        (die, WorkerError, r"ended by signal 9, perhaps for lack of memory .*; pass a smaller `num_workers`"),
    ],
)
def test_what_goes_wrong_in_a_worker_reaches_the_user(place, act, error, message):
    with pytest.raises(error, match=message):
        run(place, act)


def test_errors_of_a_worker_have_its_traceback(place):
    with pytest.raises(ValueError, match=r"^no luck with \d$") as caught:
        run(place, fail)
    assert "in fail\n" in str(caught.value.__cause__)


def test_one_process_starts_no_other_and_needs_no_copies():
    lock = threading.Lock()  # cannot be copied

    def job(index):
        return index, lock.locked()

    assert side_by_side(job, 2, num_workers=1, num_threads=1) == [(0, False), (1, False)]
    with pytest.raises(ValueError, match=r"cannot be pickled \(TypeError: .*pass `num_workers=1`"):
        side_by_side(job, 2, num_workers=2, num_threads=1)


def test_calls_that_are_done_at_once_do_not_wait_for_processes():
    begin = time.perf_counter()
    assert side_by_side(lambda index: index, 9, num_workers=2, num_threads=1) == [*range(9)]
    assert time.perf_counter() - begin < 1


def test_threads_are_restored():
    found = side_by_side(lambda _: torch.get_num_threads(), 2, num_workers=1, num_threads=2)
    assert (found, torch.get_num_threads()) == ([2, 2], 1)


SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import pyro_bnn as pb

torch.set_num_threads(1)
parent, met = os.getpid(), Path("met")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


def guide(model):
    if os.getpid() != parent:
        met.touch()
    while not met.exists():
        time.sleep(0.02)
    return pb.MeanFieldGuide(model)


x = torch.randn(20, 2)
model = pb.BayesianModel(Net(), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=20)
posterior = pb.fit(
    model,
    (x, x[:, :1]),
    method="ensemble",
    guide=guide,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-5),
    num_epochs=int(sys.argv[1]),
    num_members=4,
    num_workers=2,
    seed=0,
)
print(len(posterior.members), type(posterior.members[-1].guide).__name__)
"""


def start(tmp_path, epochs):
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(pb.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "script.py", str(epochs)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.nightly  # a script without a guard is also run by the next test
@pytest.mark.slow
def test_a_script_needs_no_guard_and_may_define_everything_itself(tmp_path):
    with start(tmp_path, 5) as process:
        out, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, "4 MeanFieldGuide\n"), errors


def children_of(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in listed.stdout.split()]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux's list of processes")
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGKILL])
def test_when_the_script_ends_its_workers_end(tmp_path, number):
    with start(tmp_path, 10**6) as process:
        wait_for(tmp_path / "met")
        children = children_of(process.pid)
        assert len(children) == 1
        process.send_signal(number)
        process.communicate(timeout=SECONDS)
    assert process.returncode in ({-number, 128 + number, 130} if number == signal.SIGINT else {-number})
    end = time.monotonic() + SECONDS
    while any(is_alive(child) for child in children):
        assert time.monotonic() < end
        time.sleep(0.1)
