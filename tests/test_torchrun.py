"""Training on the command line in two processes, one of which is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyro_bnn._core.files import read_state
from pyro_bnn.inference.svi._loop import KIND

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for the processes in /proc"),
]

LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TRAIN = ("-m", "pyro_bnn", "train", "digits", "--hidden", "8", "--epochs")


def start(*arguments, out):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*LAUNCHER, *arguments, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def worker(launcher, rank):
    """Number of a process that the launcher has started; None if there is none."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and f"RANK={rank}\0" in (stat.parent / "environ").read_text().replace(
                "LOCAL_RANK", ""
            ):
                return int(stat.parent.name)
        except (OSError, ValueError):
            continue
    return None


def test_a_run_whose_worker_is_killed_goes_on_from_its_checkpoint(tmp_path):
    """Its first epochs, with their durations, are those of the checkpoint; `test_processes` tests the later epochs."""
    killed = start("--max-restarts=1", *TRAIN, "20", out=tmp_path / "killed")
    checkpoint = tmp_path / ".killed.part" / "checkpoint"
    while not checkpoint.exists() and killed.poll() is None:
        time.sleep(0.01)
    before = read_state(checkpoint, KIND)["loop"]["history"]["epochs"]
    os.kill(worker(killed.pid, 1), signal.SIGKILL)
    output, _ = killed.communicate(timeout=300)
    assert killed.returncode == 0, output
    assert "SIGKILL" in output or "-9" in output
    assert output.count(" s, 20 of 20 epochs") == 1  # the first process speaks
    epochs = json.loads((tmp_path / "killed" / "history.json").read_text())["epochs"]
    assert epochs[: len(before)] == before
    assert len(epochs) == 20 > len(before) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["killed"]


REJOIN = r"""
import os, signal, sys, time
from pathlib import Path
import torch
from torch import distributed
from pyro_bnn.app.processes import joined

first, restarted = os.environ["RANK"] == "0", os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
waiting = Path(sys.argv[2]) / "waiting"
if restarted and first:
    while not waiting.exists():
        time.sleep(0.01)
    time.sleep(3)  # the other one looks for this process meanwhile
elif restarted:
    waiting.touch()
with joined("cpu"):
    total = torch.ones(1)
    distributed.all_reduce(total)
    if not restarted and not first:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()
    os.write(1, f"together {int(total)}\n".encode())  # at once, whole
"""


def test_processes_that_were_restarted_find_each_other_at_their_new_addresses(tmp_path):
    program = tmp_path / "rejoin.py"
    program.write_text(REJOIN)
    launcher = start("--max-restarts=1", str(program), out=tmp_path)
    output, _ = launcher.communicate(timeout=100)
    assert launcher.returncode == 0, output
    assert output.count("together 2") == 2, output
