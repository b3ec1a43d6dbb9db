"""Parameters and errors in the reference: name and type in a line, and the text below it."""

from docutils import nodes
from sphinx.addnodes import desc_content
from sphinx.application import Sphinx

TITLES = ("Parameters", "Raises")


def definition(item: nodes.paragraph) -> nodes.definition_list_item:
    """The parts of "name (type) – text"."""
    children = [*item.children]
    dashes = (
        i for i, part in enumerate(children) if part.astext() == " \N{EN DASH} "
    )
    end = next(dashes, len(children))
    term = nodes.term("", "", *children[:end])
    text = nodes.paragraph("", "", *children[end + 1 :])
    return nodes.definition_list_item(
        "", term, nodes.definition("", *([text] if text.children else []))
    )


def as_definitions(app: Sphinx, document: nodes.document) -> None:
    """Make definition lists of the parameters and errors of each function."""
    for content in document.findall(desc_content):
        for field in content.findall(nodes.field):
            name, body = field.children
            if name.astext() not in TITLES or not body.children:
                continue
            listed = isinstance(body[0], nodes.bullet_list)
            items = [item[0] for item in body[0]] if listed else [body[0]]
            body.children = []
            body += nodes.definition_list(
                "", *map(definition, items), classes=["arguments"]
            )


def without_private_names(
    app: Sphinx, document: nodes.document, page: str
) -> None:
    """Let the tooltips of links to types show public names."""
    for link in document.findall(nodes.reference):
        title = link.get("reftitle", "")
        if title.startswith("pyro_bnn.") and "._" in title:
            link["reftitle"] = (
                link.get("refid") or link["refuri"].partition("#")[2]
            )
