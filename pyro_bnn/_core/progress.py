"""Progress of fits: a bar on a terminal and in a notebook, and a line every ten seconds elsewhere."""

import os
import sys

from tqdm import tqdm

EVERY = 10.0
"""Fewest seconds between two lines in a pipe or a file."""


DELAY = 2.0
"""Seconds after which a bar appears if the user did not ask for one."""


class Lines(tqdm):
    monitor_interval = 0  # no thread, since every update looks at the clock

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line, but not the empty one with which tqdm ends."""
        if msg is None:
            print(str(self).rstrip(), file=self.fp, flush=True)


def progress_bar(unit: str, total: int | None = None, *, shown: bool | None, initial: int = 0) -> tqdm:
    """Return a bar such as ``epoch 19/100 ████ ELBO -13.2 00:04, 00:17 left``, for a `with` statement."""
    is_terminal = sys.stderr.isatty()
    may_be_seen = (is_terminal or "IPython" in sys.modules) and "PYTEST_CURRENT_TEST" not in os.environ
    if shown is False or (shown is None and not may_be_seen):
        return tqdm(disable=True)
    from tqdm import asyncio, auto  # imported late: in a notebook it loads widgets, and may warn that they are missing

    is_notebook = auto.tqdm is not asyncio.tqdm_asyncio
    if shown is None and not (is_notebook or is_terminal):
        return tqdm(disable=True)
    kind = auto.tqdm if is_notebook or is_terminal else Lines
    bar = "" if kind is Lines or total is None else " {bar}" if is_notebook else " {bar:10}"
    count = "{unit} {n_fmt}" if total is None else "{unit} {n_fmt}/{total_fmt}"
    time = "{elapsed}" if total is None else "{elapsed}, {remaining} left"
    in_lines = {"mininterval": EVERY, "delay": EVERY, "leave": False} if kind is Lines else {}
    delay = {"delay": DELAY} if shown is None else {}
    return kind(
        total=total,
        initial=initial,
        unit=unit,
        bar_format=f"{count}{bar}{{desc}} {time}",  # a description must begin with a space
        miniters=0,
        smoothing=0,  # the mean speed, since updates by 0 do not count
        **in_lines,
        **delay,
    )
