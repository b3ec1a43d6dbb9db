"""Names in the text of pages link to the reference, whose pages list the pages that use a name."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from docutils import nodes
from sphinx.addnodes import desc, desc_content, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

PACKAGE = "pyro_bnn."
CALL = re.compile(r"(pb\.|pyro_bnn\.)?([A-Za-z_][\w.]*)(\(.*\))?", re.DOTALL)
IN_CODE = re.compile(r"[A-Za-z_][\w.]*\b(?! ?=[^=])")
GROUPS = (
    ("how_to/", "gallery/tutorials/plot_"),
    ("start/", "understand/", "gallery/examples/"),
    ("results/", "coming_from/"),
)
"""Pages that use names; those of an earlier group come first."""

MODULES = {
    "acquisition": "acquisition",
    "calibration": "calibration",
    "data": "data",
    "kl": "kl-divergences",
    "likelihoods": "likelihoods",
    "metrics": "metrics",
    "plotting": "pictures",
    "pruning": "pruning",
    "uncertainty": "prediction-and-uncertainty",
}
"""Sections of the reference that list the names of modules."""

OF_THE_COMMAND_LINE = {
    "commands",
    "how_to/command_line_tables",
    "start/command_line",
}
"""Pages whose `predict` and `fit` are commands."""

AT_MOST = 4
NOT_LINKED = (nodes.title, nodes.rubric, nodes.reference, pending_xref)


class Names:
    """The names in the reference: the place of each, and the ways to write it."""

    def __init__(self, env: BuildEnvironment) -> None:
        self.places = {
            name: (entry.docname, entry.node_id)
            for name, entry in env.domaindata["py"]["objects"].items()
            if name.startswith(PACKAGE) and not entry.aliased
        }
        self.written = defaultdict(list)
        for name in self.places:
            parts = name.removeprefix(PACKAGE).split(".")
            is_member = name.rpartition(".")[0] in self.places
            for start in range(len(parts) - is_member):
                self.written[".".join(parts[start:])].append(name)
        for module, section in MODULES.items():
            self.places[PACKAGE + module] = ("api", section)

    def find(self, text: str) -> str | None:
        """The full name of a name or a call in the text; none if that is not a public name."""
        match = CALL.fullmatch(text)
        if match is None:
            return None
        package, name, call = match.groups()
        if name in MODULES and package is None:
            return None
        owner, _, member = name.partition(".")
        of_class = f"{PACKAGE}{owner.capitalize()}.{member}"
        for full in (PACKAGE + name, of_class):
            if full in self.places:
                return full
        if name.isalpha() and name.islower() and call is None:
            return None  # a word such as `save`, `style` or `constant`
        found = self.written.get(name, [])
        return found[0] if len(found) == 1 else None


def literals(document: nodes.document) -> Iterator[nodes.literal]:
    """Code within sentences, but not within titles and links."""
    for literal in document.findall(nodes.literal):
        above = literal.parent
        while above is not None and not isinstance(above, NOT_LINKED):
            above = above.parent
        if above is None:
            yield literal


def is_in_table(node: nodes.Node) -> bool:
    """Whether a node is in a cell of a table."""
    while node is not None and not isinstance(node, nodes.entry):
        node = node.parent
    return node is not None


class Links:
    """Links between the pages and the reference."""

    def collect(self, app: Sphinx, env: BuildEnvironment) -> None:
        """Find out which pages use each name of the reference."""
        self.names = Names(env)
        self.users = defaultdict(Counter)
        for page in env.found_docs:
            if page.startswith(sum(GROUPS, ())) and not page.endswith("/index"):
                for name in self.used(env.get_doctree(page)):
                    self.users[self.names.places[name][0]][page] += 1

    def used(self, document: nodes.document) -> Iterator[str]:
        """The names that a page uses, each as often as the page uses it."""
        code = [*literals(document), *document.findall(nodes.literal_block)]
        for node in code:
            for word in IN_CODE.findall(node.astext()):
                in_sentence = isinstance(node, nodes.literal)
                if in_sentence or not (word.isalpha() and word.islower()):
                    yield from filter(None, [self.names.find(word)])

    def add(self, app: Sphinx, document: nodes.document, page: str) -> None:
        """Make links of names, and list the users of the name that a page describes.

        In sentences the first mention of a name is a link, in tables every mention.
        """
        seen = set()
        of_names = page not in OF_THE_COMMAND_LINE
        for literal in [*literals(document)] if of_names else []:
            name = self.names.find(literal.astext())
            place, anchor = self.names.places.get(name, (page, ""))
            if place != page and (name not in seen or is_in_table(literal)):
                seen.add(name)
                link = make_refnode(
                    app.builder, page, place, anchor, literal.deepcopy(), name
                )
                literal.replace_self(link)
        if page in self.users and page != "api":
            self.list_users(app, document, page)

    def list_users(
        self, app: Sphinx, document: nodes.document, page: str
    ) -> None:
        """List pages that use a name, above its members and their titles."""
        counts, users = self.users[page], []
        for group in GROUPS:
            of_group = [user for user in counts if user.startswith(group)]
            users += sorted(of_group, key=lambda user: (-counts[user], user))
        line = nodes.paragraph("", "Used in: ", classes=["used-in"])
        for user in users[:AT_MOST]:
            title = nodes.Text(app.env.titles[user].astext())
            link = make_refnode(app.builder, page, user, "", title)
            line += [link, nodes.Text(", ")]
        line[-1] = nodes.Text(".")
        content = next(document.findall(desc_content))
        above = (
            place
            for place, part in enumerate(content)
            if isinstance(part, desc) or "members" in part["classes"]
        )
        content.insert(next(above, len(content)), line)
