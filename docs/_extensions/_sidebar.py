"""Titles of groups in the sidebar, among the pages of how-to, explanations, results and reference.

Of the reference, which has two hundred pages, the sidebar lists only those of the present group.
"""

import re
from pathlib import Path
from typing import Any

from docutils.nodes import make_id
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
LISTS = {
    "how_to/index": "how_to/index.md",
    "understand/index": "understand/index.md",
    "results/index": "results/index.md",
    "api": "api.rst",
}
"""Page -> the document that lists its pages in groups."""

ITEM = '<li class="toctree-l2'


def groups(document: Path) -> list[tuple[str, int]]:
    """The sections of a page that lists pages, each with the number of its pages."""
    text = document.read_text()
    if document.suffix == ".rst":
        parts = re.split(r"(?m)^(\S.*)\n-+\n", text)[1:]
        names = r"(?m)^   (?!:)\S+$"
    else:
        parts = re.split(r"(?m)^## (.*)\n", text.partition("```{toctree}")[0])[
            1:
        ]
        names = r"(?m)^(?:- |\| )\[.*?\]\(\w+\.md\)"
    counts = [len(re.findall(names, part)) for part in parts[1::2]]
    return [
        (title, count)
        for title, count in zip(parts[::2], counts, strict=True)
        if count
    ]


def with_titles(
    tree: str, page: str, found: list[tuple[str, int]], *, collapses: bool
) -> str:
    """The sidebar with a title above each group of the pages below `page`.

    If `collapses`, a group without the present page is only a link to its section.
    """
    above, of_page, below = re.split(
        rf'(<li class="toctree-l1[^>]*><a[^>]*href="{re.escape(page)}">)',
        tree,
        maxsplit=1,
    )
    of_group, rest = re.split(
        r'(?=<li class="toctree-l1)|\Z', below, maxsplit=1
    )
    head, *items = of_group.split(ITEM)
    if len(items) != sum(count for _, count in found):
        msg = f"{page} lists {sum(count for _, count in found)} pages but has {len(items)} in the sidebar"
        raise ValueError(msg)
    lines, start = [head], 0
    for title, count in found:
        own, start = items[start : start + count], start + count
        if collapses and not any(item.startswith(" current") for item in own):
            link = f"{'' if page == '#' else page}#{make_id(title)}"
            # the last page of all is followed by the ends of the lists
            after = own[-1].partition("</li>")[2]
            lines.append(
                f'{ITEM} closed"><a class="reference internal" href="{link}">{title}</a></li>{after}'
            )
            continue
        shorter = title.partition(":")[0]
        kind = "group open" if collapses else "group"
        lines.append(f'<li class="{kind}">{shorter}</li>')
        inner = f"{ITEM} inner" if collapses else ITEM
        lines += [inner + item for item in own]
    return "".join((above, of_page, *lines, rest))


def add_titles(
    app: Sphinx, name: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Add the titles to the sidebar of one page, and places where long names may break.

    A page of the reference with a single name has no list of contents.
    """
    if name.startswith("generated/") and context["toc"].count("<li>") < 3:
        context["furo_hide_toc"] = True
    if "furo_navigation_tree" not in context:
        return
    for target, document in LISTS.items():
        page = "#" if name == target else context["pathto"](target)
        context["furo_navigation_tree"] = with_titles(
            context["furo_navigation_tree"],
            page,
            groups(DOCS / document),
            collapses=target == "api",
        )
    context["furo_navigation_tree"] = re.sub(
        r"(?<=[a-z])(?=[A-Z][^<>]*<)", "<wbr>", context["furo_navigation_tree"]
    )
