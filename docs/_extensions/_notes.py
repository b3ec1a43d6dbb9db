"""Footnotes as tooltips: the mouse on a mark shows the text of its note."""

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def add_tooltips(
    app: Sphinx, name: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Give each mark in the body of a page a title with the text of its note."""
    if tree is None:
        return
    notes = {
        anchor: " ".join(part.astext() for part in note.children[1:])
        for note in tree.findall(nodes.footnote)
        for anchor in note["ids"]
    }

    def with_title(mark: re.Match[str]) -> str:
        return f'{mark[0]} title="{escape(notes[mark[1]])}"'

    context["body"] = re.sub(
        r'<a class="footnote-reference brackets" href="#([\w-]+)"',
        with_title,
        context["body"],
    )
