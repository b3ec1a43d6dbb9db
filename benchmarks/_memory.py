"""Present and largest memory use of this process or of the GPU."""

import contextlib
import resource
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def start(device: str) -> int:
    """Bytes in use now. The peak is counted anew from here, if the system can reset its count."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(device: str) -> int:
    """Largest number of bytes in use since :func:`start`."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def available(device: str) -> float:
    """Bytes that are still free; infinity if unknown."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return float("inf")


def _status(name: str) -> int:
    """A line of Linux's status of the process, in bytes; on other systems always the peak, from `getrusage`.

    On Linux `getrusage` would be wrong: a new process inherits the peak of the process that started it.
    """
    if STATUS.exists():
        return next(1024 * int(ln.split()[1]) for ln in STATUS.read_text().splitlines() if ln.startswith(f"{name}:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
