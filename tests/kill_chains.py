"""Processes that sample and are killed at random moments: `python -m tests.kill_chains` kills 20 of each sampler."""

import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

import pyro_bnn as pb

from .chains import quietly
from .test_exact import Problem

SAMPLERS = {"NUTS": pb.NUTS(4), "HMC": pb.HMC(4)}


def started(function: Callable[..., object], *args: object) -> BaseProcess:
    """A process that runs a function. All such processes are copies of one that has imported the package."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.kill_chains"])
    process = context.Process(target=_in_process, args=(function, *args), daemon=True)
    process.start()
    return process


def _in_process(function: Callable[..., object], *args: object) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    function(*args)


def sample(sampler: str, path: Path | None, compile: bool = False) -> pb.MCMCPosterior:
    """Two chains of a regression; with a file, they continue where an earlier process was killed."""
    problem = Problem()
    return quietly(
        pb.fit_mcmc,
        problem.model,
        (problem.x, problem.y),
        sampler=SAMPLERS[sampler],
        num_samples=100,
        num_warmup=60,
        num_chains=2,
        compile=compile,
        seed=3,
        checkpoint=None if path is None else pb.Checkpoint(path, minutes=0),
        resume=path if path is not None and path.exists() else None,
    )


def killed(sampler: str, path: Path, num_kills: int, seed: int, compile: bool = False) -> int:
    """Run until the chains are complete, and kill processes while they draw.

    Each is killed at a random moment: after a random number of writings of the file and a random time.

    Returns:
        Number of processes that were killed while drawing.
    """
    numbers, done = random.Random(seed), 0
    while done < num_kills:
        process, moments = started(sample, sampler, path, compile), writings(path)
        for _ in range(numbers.randrange(1, 12)):
            while process.is_alive() and not next(moments):
                time.sleep(1e-4)
        time.sleep(numbers.uniform(0, 0.01))
        process.kill()
        process.join()
        if process.exitcode == 0:  # it was faster
            return done
        done += 1
    return done


def writings(path: Path) -> Iterator[bool]:
    """Whether the file has been replaced since the last call."""
    last = None
    while True:
        now = path.stat().st_ino if path.exists() else None
        yield now not in (last, None)
        last = now


def equal(one: pb.MCMCPosterior, other: pb.MCMCPosterior) -> bool:
    """Whether draws, statistics, steps and masses are bit for bit the same."""
    names = ("log_density", "energy", "accept", "diverging", "num_steps", "step_size", "inverse_mass")
    pairs = [(one.chains[name], other.chains[name]) for name in one.chains]
    pairs += [(getattr(one.statistics, name), getattr(other.statistics, name)) for name in names]
    return all(torch.equal(a, b) for a, b in pairs)


def main(num_kills: int) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for sampler in SAMPLERS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chains"
            count = killed(sampler, path, num_kills, seed=0)
            same = equal(sample(sampler, path), sample(sampler, None))
            print(f"{sampler}: {count} of {num_kills} killed at work, then bit for bit equal: {same}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
