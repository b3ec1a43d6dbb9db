"""The lock of what belongs to the whole process."""

import os
import threading


class ProcessLock:
    """A lock of the whole process, which a thread that holds it can take again.

    A process that is forked while another thread holds it begins with a new one; else it would wait for ever.
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
"""Held while something that belongs to the whole process is changed: torch's generators, Pyro's stack and store."""
