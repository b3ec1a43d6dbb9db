"""Classes of blocks and cells for the style sheet, and places where names in cells may break."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

IN_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
MARKS = {"✓": "yes", "\N{EN DASH}": "no"}
WIDE = 80
LONGEST_PART = 20


def mark_blocks(app: Sphinx, document: nodes.document) -> None:
    """Mark blocks of more than 80 columns, whose letters can be smaller than those of others."""
    for block in document.findall(nodes.literal_block):
        if max(map(len, block.astext().splitlines()), default=0) > WIDE:
            block["classes"].append("wide")


def mark_cells(app: Sphinx, document: nodes.document) -> None:
    """Mark cells that begin with a tick or a dash, and rows with one filled cell; keep the unit % beside its name."""
    for row in document.findall(nodes.row):
        _, *others = row.children
        if others and not any(cell.astext() for cell in others):
            row["classes"].append("group")
        for cell in others:
            mark = MARKS.get(cell.astext()[:2].strip())
            cell["classes"] += [mark] if mark else []
    for head in document.findall(nodes.thead):
        for text in [*head.findall(nodes.Text)]:
            unit = text.astext().replace(", %", ",\N{NO-BREAK SPACE}%")
            text.parent.replace(text, nodes.Text(unit))


def breakable(code: re.Match[str]) -> str:
    """Code with places for breaks after dots and brackets, and within parts that are longer than a phone allows."""
    parts = re.split(r"(?<=[.(\[])(?=\w)", code[0])
    return "<wbr>".join(
        part
        if len(part) <= LONGEST_PART
        else re.sub(r"(?<=_)(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", part)
        for part in parts
    )


def add_breaks(
    app: Sphinx, name: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Let code in tables break where a reader expects it."""
    if "body" in context:
        context["body"] = IN_CELL.sub(
            lambda cell: CODE.sub(breakable, cell[0]), context["body"]
        )
