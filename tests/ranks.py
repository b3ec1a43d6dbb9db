"""Programs that several processes run together, each with `torch.distributed` on the CPU."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from . import rank_programs
from .kill_chains import started

NUM_PROCESSES = 2


def together(programs, num_processes=NUM_PROCESSES, timeout=300):
    """What functions of `tests.rank_programs` return in each process, one after the other.

    Args:
        programs: A list of (name of the function, further arguments).

    Returns:
        For each program the results by rank.
    """
    with tempfile.TemporaryDirectory() as folder:
        running = [started(main, folder, num_processes, programs, rank) for rank in range(num_processes)]
        for process in running:
            process.join(timeout)
        assert [process.exitcode for process in running] == [0] * num_processes
        results = [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(num_processes)]
    return list(zip(*results, strict=True))


def main(folder, num_processes, programs, rank):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), num_processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_processes)
    results = [getattr(rank_programs, name)(rank, *arguments) for name, *arguments in programs]
    torch.save(results, Path(folder) / str(rank))
    dist.barrier()
    dist.destroy_process_group()
