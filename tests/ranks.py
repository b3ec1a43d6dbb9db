"""Programs that several processes run together, each with `torch.distributed` on the CPU."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

NUM_PROCESSES = 2


def together(programs, num_processes=NUM_PROCESSES, timeout=300):
    """What functions of `tests.rank_programs` return in each process, one after the other.

    Args:
        programs: A list of (name of the function, further arguments), which must be JSON.

    Returns:
        For each program the results by rank.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.ranks", folder, str(num_processes), json.dumps(programs)]
        running = [subprocess.Popen([*command, str(rank)]) for rank in range(num_processes)]
        codes = [process.wait(timeout) for process in running]
        assert codes == [0] * num_processes
        results = [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(num_processes)]
    return list(zip(*results, strict=True))


def main(folder, num_processes, programs, rank):
    from . import rank_programs

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), int(num_processes))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(num_processes))
    results = [getattr(rank_programs, name)(int(rank), *arguments) for name, *arguments in json.loads(programs)]
    torch.save(results, Path(folder) / rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
