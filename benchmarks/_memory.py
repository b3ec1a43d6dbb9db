"""How much memory this process, or the GPU, has in use and has had in use at most."""

import contextlib
import resource
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def start(device: str) -> int:
    """Bytes in use now; the peak counts from here where the system can forget an earlier one."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with contextlib.suppress(OSError):  # not on Linux, or not allowed: then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(device: str) -> int:
    """Bytes in use at most since :func:`start`."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def available(device: str) -> float:
    """Bytes that may still be taken, as far as is known."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return float("inf")


def _status(name: str) -> int:
    """A line of Linux's record of the process; elsewhere always the peak, which `getrusage` knows.

    On Linux `getrusage` would not do: a new process inherits the peak of the one that started it.
    """
    if STATUS.exists():
        return next(1024 * int(ln.split()[1]) for ln in STATUS.read_text().splitlines() if ln.startswith(f"{name}:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
