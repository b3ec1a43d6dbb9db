"""Handling of Ctrl-C: the program ends at once, with a message."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
STOPPED = "error: stopped.\n"
LOADING = "loading ...\r"  # shorter than the message after Ctrl-C, which replaces it


@contextmanager
def stoppable() -> Iterator[None]:
    """During a `with` block, make Ctrl-C end the program with a message and exit code 130, after cleaning up."""
    try:
        yield
    except KeyboardInterrupt as error:
        words = str(error)
        sys.stderr.write(f"error: {' '.join(words.split())}\n" if words else STOPPED)
        sys.exit(INTERRUPTED)


@contextmanager
def loading() -> Iterator[None]:
    """Show on a terminal that the program is loading slow imports, and let Ctrl-C end the program at once."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        sys.stderr.write(LOADING)
        sys.stderr.flush()
    try:
        with quickly_stoppable():
            yield
    finally:
        if is_shown:
            sys.stderr.write(f"{' ' * len(LOADING)}\r")


@contextmanager
def quickly_stoppable() -> Iterator[None]:
    """During a `with` block, make Ctrl-C end the program at once, without cleaning up.

    Some libraries catch every exception during their import, so the KeyboardInterrupt of Ctrl-C could be lost.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, STOPPED.encode())
    os._exit(INTERRUPTED)
