"""Chains that die with their process, and chains that several processes share."""

import os
import pathlib
import signal
import threading
import time
import warnings

import pytest
import torch
from torch import distributed

import pyro_bnn as pb

from .kill_chains import equal, killed, sample, started
from .test_exact import Problem


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", ["NUTS", pytest.param("HMC", marks=pytest.mark.nightly)])
def test_chains_of_processes_that_were_killed_are_to_the_bit_those_of_one_that_was_not(sampler, tmp_path):
    path = tmp_path / "chains"
    assert killed(sampler, path, 3, seed=0) == 3
    assert equal(sample(sampler, path), sample(sampler, None))


CHAINS = {"num_samples": 8, "num_warmup": 10, "num_chains": 3, "max_tree_depth": 3}


def terminate_at_work(file):
    """Send a signal to this process once it has begun to draw."""
    while not pathlib.Path(file).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def share_chains(rank, folder):
    """The program of one of two processes, which writes its results to a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    problem, seen = Problem(), {}

    def fit(name, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            posterior = pb.fit_nuts(problem.model, (problem.x, problem.y), **{**CHAINS, **options})
        statistics = posterior.statistics
        tensors = [*posterior.chains.values(), statistics.num_steps, statistics.step_size, statistics.inverse_mass]
        seen[name] = tensors, posterior.status.message, len(caught)

    def refused(name, x, **options):
        try:
            pb.fit_nuts(problem.model, (x, problem.y), **{**CHAINS, **options})
        except ValueError as error:
            seen[name] = str(error)

    def interrupted(name, **options):
        with pytest.raises(pb.Interrupted) as caught:
            pb.fit_nuts(problem.model, (problem.x, problem.y), **{**CHAINS, **options})
        seen[name] = str(caught.value)

    torch.manual_seed(rank)
    fit("first", seed=0, checkpoint=f"{folder}/chains")
    fit("again", seed=0)
    fit("other seed", seed=1)
    fit("without a seed")
    fit("resumed", seed=0, resume=f"{folder}/chains")
    threading.Thread(target=terminate_at_work, args=(f"{folder}/long.{rank}-of-2",)).start()
    interrupted("interrupted", num_samples=10**6, checkpoint=f"{folder}/long")
    refused("too few", problem.x, num_chains=1)
    refused("shards", problem.x + rank, seed=0)
    torch.save(seen, f"{folder}/seen{rank}")
    distributed.destroy_process_group()


def test_processes_share_the_chains_and_all_have_all_of_them(tmp_path):
    processes = [started(share_chains, rank, tmp_path) for rank in range(2)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    seen = [torch.load(tmp_path / f"seen{rank}") for rank in range(2)]
    for name in ("first", "again", "other seed", "without a seed", "resumed"):
        tensors, message, num_warnings = seen[0][name]
        assert all(torch.equal(*pair) for pair in zip(tensors, seen[1][name][0], strict=True))
        assert message == seen[1][name][1]
        assert "; NUTS: 3 chains of 8 draws" in message
        assert [num_warnings, seen[1][name][2]] == [1, 0]  # the status is of all chains, and is told once
        weights, step_size = tensors[0], tensors[2]
        assert [value.shape[0] for value in tensors] == [3] * 4
        assert weights.shape == (3, 8, 1, 3)
        assert len(weights[:, -1].unique(dim=0)) == len(step_size.unique()) == 3  # no two chains are the same
    first, again, other, resumed = (seen[0][name][0] for name in ("first", "again", "other seed", "resumed"))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert all(torch.equal(*pair) for pair in zip(first, resumed, strict=True))
    assert not torch.equal(first[0], other[0])
    files = sorted(path.name for path in tmp_path.glob("chains*"))
    assert files == ["chains.0-of-2", "chains.1-of-2"]
    for rank in range(2):
        assert f"the state is in {tmp_path}/long.{rank}-of-2." in seen[rank]["interrupted"]
        assert f"`resume='{tmp_path}/long'`" in seen[rank]["interrupted"]
        assert "`num_chains` must be at least the number of processes, 2, got 1" in seen[rank]["too few"]
        assert "`data` must be the same in all processes" in seen[rank]["shards"]
