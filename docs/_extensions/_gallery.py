"""The scripts of the gallery: their order, pictures, traps and lists."""

import re
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx_gallery.directives import imgsgnode
from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper

DPI = 120
"""Pixels per inch: a figure of 6.2 inches is as wide as the text, and its letters of 7 points have 12 pixels."""


def pictures(
    block: tuple, block_vars: dict[str, Any], gallery_conf: dict[str, Any]
) -> str:
    """Move the pictures that a script saved beside itself into the gallery; without any, those that it shows.

    Args:
        block: The code block.
        block_vars: Paths and names of the script; `image_path_iterator` gives the names of pictures.
        gallery_conf: Configuration of the gallery.

    Returns:
        reStructuredText that shows the pictures.
    """
    folder, moved = Path(block_vars["src_file"]).parent, []
    for picture in sorted(
        folder.rglob("*.png"), key=lambda path: path.stat().st_mtime
    ):
        target = Path(next(block_vars["image_path_iterator"]))
        picture.replace(target)
        moved.append(str(target))
    if not moved:
        return matplotlib_scraper(block, block_vars, gallery_conf, dpi=DPI)
    plt.close("all")
    return figure_rst(moved, gallery_conf["src_dir"])


class InOrderOfTheList:
    """Sort key of the scripts of a folder: the order in which its header lists them.

    Args:
        folder: The folder of the scripts.
    """

    def __init__(self, folder: str) -> None:
        self.header = Path(folder) / "GALLERY_HEADER.rst"

    def __call__(self, name: str) -> int:
        """The place of a script; one that is not listed is an error."""
        return self.header.read_text().index(f"_{name}>")


def below_title(app: Sphinx, page: str, source: list[str]) -> None:
    """Link the files of a script; if the scripts were not run, say how to get their output and pictures."""
    if not page.startswith("gallery/"):
        return
    lines, name = [], Path(page).name
    if name != "index":
        lines.append(
            f"Download: :download:`notebook <{name}.ipynb>`, :download:`script <{name}.py>`"
        )
    if str(app.config.plot_gallery) == "False":
        lines.append(
            "*This build did not run the scripts:* ``nox -s docs -- full`` *adds their output and pictures.*"
        )
    below = "\n\n".join(["", *lines, ""])
    source[0] = re.sub(r"(?m)^=+\n", rf"\g<0>{below}", source[0], count=1)


def mark_traps(app: Sphinx, document: nodes.document) -> None:
    """Make a warning of each paragraph of a script that begins with "Trap" in bold letters."""
    if not app.env.docname.startswith("gallery/"):
        return
    for paragraph in [*document.findall(nodes.paragraph)]:
        first, *rest = paragraph.children
        name = first.astext().rstrip(".:")
        if isinstance(first, nodes.strong) and name.startswith("Trap"):
            start = rest[0].astext().lstrip()
            rest[0] = nodes.Text(start[:1].upper() + start[1:])
            paragraph.children = []
            paragraph += rest
            trap = nodes.admonition(
                "",
                nodes.title("", name),
                paragraph.deepcopy(),
                classes=["warning"],
            )
            paragraph.replace_self(trap)


def paragraphs_of_pictures(app: Sphinx, document: nodes.document) -> None:
    """Put each picture of a script into a paragraph, as in other pages: the style sheet lets it scroll on a phone."""
    for picture in [*document.findall(imgsgnode)]:
        picture.replace_self(nodes.paragraph("", "", picture.deepcopy()))


def shown_by(script: Path, thumbnail: nodes.image) -> nodes.Node | None:
    """The first picture of a script, or the first lines that it prints; none if the script was not run.

    Args:
        script: The page of the script.
        thumbnail: The small picture that sphinx-gallery made; without a picture of the script, a placeholder.
    """
    pictures = (script.parent / "images").glob(f"sphx_glr_{script.stem}_0*")
    if any(pictures):
        return thumbnail
    printed = re.search(
        r"sphx-glr-script-out\n\n \.\. code-block:: none\n\n((?:    .*\n|\n)+)",
        script.read_text(),
    )
    if printed is None:
        return None
    lines = [line[4:] for line in printed[1].splitlines()[:24]]
    text = escape("\n".join(lines))
    return nodes.raw(
        "",
        f'<pre class="printed" aria-hidden="true">{text}</pre>',
        format="html",
    )


def cards(app: Sphinx, document: nodes.document) -> None:
    """Make cards of the lists of scripts: what the script shows, its title, and the sentence about it."""
    page = app.env.docname
    if not re.fullmatch("gallery/.*/index", page):
        return
    thumbnails = {
        Path(image["uri"]).name: image
        for image in document.findall(nodes.image)
    }
    for item in document.findall(nodes.list_item):
        item.parent["classes"] = ["gallery-cards"]
        title, text, *rest = item[0].children
        name = re.fullmatch(
            r"sphx_glr_gallery_[a-z]+_(\w+)\.py", title["reftarget"]
        )[1]
        sentence = text.astext().lstrip(": \n")
        text = nodes.Text(sentence[0].upper() + sentence[1:])
        shown = shown_by(
            Path(app.srcdir, page).with_name(f"{name}.rst"),
            thumbnails[f"sphx_glr_{name}_thumb.png"],
        )
        item.children = []
        item += [shown] if shown is not None else []
        item += nodes.paragraph("", "", title, classes=["card-title"])
        item += nodes.paragraph("", "", text, *rest)
    # the thumbnails of sphinx-gallery have no sentences
    parts = [*document.findall(nodes.raw), *document.findall(addnodes.only)]
    for part in parts:
        if not isinstance(part.parent, nodes.list_item):
            part.parent.remove(part)
