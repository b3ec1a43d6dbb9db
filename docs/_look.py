"""Classes of blocks and cells for the style sheet, letters above a glossary, and places where names in cells break."""

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import glossary
from sphinx.application import Sphinx

IN_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
MARKS = {"✓": "yes", "\N{EN DASH}": "no", "part": "part"}
WIDE = 80
LONGEST_PART = 20


def mark_blocks(app: Sphinx, document: nodes.document) -> None:
    """Mark blocks of more than 80 columns, whose letters can be smaller than those of others."""
    for block in document.findall(nodes.literal_block):
        if max(map(len, block.astext().splitlines()), default=0) > WIDE:
            block["classes"].append("wide")


def mark_cells(app: Sphinx, document: nodes.document) -> None:
    """Mark cells that begin with a tick, a dash or "part", and rows with one filled cell; keep units with names."""
    for row in document.findall(nodes.row):
        _, *others = row.children
        if others and not any(cell.astext() for cell in others):
            row["classes"].append("group")
        for cell in others:
            mark = MARKS.get(cell.astext().partition(" ")[0])
            cell["classes"] += [mark] if mark else []
    for head in document.findall(nodes.thead):
        for text in [*head.findall(nodes.Text)]:
            unit = text.astext().replace(", %", ",\N{NO-BREAK SPACE}%")
            text.parent.replace(text, nodes.Text(unit))


def add_letters(app: Sphinx, document: nodes.document) -> None:
    """Above a glossary, link each letter to the first term that begins with it."""
    for terms in [*document.findall(glossary)]:
        line = nodes.paragraph(classes=["letters"])
        for term in terms.findall(nodes.term):
            letter = term.astext()[0].upper()
            if letter not in line.astext().split():
                place = term["ids"][0]
                line += nodes.reference("", letter, internal=True, refid=place)
                line += nodes.Text(" ")
        terms.parent.insert(terms.parent.index(terms), line)


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
