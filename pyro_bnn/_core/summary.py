"""Summaries of objects, for the prompt and notebooks: a title, notes, and a small table."""

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

import torch
from torch import Tensor

MOST_LINES, WIDTH, TABLE_WIDTH = 12, 80, 100  # lines of a `repr` with short notes, characters in a line
NAME_WIDTH = 44  # characters in a cell
MOST_HTML_ROWS = 40  # rows of a table in a notebook
OK, NOT_OK, UNKNOWN = "ok", "NOT OK", "unknown"  # first words of a status
ALARM = "color: #d93a45; font-weight: bold"  # style of a bad status
LINE = "1px solid rgba(128, 128, 128, 0.5)"  # this grey, and this red, can be read on white and on black
TABLE_STYLE = "border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.4em 0"
CELL_STYLE = f"padding: 0.2em 0.8em; border-bottom: {LINE}"
NO_WRAP = "; white-space: nowrap"  # so that a number and its standard error stay on one line
SITE_COLUMNS = ("site", "shape", "numbers")

Cell = str | int | float | None


class Number(str):
    """A number as text, such as "0.12 ± 0.03", which tables align at the right."""

    __slots__ = ()


class Sentences(str):
    """A text that the prompt and notebooks show line by line, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Summary:
    """A title, notes, and a table. If the table has no `header`, notebooks show `columns` in its place."""

    title: str
    notes: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    header: Sequence[str] = ()
    columns: Sequence[str] = ()
    most_lines: int = MOST_LINES

    def text(self) -> str:
        """Return text with at most 80 characters in a line, and 100 in a row of the table."""
        lines = wrap(_clipped(self.title, 2 * WIDTH), WIDTH, subsequent_indent="  ")
        for note in self.notes:
            joined = _on_one_line(note).replace(" %", "\xa0%")  # no line begins with "%"
            lines += [f"  {line}" for line in wrap(joined, WIDTH - 2, break_on_hyphens=False)]
        rows = self._table(self.most_lines - len(lines))
        whole = [row for row in rows if len(row) > 1]
        widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
        are_right = self._are_right
        for row in rows:
            cells = zip(row, widths, are_right, strict=False)
            aligned = (cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells)
            lines.append(f"  {'  '.join(aligned if len(row) > 1 else row)}"[:TABLE_WIDTH].rstrip())
        return "\n".join(lines).replace("\xa0%", " %")

    def html(self) -> str:
        """Return escaped HTML, with the problem of a bad status in red."""
        notes = "".join(map(_html_note, self.notes))
        are_right = self._are_right
        rows = [_html_row(row, "td", are_right) for row in self._table(MOST_HTML_ROWS)]
        if rows and (self.header or self.columns):
            rows[: bool(self.header)] = [_html_row(self.header or self.columns, "th", are_right)]
        table = f'<table style="{TABLE_STYLE}">{"".join(rows)}</table>' if rows else ""
        return f"<div><strong>{html.escape(self.title)}</strong>{notes}{table}</div>"

    @property
    def _are_right(self) -> list[bool]:
        return [
            any(isinstance(cell, int | float | Number) for cell in column) for column in zip(*self.rows, strict=True)
        ]

    def _table(self, most: int) -> list[list[str]]:
        """Return at most `most` rows, the header included. If rows are left out, one row says how many."""
        rows, header = self.rows, [list(self.header)] if self.header else []
        most -= len(header)
        if not rows or most < 1:
            return []
        if len(rows) <= most:
            return header + [[_shown(cell) for cell in row] for row in rows]
        num_last = (most - 1) // 2
        last = len(rows) - num_last
        first = most - 1 - num_last
        shown = [[_shown(cell) for cell in row] for row in [*rows[:first], *rows[last:]]]
        return [*header, *shown[:first], [f"... {last - first:,} more"], *shown[first:]]


class Shown:
    """Base class of objects that a :class:`Summary` shows, even while an object is only half constructed."""

    def _summary(self) -> Summary:
        """Return the summary. Overriding methods must be fast, draw no random numbers, and change nothing."""
        return Summary(type(self).__name__, str(self).splitlines())

    def __repr__(self) -> str:
        return _safe(self, self._summary, Summary.text)

    def _notebook_summary(self) -> Summary:
        """Return the summary for notebooks, which may have more details."""
        return self._summary()

    def _repr_html_(self) -> str:
        return _safe(self, self._notebook_summary, Summary.html)


def _safe(shown: Shown, make: Callable[[], Summary], form: Callable[[Summary], str]) -> str:
    """Return a summary as text or HTML; after an error, only the names of the class and the error."""
    try:
        return form(make())
    except Exception as error:
        return form(Summary(f"{type(shown).__name__} (without details: {type(error).__name__})"))


def in_lines(text: str) -> Sentences:
    """Begin each sentence on a new line, and wrap long lines."""
    sentences = text.replace(". ", ".\n").splitlines()
    lines = (wrap(sentence, WIDTH, break_long_words=False, break_on_hyphens=False) for sentence in sentences)
    return Sentences("\n".join("\n".join(line) for line in lines))


def counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def few(names: Iterable[str], most: int = 3) -> str:
    """List the first `most` names, and count the others."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def in_time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def share(part: float, whole: float) -> str:
    """Return a part of a sum as text, with three digits, or "0" if the part is a rounding error."""
    return "0" if abs(part) < 1e-6 * abs(whole) else f"{part:.3g}"


def kind_of(tensor: Tensor) -> str:
    """Return a text such as "float32 on cpu"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def shape_row(name: str, shape: Iterable[int], *cells: Cell) -> tuple[Cell, ...]:
    """Return the cells of a row: the name, the shape, the number of elements, and `cells`."""
    shape = torch.Size(shape)
    return (name, str(tuple(shape)), shape.numel(), *cells)


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return _clipped(_on_one_line(cell), NAME_WIDTH)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _clipped(text: str, width: int) -> str:
    """Cut the middle out of a text that is too long."""
    text = _on_one_line(text)
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def _html_note(note: str) -> str:
    """Return a note as HTML. If the note is a bad status, its first clause is red."""
    note = _on_one_line(note)
    wrong = re.match(rf"{NOT_OK}: .*?([.;](?= )|$)", note)
    first = f'<strong style="{ALARM}">{as_html(wrong[0])}</strong>' if wrong else ""
    return f"<div>{first}{as_html(note[wrong.end() if wrong else 0 :])}</div>"


def as_html(text: str) -> str:
    """Return a text as HTML. Text between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _html_row(cells: Sequence[str], tag: str, are_right: Sequence[bool]) -> str:
    sides = ["right" if is_right else "left" for is_right in are_right]
    shown = (
        f'<{tag} style="text-align: {side}; {CELL_STYLE}{NO_WRAP if tag == "td" else ""}">{html.escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=False)
    )
    return f"<tr>{''.join(shown)}</tr>"
