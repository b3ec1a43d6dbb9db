"""Pages are plain Markdown, which a repository shows as well: their directives are comments, and scripts are files."""

import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx

COMMENT = re.compile(r"<!--\s((?::::|```\{).*?)-->", re.DOTALL)


def show_directives(app: Sphinx, page: str, source: list[str]) -> None:
    """Read the directives that are in comments."""
    source[0] = COMMENT.sub(r"\1", source[0])


def link_scripts(app: Sphinx, document: nodes.document) -> None:
    """Lead links to tutorials and examples to their pages in the gallery."""
    for link in [*document.findall(download_reference)]:
        path = PurePosixPath(link["reftarget"])
        if path.suffix == ".py" and path.parent.name in (
            "tutorials",
            "examples",
        ):
            page = pending_xref(
                "",
                *link.children,
                refdomain="std",
                reftype="doc",
                reftarget=f"/gallery/{path.parent.name}/{path.stem}",
                refdoc=app.env.docname,
                refexplicit=True,
                refwarn=True,
            )
            link.replace_self(page)
