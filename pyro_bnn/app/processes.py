"""Commands that torch's launcher (`torchrun`) runs in several processes."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import torch
from torch import distributed

from .._core.processes import Processes
from .folders import Folder, creating, is_resumable, resuming
from .manifest import Manifest, Place


class Follower(Folder):
    """A folder that keeps no files.

    Only the first process writes to the folder of a command. All other processes use a `Follower` instead.
    """

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Yield a temporary path. At the end of the `with` block, a file at this path is deleted."""
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Path(elsewhere) / name

    def note(self, progress: str) -> None:
        """Write nothing."""


@contextmanager
def joined(device: str) -> Iterator[tuple[Processes, str]]:
    """Connect this process to the other processes of a launcher. Yield all processes, and the device of this process.

    The launcher keeps one store of addresses for all its restarts. Each restart uses a separate part of the store,
    since otherwise a process would look for the other processes at outdated addresses (PyTorch issue 135712).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or distributed.is_initialized():
        yield Processes.present(), device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    store, rank, num_processes = next(distributed.rendezvous("env://"))
    store = distributed.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=num_processes)
    try:
        yield Processes.present(), device
    finally:
        distributed.destroy_process_group()


@contextmanager
def shared(folder: AbstractContextManager[Folder], processes: Processes) -> Iterator[Folder]:
    """Yield a folder to which only the first process writes. All processes exit if the folder cannot be opened."""
    if not processes.is_first:
        place: tuple[Path, Place] | None = processes.from_first(None)
        if place is None:
            raise SystemExit(2)
        yield Follower(*place, Manifest("train"))
        return
    with ExitStack() as stack:
        try:
            entered = stack.enter_context(folder)
        except BaseException:
            processes.from_first(None)
            raise
        processes.from_first((entered.path, entered.place))
        yield entered


def run_folder(out: Path, *, force: bool) -> AbstractContextManager[Folder]:
    """Return a new folder for a run. After a restart by the launcher, return the folder of the interrupted run."""
    was_restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if was_restarted and is_resumable(Place.of(out)):
        return resuming(out)
    return creating(out, command="train", force=force)
