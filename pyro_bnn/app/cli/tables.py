"""Makes tables of text narrower, so that each fits the terminal."""

import textwrap
from collections.abc import Sequence

from ..reports.numbers import together

Cells = Sequence[Sequence[str]]  # of a table, row by row; the first row has the headings


def fitted(block: str, width: int) -> str:
    """Return a table in the first of four layouts that fits the width: aligned, stacked, transposed, or a list."""
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
    """Return the lines of a table. The first `num_left` columns are aligned on the left, the others on the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if number < num_left else ">" for number in range(len(widths))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in cells
    ]


def stacked(cells: Cells, *, num_left: int = 1) -> list[str]:
    """Return the lines of a table in which wide headings are wrapped at spaces, but not before %."""
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
    """Return the lines of a list: for each row of a table its first cell, and below it a line for each other cell."""
    lines = [cells[0][0]] if cells[0][0] else []
    for name, *row in cells[1:]:
        lines += [f"{name}:", *aligned([(f"  {head}", cell) for head, cell in zip(cells[0][1:], row, strict=True)])]
    return lines
