"""Pages of the reference: the first sentence first; parameters and attributes with name and type in a line."""

import inspect
import itertools
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc, desc_content
from sphinx.application import Sphinx

from pyro_bnn import BNNClassifier, BNNRegressor

TITLES = ("Parameters", "Raises", "Warns")
ATTRIBUTES = ("attribute", "property")


def parameters(lines: list[str]) -> dict[str, list[str]]:
    """The lines about each parameter in the section "Args" of a docstring."""
    found = {}
    section = lines[lines.index("Args:") + 1 :]
    inside = itertools.takewhile(lambda line: line[:1] in ("", " "), section)
    for line in "\n".join(inside).rstrip().splitlines():
        if start := re.match(r" {4}(\w+): ", line):
            of_one = found[start[1]] = []
        of_one.append(line)
    return found


def complete(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """List the parameters of both estimators in the order of the signature, all with their texts.

    The docstring of the classifier says that other parameters are those of the regressor; the page repeats them.
    """
    if obj not in (BNNRegressor, BNNClassifier):
        return
    start, own = lines.index("Args:") + 1, parameters(lines)
    texts = parameters(inspect.getdoc(BNNRegressor).splitlines()) | own
    lines[start : start + sum(map(len, own.values()))] = [
        re.sub(
            r":meth:`(\w+)`",
            lambda link: (
                link[0]
                if hasattr(obj, link[1])
                else f":meth:`BNNRegressor.{link[1]}`"
            ),
            line if hasattr(obj, "likelihood") else without_likelihood(line),
        )
        for parameter in inspect.signature(obj).parameters
        for line in texts[parameter]
    ]


def without_type(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep the first sentence of an attribute whole: napoleon takes what is before a colon as the type."""
    if what in ATTRIBUTES and lines:
        lines[0] = f": {lines[0]}"


def without_likelihood(line: str) -> str:
    """A line of a list of parameters without the one that classifiers do not have."""
    return line.replace("`likelihood`, ", "")


def definition(item: nodes.Element) -> nodes.definition_list_item:
    """The parts of "name (type) – text", and a list that follows the text."""
    children, dash = [*item[0].children], " \N{EN DASH} "
    dashes = (
        i for i, part in enumerate(children) if part.astext().startswith(dash)
    )
    end = next(dashes, len(children))
    term = nodes.term("", "", *children[:end])
    rest = [
        nodes.Text(part.astext().removeprefix(dash))
        for part in children[end : end + 1]
    ]
    text = nodes.paragraph("", "", *filter(str, rest), *children[end + 1 :])
    parts = [text] if text.children else []
    return nodes.definition_list_item(
        "", term, nodes.definition("", *parts, *item.children[1:])
    )


def as_definitions(app: Sphinx, document: nodes.document) -> None:
    """Make definition lists of the parameters and errors of each function."""
    # those of a class have its methods within them
    contents = [*document.findall(desc_content)]
    fields = [content.findall(nodes.field) for content in contents]
    for field in dict.fromkeys(itertools.chain(*fields)):
        name, body = field.children
        if name.astext() not in TITLES or not body.children:
            continue
        listed = isinstance(body[0], nodes.bullet_list)
        items = [definition(item) for item in (body[0] if listed else [body])]
        body.children = []
        body += nodes.definition_list("", *items, classes=["arguments"])


def with_types(app: Sphinx, document: nodes.document) -> None:
    """Put the type of what a function returns above its description, as for parameters."""
    for fields in [*document.findall(nodes.field_list)]:
        found = {field[0].astext(): field for field in fields}
        if not (kind := found.get("Return type")):
            continue
        if not (returned := found.get("Returns")):
            kind[0][:] = [nodes.Text("Returns")]
            continue
        fields.remove(kind)
        term = nodes.term("", "", *kind[1][0].children)
        text = nodes.definition("", *returned[1].children)
        returned[1].children = []
        item = nodes.definition_list_item("", term, text)
        returned[1] += nodes.definition_list("", item, classes=["arguments"])


def attributes_first(app: Sphinx, document: nodes.document) -> None:
    """Put the attributes of a class into one block, below a line of links to its methods."""
    for content in document.findall(desc_content):
        members = [part for part in content if isinstance(part, desc)]
        attributes = [one for one in members if one["objtype"] in ATTRIBUTES]
        methods = [one for one in members if one not in attributes]
        if not members:
            continue
        for member in members:
            content.remove(member)
        if len(methods) > 2:
            line = nodes.paragraph("", "Methods: ", classes=["members"])
            for method in methods:
                place = method[0]["ids"][0]
                name = nodes.literal("", place.rpartition(".")[2])
                link = nodes.reference("", "", name, internal=True, refid=place)
                line += [link, nodes.Text(", ")]
            line[-1] = nodes.Text(".")
            content += line
        if attributes:
            content += nodes.rubric("", "Attributes", classes=["members"])
        content += [*attributes, *methods]


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
