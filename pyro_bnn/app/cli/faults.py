"""What a fault is told as."""

import sys

MISUSE = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
EXHAUSTED = "the memory is exhausted; make --hidden, --batch-size or --num-samples smaller."


def explained(error: Exception) -> tuple[str, int] | None:
    """The sentence that an error is told as and the exit code, which is 2 for wrong use; None for a bug."""
    if "torch" in sys.modules:  # else the library has not run yet, and loading it takes long
        fault = _of_the_library(error)
        if fault is not None:
            return fault
    if isinstance(error, MISUSE):
        return _sentence(error), 2
    if isinstance(error, OSError):
        return _sentence(error), 1
    if isinstance(error, MemoryError):
        return EXHAUSTED, 1
    return None


def _of_the_library(error: Exception) -> tuple[str, int] | None:
    import torch

    from ..._core.files import DamagedFileError
    from ...inference.svi import NonFiniteError

    if isinstance(error, DamagedFileError | NonFiniteError):
        return str(error), 1
    words = ("can't allocate memory", "Storage size calculation overflowed")  # on the CPU, torch says so in words only
    is_of_memory = isinstance(error, RuntimeError) and any(part in str(error) for part in words)
    if is_of_memory or isinstance(error, torch.cuda.OutOfMemoryError):
        return EXHAUSTED, 1
    return None


def _sentence(error: Exception) -> str:
    """The message of an error; that of the system as a sentence."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror.lower()}."
    return str(error)
