"""Progress of fits: a bar on a terminal and in a notebook, and a line every ten seconds elsewhere."""

import multiprocessing
import os
import sys

from tqdm import tqdm

EVERY = 10.0  # smallest number of seconds between two lines in a pipe or a file
DELAY = 2.0  # seconds after which a bar appears if the user did not ask for one


class Lines(tqdm):
    monitor_interval = 0  # no thread, since every update looks at the clock

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line, but not the empty one with which tqdm ends."""
        if msg is None:
            print(str(self).rstrip(), file=self.fp, flush=True)


def progress_bar(
    unit: str, total: int | None = None, *, shown: bool | None, initial: int = 0, may_end_early: bool = False
) -> tqdm:
    """Return a bar such as ``epoch 19/100 ████ ELBO -13.2 00:04, 00:17 left``, for a `with` statement.

    If the user did not ask (`shown` is None), the bar appears after `DELAY`, but never in a test by pytest. Outside of
    terminals and notebooks, lines are written instead, except in worker processes, whose lines would be mixed.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_notebook = False
    if shown or is_terminal or "IPython" in sys.modules:
        from tqdm import asyncio, auto  # imported late: in a notebook it loads widgets, and may warn about missing ones

        is_notebook = auto.tqdm is not asyncio.tqdm_asyncio
    is_worker = multiprocessing.parent_process() is not None
    is_unwanted = "PYTEST_CURRENT_TEST" in os.environ or (is_worker and not (is_terminal or is_notebook))
    if shown is False or (shown is None and is_unwanted) or not (sys.stderr or is_notebook):
        return tqdm(disable=True)
    kind = auto.tqdm if is_notebook or is_terminal else Lines
    bar = "" if kind is Lines or total is None else " {bar}" if is_notebook else " {bar:10}"
    count = "{unit} {n_fmt}" if total is None else "{unit} {n_fmt}/{total_fmt}"
    most = "at most " if may_end_early else ""
    time = "{elapsed}" if total is None else f"{{elapsed}}, {most}{{remaining}} left"
    in_lines = {"mininterval": EVERY, "delay": EVERY, "leave": False} if kind is Lines else {}
    delay = {"delay": DELAY} if shown is None and kind is not Lines else {}
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
