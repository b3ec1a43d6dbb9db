"""The output of a command: text and tables that fit the terminal, and with `--json` a document for programs."""

import io
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

import typer

import pyro_bnn

from ..numbers import together

STYLES = {"good": "bold green", "note": "bold yellow", "problem": "bold red"}  # of verdicts
MOST_ADVICE = 2  # largest number of faults that `train` names; the report has all
UNKNOWN_WIDTH = 80  # of a terminal that does not tell its width


class Output:
    """Writes text to standard output.

    With `--json`, a JSON document goes to standard output, and text goes to standard error. With `only_notes`, text
    goes to standard error even without `--json`.
    """

    def __init__(self, command: str, *, as_json: bool, only_notes: bool = False) -> None:
        self._command, self._as_json, self._only_notes = command, as_json, only_notes

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._as_json or self._only_notes else sys.stdout

    def say(self, text: str = "", *, style: str = "", wraps: bool = True, indent: int = 0) -> None:
        """Write lines of text in a `style` of the package rich.

        If `wraps` is true, break lines at the width that the variable `COLUMNS` sets, or else at the terminal's width.
        """
        if wraps and (width := self._width()):
            wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
            wrapper.subsequent_indent = " " * indent
            text = "\n".join(map(wrapper.fill, together(text).split("\n"))).replace("\xa0", " ")
        if not has_colours(self._stream):
            typer.echo(text, file=self._stream)
            return
        from rich.console import Console  # imported late: importing takes long
        from rich.text import Text

        Console(file=self._stream, soft_wrap=True, highlight=False).print(Text(text, style=style))

    def table(self, text: str) -> None:
        """Write the tables and notes in `text`, which empty lines separate. Shrink tables that are too wide."""
        for number, block in enumerate(text.split("\n\n")):
            if number:
                self.say()
            heading = block.partition("\n")[0]
            is_table = "  " in heading.strip() or heading.endswith(":")
            if is_table and (width := self._width()):
                block = fitted(block, width)
            heading, _, rows = block.partition("\n")
            self.say(heading, style="bold" if is_table else "dim", wraps=not is_table)
            if rows:
                self.say(rows, style="" if is_table else "dim", wraps=not is_table)

    def _width(self) -> int:
        """Return the environment variable COLUMNS, or else the terminal's width, or else 0, which means no limit."""
        if os.environ.get("COLUMNS"):
            return shutil.get_terminal_size().columns
        if not self._stream.isatty():
            return 0
        with suppress(OSError):  # the stream is no file
            return os.get_terminal_size(self._stream.fileno()).columns or UNKNOWN_WIDTH
        return UNKNOWN_WIDTH

    def document(self, **content: Any) -> None:
        """Write the JSON document if the user asked for it. Numbers that are not finite become null in JSON."""
        if self._as_json:
            from pydantic_core import to_json  # imported late: importing takes long

            whole = {"command": self._command, "version": pyro_bnn.__version__, **content}
            typer.echo(to_json(whole, indent=1, inf_nan_mode="null").decode())


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours, and `NO_COLOR` is not set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


MOST_ROWS = 40  # largest number of rows of predictions on a terminal
PREDICTED = r"(mean|sd|aleatoric|epistemic|lower_|upper_|entropy|p\()"  # starts of names of numbers


