"""The lock for state that belongs to the whole process."""

import os
import threading


class ProcessLock:
    """A reentrant lock for the whole process.

    A process forked while another thread holds the lock starts with a new one; otherwise it would wait forever.
    """

    def __init__(self) -> None:
        self._renew()
        if os.name == "posix":
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


EXCLUSIVE = ProcessLock()
"""Held while process-wide state is changed: torch's generators, Pyro's stack and store."""
