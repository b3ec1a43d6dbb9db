"""What scripts of the gallery print: no warnings and no paths, and lines that are no longer than the column."""

import re
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

FAULT = re.compile(r".*?(?:\b\w*Warning:|(?<![\w.:/])/[\w.-]+/[\w.-]+).*")
"""A line with a warning or an absolute path."""

IN_COLUMNS = re.compile(r"\S {2,}\S.* {2,}\S")
WIDTH = 80


def outputs(document: nodes.document) -> list[nodes.literal_block]:
    """The blocks of a page that show what its script printed."""
    return [
        block
        for block in document.findall(nodes.literal_block)
        if "sphx-glr-script-out" in block["classes"]
    ]


def check_outputs(app: Sphinx, document: nodes.document) -> None:
    """Warn of warnings and absolute paths in what a script printed; with `-W` the build fails."""
    for block in outputs(document):
        for fault in FAULT.findall(block.astext()):
            getLogger(__name__).warning(
                "a script printed a warning or an absolute path: %s",
                fault.strip(),
                location=app.env.docname,
            )


def wrap_outputs(app: Sphinx, document: nodes.document) -> None:
    """Let long lines go on in the next line.

    The style sheet does so for an output without a table. A table scrolls sideways, but sentences beside it do not.
    """
    for block in outputs(document):
        lines = block.astext().splitlines()
        if sum(bool(IN_COLUMNS.search(line)) for line in lines) < 2:
            block["classes"].append("sentences")
            continue
        wrapped = [
            line
            if re.search(r"\S {2,}\S", line)
            else textwrap.fill(line, WIDTH, break_on_hyphens=False)
            for line in lines
        ]
        text = "\n".join(wrapped)
        block.rawsource = text
        block.children = []
        block += nodes.Text(text)
