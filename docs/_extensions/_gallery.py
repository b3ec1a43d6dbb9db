"""The scripts of the gallery: their order, pictures, traps and lists."""

import re
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from _phone import redraw
from docutils import nodes
from matplotlib.collections import QuadMesh
from PIL import Image
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx_gallery.directives import imgsgnode
from sphinx_gallery.scrapers import figure_rst

from pyro_bnn import plotting

DARK_IS_MUCH = ("Blues", "Greys", "binary", "gray_r")
"""Colour maps that may be turned to light on dark: they begin with the white of the ground."""

NOTE_OR_FOOTER = re.compile(
    r"(?s)\.\. only:: html\n\n +\.\. note::.*?\n(?=\S)|\.\. _sphx_glr_download_.*"
)

TRAPS = ("Trap", "Common mistake")

PANELS = {
    "adapters": (1, (0, 0, 1, 0.5)),
    "mixture_density": (2, (0.165, 0.03, 1, 0.44)),
    "plot_1_plain_to_bayesian": (3, (0.152, 0.131, 0.985, 0.452)),
    "plot_2_detect_the_unknown": (1, (0, 0, 0.74, 0.5)),
    "plot_3_is_my_posterior_good": (2, (0.152, 0.779, 0.985, 0.961)),
    "plot_4_prune": (3, (0.15, 0, 1, 0.435)),
    "transformer": (1, (0.14, 0, 1, 0.443)),
}
"""The picture that a card shows, counted from 1, and which part of its version for phones: left, top, right and bottom,
from 0 to 1. Most parts are without the numbers of the axes, which would be tiny."""

ONLY_PANEL = (1, (0.132, 0, 1, 0.855))


def has_colors_of_its_own() -> bool:
    """Whether an open figure has a map of colours that would be false if the dark theme turned them."""
    axes = [
        ax for number in plt.get_fignums() for ax in plt.figure(number).axes
    ]
    maps = [
        shown.get_cmap().name
        for ax in axes
        for shown in (*ax.images, *ax.collections)
        if isinstance(shown, QuadMesh) or shown in ax.images
    ]
    return any(name not in DARK_IS_MUCH for name in maps)


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
    saved = Path(block_vars["src_file"]).parent.rglob("*.png")
    saved = sorted(saved, key=lambda path: path.stat().st_mtime)
    figures = [plt.figure(number) for number in plt.get_fignums()]
    mark = "" if saved or not has_colors_of_its_own() else " as-drawn"
    shown = ""
    for index, figure in enumerate(figures):
        target = Path(next(block_vars["image_path_iterator"]))
        with plotting.style():
            if saved:
                saved[index].replace(target)
            else:
                figure.savefig(target)
            redraw(figure, target.with_stem(f"{target.stem}_phone"))
        shown += figure_rst([str(target)], gallery_conf["src_dir"])
    plt.close("all")
    return shown.replace("-single-img", f"-single-img{mark}")


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
    """Link the files of a script; if the scripts were not run, say how to get their output and pictures.

    The links replace those of sphinx-gallery at the end, and its note that leads to them.
    """
    if not page.startswith("gallery/"):
        return
    lines, name = [], Path(page).name
    if name != "index":
        source[0] = NOTE_OR_FOOTER.sub("", source[0])
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
    """Make a warning of each paragraph of a script that begins with one of `TRAPS` in bold letters."""
    if not app.env.docname.startswith("gallery/"):
        return
    for paragraph in [*document.findall(nodes.paragraph)]:
        first, *rest = paragraph.children
        name = first.astext().rstrip(".:")
        if isinstance(first, nodes.strong) and name.startswith(TRAPS):
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
    """Put each picture of a script into a paragraph, as in other pages, with its version for phones."""
    for picture in [*document.findall(imgsgnode)]:
        wide = picture.deepcopy()
        paragraph = nodes.paragraph("", "", wide)
        # Sphinx copies the pictures of a page into one folder, so the names must differ
        phone = "_phone.".join(wide["uri"].rsplit(".", 1))
        if Path(f"{app.srcdir}/{phone}").is_file():
            classes = [*(wide["class"] or []), "on-phone"]
            paragraph += nodes.image(uri=phone, classes=classes)
            wide["class"] = [*(wide["class"] or []), "restacked"]
        # sphinx-gallery writes the first class only
        wide["class"] = [" ".join(wide["class"] or [])]
        picture.replace_self(paragraph)


def is_picture(node: nodes.Node) -> bool:
    """Whether this is a paragraph with a picture of a script."""
    return isinstance(node, nodes.paragraph) and isinstance(
        node.next_node(), imgsgnode
    )


def is_caption(node: nodes.Node) -> bool:
    """Whether this is a paragraph of a single emphasis."""
    return (
        isinstance(node, nodes.paragraph)
        and len(node.children) == 1
        and isinstance(node[0], nodes.emphasis)
    )


def captions(app: Sphinx, document: nodes.document) -> None:
    """Put captions below the pictures of a script; what they say is also the text for readers who do not see them.

    Captions are paragraphs of a single emphasis, one for each picture. They follow the pictures, or the code and the
    output that follow them.
    """
    if not app.env.docname.startswith("gallery/"):
        return
    waiting: list[nodes.paragraph] = []
    for node in [*document.findall(nodes.Element)]:
        if is_picture(node):
            waiting.append(node)
        elif is_caption(node) and waiting:
            picture = waiting.pop(0)
            alt = " ".join(node.astext().split())
            picture[0]["alt"] = escape(alt)
            for phone in picture[1:]:
                phone["alt"] = alt
            node.parent.remove(node)
            above = picture.parent
            above.insert(above.index(picture) + 1, node)
        elif isinstance(node, nodes.title | nodes.paragraph):
            waiting = []  # only what directly follows is a caption


def result_first(app: Sphinx, document: nodes.document) -> None:
    """Show what an example draws and prints below its introduction, and the code below a heading of its own."""
    if not re.fullmatch("gallery/examples/(?!index).*", app.env.docname):
        return
    page = next(document.findall(nodes.section))
    code = page.first_child_matching_class(nodes.literal_block)
    script = nodes.section("", nodes.title("", "The script"), *page[code:])
    script["names"].append("the script")
    document.note_implicit_target(script)
    results = []
    for node in [*script.findall(nodes.Element)]:
        is_output = "sphx-glr-script-out" in node.get("classes", ())
        follows = results and node is results[-1].next_node(
            descend=False, siblings=True
        )
        if is_output or is_picture(node) or (is_caption(node) and follows):
            results.append(node)
    for node in results:
        node.parent.remove(node)
    page[code:] = [*results, script]


def crop(
    picture: Path, box: tuple[float, float, float, float], target: Path
) -> None:
    """Write a part of a picture, which is given by its edges from 0 to 1."""
    with Image.open(picture) as opened:
        sides = (*opened.size, *opened.size)
        edges = [
            round(edge * side) for edge, side in zip(box, sides, strict=True)
        ]
        opened.crop(edges).save(target)


def shown_by(script: Path, thumbnail: nodes.image) -> nodes.Node | None:
    """The first picture of a script, or the first lines that it prints; none if the script was not run.

    Args:
        script: The page of the script.
        thumbnail: The small picture that sphinx-gallery made; without a picture of the script, a placeholder.
    """
    images = script.parent / "images"
    number, box = PANELS.get(script.stem, ONLY_PANEL)
    shown = images / f"sphx_glr_{script.stem}_{number:03}_phone.png"
    if shown.is_file():
        crop(shown, box, images / "thumb" / f"sphx_glr_{script.stem}_thumb.png")
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