def for_terminal(csv: str) -> str:
    """Turn predictions in CSV into a table that fits the terminal. Standard deviations have about three digits."""
    import pandas as pd  # imported late: importing takes long

    frame = pd.read_csv(io.StringIO(csv), dtype=str, keep_default_na=False)
    if "outside" in frame and not frame["outside"].any():
        frame = frame.drop(columns="outside")
    numbers = frame.loc[:, frame.columns.str.match(PREDICTED)].astype(float)
    size = numbers.filter(regex="^sd").median().min()  # NaN for classes
    digits = max(3 - math.ceil(math.log10(size)), 0) if 0 < size < math.inf else 3
    frame[numbers.columns] = numbers.map(f"{{:.{digits}f}}".format)
    rows = frame.to_numpy().tolist()
    left_out = len(rows) - MOST_ROWS
    if left_out > 0:
        rows = [*rows[: MOST_ROWS // 2], ["..."] * frame.shape[1], *rows[-MOST_ROWS // 2 :]]
    lines, left_out_columns = _narrowed([[*frame.columns], *rows], shutil.get_terminal_size().columns)
    for count, noun in ((left_out, "row"), (left_out_columns, "column")):
        if count > 0:
            lines.append(f"{count:,} more {noun}{'' if count == 1 else 's'}; --out FILE writes all.")
    return "\n".join([*lines, ""])


def _narrowed(cells: list[list[str]], width: int) -> tuple[list[str], int]:
    """Narrow a table of predictions to `width`. Return its lines, and the number of columns that were left out."""
    lines, left_out = aligned(cells, num_left=0), 0
    if _width(lines) > width:
        cells = [[head.replace("_", " ") for head in cells[0]], *cells[1:]]
        lines = stacked(cells, num_left=0)
    while _width(lines) > width and len(cells[0]) > 1:
        parts = [index for index, head in enumerate(cells[0]) if head.startswith(("aleatoric", "epistemic"))]
        dropped = parts[-1] if parts else len(cells[0]) - 1
        cells = [[*row[:dropped], *row[dropped + 1 :]] for row in cells]
        lines, left_out = stacked(cells, num_left=0), left_out + 1
    return lines, left_out


Cells = Sequence[Sequence[str]]  # of a table, row by row; the first row has the headings


def fitted(block: str, width: int) -> str:
    """Try four layouts of a table (aligned, stacked, transposed, list), and return the first that fits the width."""
    lines = block.splitlines()
    title, body = (lines[:1], lines[1:]) if lines[0].endswith(":") else ([], lines)
    cells = cells_of(body)
    if _width(body) <= width or len(cells[0]) < 2:
        return block
    turned = [list(column) for column in zip(*cells, strict=True)]
    ways = [aligned(cells), stacked(cells), stacked(turned), _listed(cells)]
    return "\n".join([*title, *next((way for way in ways if _width(way) <= width), ways[-1])])


def _width(lines: Sequence[str]) -> int:
    return max(map(len, lines), default=0)


def cells_of(lines: Sequence[str]) -> list[list[str]]:
    """Divide aligned lines into cells, at positions where all lines have two or more spaces."""
    width = _width(lines)
    padded = [line.ljust(width) for line in lines]
    is_blank = [all(line[i] == " " for line in padded) for i in range(width)]
    starts = [0, *(i for i in range(2, width) if is_blank[i - 2 : i + 1] == [True, True, False])]
    ends = [*starts[1:], width]
    return [[line[start:end].strip() for start, end in zip(starts, ends, strict=True)] for line in padded]


def aligned(cells: Cells, *, num_left: int = 1) -> list[str]:
    """Return the lines of a table. The first `num_left` columns are left-aligned; all others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if number < num_left else ">" for number in range(len(widths))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in cells
    ]


def stacked(cells: Cells, *, num_left: int = 1) -> list[str]:
    """Return the lines of a table. Wide headings are wrapped at spaces, except at a space before %."""
    heads, rows = [together(head) for head in cells[0]], cells[1:]
    words = [head.split(" ") for head in heads]
    widths = [max([*(len(row[i]) for row in rows), *map(len, parts)], default=0) for i, parts in enumerate(words)]
    parts = [
        [line.replace("\xa0", " ") for line in textwrap.wrap(head, max(size, 1))]
        for head, size in zip(heads, widths, strict=True)
    ]
    height = max(map(len, parts))
    parts = [[""] * (height - len(part)) + part for part in parts]
    return aligned([*zip(*parts, strict=True), *rows], num_left=num_left)


def _listed(cells: Cells) -> list[str]:
    """Turn a table into a list. The first cell of a row becomes a heading, with a line below it for each other cell."""
    lines = [cells[0][0]] if cells[0][0] else []
    for name, *row in cells[1:]:
        lines += [f"{name}:", *aligned([(f"  {head}", cell) for head, cell in zip(cells[0][1:], row, strict=True)])]
    return lines
