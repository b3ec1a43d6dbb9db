"""What a fault is told as. This module loads the library, so it is imported only when there is one."""

import torch

from ..._files import DamagedFileError
from ...svi import NonFiniteError

__all__ = ["explained"]

MISUSE = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def explained(error: Exception) -> tuple[str, int] | None:
    """The sentence that an error is told as and the exit code, which is 2 for wrong use; None for a bug."""
    if isinstance(error, MISUSE):
        return _sentence(error), 1 if isinstance(error, DamagedFileError) else 2
    if isinstance(error, OSError | NonFiniteError):
        return _sentence(error), 1
    if _is_of_memory(error):
        return "the memory is exhausted; make --hidden, --batch-size or --num-samples smaller.", 1
    return None


def _sentence(error: Exception) -> str:
    """The message of an error; that of the system as a sentence."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror.lower()}."
    return str(error)


def _is_of_memory(error: Exception) -> bool:
    """Whether memory is short; on the CPU, torch says so in words only."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    words = ("can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(part in str(error) for part in words)
