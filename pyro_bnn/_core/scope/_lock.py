"""The lock of what belongs to the whole process."""

import os
from _thread import RLock  # the class of what `threading.RLock` returns


class ProcessLock(RLock):  # type: ignore[misc]  # final for typeshed only
    """A lock of the whole process, which a thread that holds it can take again.

    A process that is forked while another thread holds it begins with a free one; else it would wait for ever.
    """

    def __init__(self) -> None:
        if os.name == "posix":
            free = self._at_fork_reinit  # type: ignore[attr-defined]  # which `logging` calls for its locks, too
            os.register_at_fork(after_in_child=free)


EXCLUSIVE = ProcessLock()
"""Held while something that belongs to the whole process is changed: torch's generators, Pyro's stack and store."""
