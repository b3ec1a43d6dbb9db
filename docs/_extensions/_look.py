"""Classes of blocks and cells for the style sheet, and places where lines may end."""

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc_signature
from sphinx.application import Sphinx

IN_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
IN_TITLE = re.compile(r'<th .*?</th>|<p class="repeated">.*?</p>', re.DOTALL)
PARTS = re.compile(r"(?<=[a-z]{4})(?=[A-Z][^<>]*<)")
START = re.compile(r'(<span class="sig-paren">\(</span>)\s+<dl>\s+')
END = re.compile(r'</dd>\s*</dl>\s*(<span class="sig-paren">\)</span>)')
CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
MARKS = {"✓": "yes", "\N{EN DASH}": "no", "part": "part", "n/a": "no"}
MARK = re.compile(f"({'|'.join(MARKS)})(?![a-z])")
COLUMNS = re.compile(r"\S {2,}\S")
WIDE = 90
LONGEST_PART = 20
WORDS = 20
"""Mean number of letters in a cell from which on a table of four or more columns is one of words, not of numbers."""

TOGETHER = re.compile(
    r" ?± ?| \+ (?=\d)| (?=%)|(?<=\d) (?=s\b)|\([A-Z], [\dA-Z][ A-Z]*\)|R-hat|"
    r"\b\d{4}-\d\d-\d\d\b"
)
"""Parts of a sentence in which no line ends: numbers with their signs and units, shapes, and dates."""

MINUS = re.compile(r"(?<![\w.])-(?=\d)")
AS_WRITTEN = (
    nodes.FixedTextElement,
    nodes.literal,
    nodes.math,
    nodes.raw,
    desc_signature,
)


def mark_blocks(app: Sphinx, document: nodes.document) -> None:
    """Mark blocks wider than `WIDE`, whose letters can be smaller, and others in columns, whose lines must not wrap."""
    for block in document.findall(nodes.literal_block):
        lines = block.astext().splitlines()
        if max(map(len, lines), default=0) > WIDE:
            block["classes"].append("wide")
        elif sum(bool(COLUMNS.search(line)) for line in lines) > 1:
            block["classes"].append("columns")


def mark_cells(app: Sphinx, document: nodes.document) -> None:
    """Mark cells that begin with one of `MARKS`; keep units with names.

    Rows with one filled cell are titles of groups. They repeat the titles of the columns, for narrow windows.
    """
    for row in document.findall(nodes.row):
        _, *others = row.children
        if others and not any(cell.astext() for cell in others):
            row["classes"].append("group")
            (head,) = row.parent.parent.findall(nodes.thead)
            for cell, title in zip(others, head[0][1:], strict=True):
                name = without_notes(title)
                cell += nodes.paragraph("", name, classes=["repeated"])
        for cell in others:
            mark = MARK.match(cell.astext())
            cell["classes"] += [MARKS[mark[0]]] if mark else []
    for head in document.findall(nodes.thead):
        for text in [*head.findall(nodes.Text)]:
            unit = text.astext().replace(", %", ",\N{NO-BREAK SPACE}%")
            name = unit.replace("pyro-bnn", "pyro\N{NON-BREAKING HYPHEN}bnn")
            text.parent.replace(text, nodes.Text(name))


def together(match: re.Match[str]) -> str:
    """Text in which no line ends."""
    return (
        match[0]
        .replace(" ", "\N{NO-BREAK SPACE}")
        .replace("-", "\N{NON-BREAKING HYPHEN}")
    )


def join_numbers(app: Sphinx, document: nodes.document, page: str) -> None:
    """Keep numbers on one line with their signs and units; in tables, a minus is a minus, and not a hyphen."""
    for text in [*document.findall(nodes.Text)]:
        above = text.parent
        in_cell = False
        while above is not None and not isinstance(above, AS_WRITTEN):
            in_cell |= isinstance(above, nodes.entry)
            above = above.parent
        if above is None:
            joined = TOGETHER.sub(together, text.astext())
            if in_cell:
                joined = MINUS.sub("\N{MINUS SIGN}", joined)
            if joined != text.astext():
                text.parent.replace(text, nodes.Text(joined))


def label_cells(app: Sphinx, document: nodes.document) -> None:
    """Put the title of its column into each cell of a wide table of words, for a phone, where a row becomes a list."""
    for table in document.findall(nodes.table):
        heads = [*table.findall(nodes.thead)]
        rows = [row for body in table.findall(nodes.tbody) for row in body]
        cells = [cell for row in rows for cell in row]
        letters = sum(len(cell.astext()) for cell in cells)
        if not heads or len(heads[0][0]) < 4 or letters < WORDS * len(cells):
            continue
        table["classes"].append("of-words")
        titles = [without_notes(title) for title in heads[0][0]]
        for row in rows:
            for cell, title in zip(row, titles, strict=False):
                cell["classes"].append("of-words")
                if title and cell.astext() and cell is not row[0]:
                    label = nodes.inline("", f"{title}: ", classes=["label"])
                    cell[0].insert(0, label)


def without_notes(title: nodes.entry) -> str:
    """The text of a cell without the numbers of its footnotes."""
    return "".join(
        text
        for text in title.findall(nodes.Text)
        if not isinstance(text.parent, nodes.footnote_reference)
    )


def breakable(code: re.Match[str]) -> str:
    """Code with places for breaks after dots and brackets, and within parts that are longer than a phone allows.

    An option is one word: it would otherwise break within its hyphens.
    """
    if code[0].startswith("--"):
        return f'<span class="word">{code[0]}</span>'
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
    """Let code and titles in tables break where a reader expects it, and no signature before its last bracket."""
    if "body" in context:
        body = IN_CELL.sub(
            lambda cell: CODE.sub(breakable, cell[0]), context["body"]
        )
        body = IN_TITLE.sub(lambda title: PARTS.sub("<wbr>", title[0]), body)
        body = START.sub(r"\1<wbr><dl>", body)
        context["body"] = END.sub(r"\1</dd></dl>", body)
