"""Parts of the pages that are made when the documentation is built: cards of scripts, marks of cells, arguments."""

import importlib.util
import itertools
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from PIL import Image

pytest.importorskip("sphinx_gallery")
from docutils import nodes
from docutils.core import publish_doctree
from sphinx.addnodes import desc_content, download_reference, pending_xref

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS / "_extensions"))  # for parts that import others
SCRIPTS = """
.. raw:: html

    <div class="sphx-glr-thumbnails">

.. image:: images/thumb/sphx_glr_drawn_thumb.png
.. image:: images/thumb/sphx_glr_printed_thumb.png
.. image:: images/thumb/sphx_glr_waiting_thumb.png

"""
OUTPUT = """
.. rst-class:: sphx-glr-script-out

 .. code-block:: none

    accuracy <90 %>

    and more

Text.
"""

EXAMPLE = """
Words.

Title
=====

Introduction.

::

    import

Run
---

::

    main()
"""


def part(name):
    """The module `docs/_extensions/_NAME.py`."""
    spec = importlib.util.spec_from_file_location(f"_{name}", DOCS / "_extensions" / f"_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def item(name, sentence):
    title = nodes.inline("", name.title(), reftarget=f"sphx_glr_gallery_examples_{name}.py")
    return nodes.list_item("", nodes.paragraph("", "", title, nodes.Text(sentence)))


def test_a_card_has_what_its_script_shows_if_it_was_run(tmp_path):
    folder = tmp_path / "gallery" / "examples"
    (folder / "images" / "thumb").mkdir(parents=True)
    figure = Figure(figsize=(7, 3))
    for panel in figure.subplots(1, 6):
        panel.set_yticks([1, 2])
    figure.legend([panel.plot([1, 2], label="a line")[0]], ["a line"], ncols=4)
    part("phone").redraw(figure, folder / "images" / "sphx_glr_drawn_001_phone.png")
    assert (*figure.get_size_inches(), len(figure.legends)) == (3.5, 6, 1)
    assert {panel.get_subplotspec().colspan.start for panel in figure.axes} == {0, 1, 2}
    for name, text in {"drawn": OUTPUT, "printed": OUTPUT, "waiting": "Text.\n"}.items():
        (folder / f"{name}.rst").write_text(text)
    document = publish_doctree(SCRIPTS)
    document += nodes.bullet_list(
        "", item("drawn", ": a picture."), item("printed", " prints a score."), item("waiting", " waits.")
    )
    app = SimpleNamespace(srcdir=tmp_path, env=SimpleNamespace(docname="gallery/examples/index"))
    part("gallery").cards(app, document)
    drawn, printed, waiting = document.findall(nodes.list_item)
    assert drawn[0]["uri"].endswith("sphx_glr_drawn_thumb.png")
    assert "accuracy &lt;90 %&gt;\n\nand more" in printed[0].astext()
    assert [child.astext() for child in waiting] == ["Waiting", "Waits."]
    assert [child.astext() for child in drawn[1:]] == ["Drawn", "A picture."]
    assert not [raw for raw in document.findall(nodes.raw) if "thumbnails" in raw.astext()]


def test_each_line_of_the_lists_of_scripts_begins_with_a_link():
    """A card takes its title from this link, and the rest of the line is its sentence."""
    for header in (DOCS / "tutorials", DOCS.parent / "examples"):
        lines = re.findall(r"(?m)^(?:- |\d\. )(.*)", (header / "GALLERY_HEADER.rst").read_text())
        assert len(lines) > 3
        assert all(re.match(r":ref:`[^<]+ <sphx_glr_gallery_\w+\.py>`(:? [\w`]|:$|$)", line) for line in lines), lines


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("ConformalIntervals(prediction,", ["ConformalIntervals(", "prediction,"]),
        ("scale_maps.Precision()", ["scale_maps.", "Precision()"]),
        ("HeteroscedasticGaussianLikelihood", ["Heteroscedastic", "Gaussian", "Likelihood"]),
        ("expected_calibration_error", ["expected_", "calibration_", "error"]),
        ("num_epochs=20", ["num_epochs=20"]),
    ],
)
def test_code_in_a_cell_breaks_where_a_reader_expects_it(code, parts):
    context = {"body": f'<p><span class="pre">{code}</span></p><td><span class="pre">{code}</span></td>'}
    part("look").add_breaks(None, "page", "page.html", context, None)
    outside, inside = re.findall(r'<span class="pre">(.*?)</span>', context["body"])
    assert outside == code
    assert inside.split("<wbr>") == parts


def test_no_line_ends_within_the_hyphens_of_an_option():
    context = {"body": '<td><code><span class="pre">train</span> <span class="pre">--out</span></code></td>'}
    part("look").add_breaks(None, "page", "page.html", context, None)
    assert '<span class="pre"><span class="word">--out</span></span>' in context["body"]


def test_the_last_bracket_of_a_signature_and_long_names_in_titles():
    signature = '<dl>\n<dd><em>exclude=()</em></dd>\n</dl>\n\n<span class="sig-paren">)</span>'
    context = {"body": signature + '<th class="head"><p>TorchUncertainty and TyXe</p></th>'}
    part("look").add_breaks(None, "page", "page.html", context, None)
    assert '<dd><em>exclude=()</em><span class="sig-paren">)</span></dd></dl>' in context["body"]
    assert "<p>Torch<wbr>Uncertainty and TyXe</p>" in context["body"]


def test_cells_with_ticks_and_dashes_and_titles_of_groups_are_marked():
    rows = [["tools", "", "", "", ""], ["export", "✓ [1]", "\N{EN DASH} (JAX)", "part\N{NO-BREAK SPACE}[2]", "parts"]]
    table = nodes.tbody("", *(nodes.row("", *(nodes.entry("", nodes.Text(cell)) for cell in row)) for row in rows))
    titles = nodes.row("", *(nodes.entry("", nodes.Text(title)) for title in ("feature", "a", "b", "c", "d")))
    titles[1] += nodes.footnote_reference("", "1")
    document = publish_doctree("")
    document += nodes.tgroup("", nodes.thead("", titles), table)
    part("look").mark_cells(None, document)
    group, marked = table
    assert group["classes"] == ["group"]
    assert [cell[-1].astext() for cell in group] == ["tools", "a", "b", "c", "d"]  # for windows that hide the first row
    assert [cell["classes"] for cell in marked] == [[], ["yes"], ["no"], ["part"], []]


def test_numbers_stay_with_their_signs_and_units():
    sentence, code = "0.41 ± 0.01 of 90 % for (N, 2 O) and N, O on 2026-11-25: R-hat -1", "5 % -1"
    cell = nodes.entry("", nodes.paragraph("", "", nodes.Text("-0.5, 3-5 "), nodes.literal("", code)))
    document = publish_doctree("")
    document += [nodes.paragraph("", "", nodes.Text(sentence)), cell]
    part("look").join_numbers(None, document, "page")
    parts = document[0].astext().replace("\N{NON-BREAKING HYPHEN}", "=").replace("\N{NO-BREAK SPACE}", "_")
    assert parts == "0.41_±_0.01 of 90_% for (N,_2_O) and N, O on 2026=11=25: R=hat -1"
    assert cell.astext() == f"\N{MINUS SIGN}0.5, 3-5 {code}"


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("**Trap: scales.** They matter, *here*.", "Trap: scales", "They matter, here."),
        ("**Trap:** a point.", "Trap", "A point."),
        ("**Scales.** They matter.", None, None),
    ],
)
def test_a_trap_of_a_tutorial_is_a_warning(text, title, rest):
    document = publish_doctree(text)
    app = SimpleNamespace(env=SimpleNamespace(docname="gallery/tutorials/plot"))
    part("gallery").mark_traps(app, document)
    found = [[child.astext() for child in trap] for trap in document.findall(nodes.admonition)]
    assert found == ([[title, rest]] if title else [])


def test_the_files_of_a_script_are_linked_once_at_the_top():
    note = ".. only:: html\n\n    .. note::\n\n        Go to the end.\n\n"
    footer = "\n.. _sphx_glr_download_gallery_examples_digits.py:\n\n.. only:: html\n\n  Download.\n"
    app = SimpleNamespace(config=SimpleNamespace(plot_gallery=True))
    source = [f"{note}Title\n=====\n\nText.\n{footer}"]
    part("gallery").below_title(app, "gallery/examples/digits", source)
    assert re.fullmatch(r"Title\n=+\n+Download: .*<digits.ipynb>.*<digits.py>`\n+Text.\n+", source[0])


def test_an_argument_is_divided_into_its_name_and_its_text():
    listed = [
        nodes.paragraph("", "", nodes.strong("", "x"), *map(nodes.Text, (" (Tensor)", " \N{EN DASH} ", "The inputs."))),
        nodes.paragraph("", "", nodes.strong("", "y"), nodes.Text(" (Tensor)")),
        nodes.paragraph("", "", nodes.strong("", "UserWarning"), nodes.Text(" \N{EN DASH} If it fails.")),
    ]
    body = nodes.field_body("", nodes.bullet_list("", *(nodes.list_item("", paragraph) for paragraph in listed)))
    fields = nodes.field_list("", nodes.field("", nodes.field_name("", "Parameters"), body))
    document = publish_doctree("")
    document += desc_content("", fields)
    part("fields").as_definitions(None, document)
    found = [[child.astext() for child in argument] for argument in document.findall(nodes.definition_list_item)]
    assert found == [["x (Tensor)", "The inputs."], ["y (Tensor)", ""], ["UserWarning", "If it fails."]]


def test_a_picture_has_a_dark_version_and_others_for_phones(tmp_path):
    (tmp_path / "pictures").mkdir()
    for file in ("regression_phone", "regression", "trust"):
        shutil.copy(DOCS / "pictures" / f"{file}.png", tmp_path / "pictures")
    for name in ("regression", "trust"):
        paragraph = nodes.paragraph("", "", nodes.image(uri=f"../pictures/{name}.png", alt="Scores."))
        document = publish_doctree("")
        document += paragraph
        part("dark").add_dark_pictures(SimpleNamespace(srcdir=tmp_path), document)
        classes = [image["classes"] for image in paragraph]
        shown = sorted(one[0] for one in classes)
        assert shown == sorted(["only-light", "only-dark"] * 2)
        assert sum("on-phone" in one for one in classes) == 2


@pytest.mark.parametrize("name", sorted(part("phone").ROWS))
def test_a_picture_is_cut_for_phones_where_it_is_white(name, tmp_path):
    phone = part("phone")
    with Image.open(DOCS / "pictures" / f"{name}.png") as opened:
        picture = opened.convert("L")
    for left, top, right, bottom in itertools.chain(*phone.ROWS[name]):
        for edge in ((left, top, left + 1, bottom), (right - 1, top, right, bottom), (left, top, right, top + 1)):
            assert picture.crop(edge).getextrema() == (255, 255), edge
    phone.restack(DOCS / "pictures" / f"{name}.png", tmp_path / f"{name}.png")
    with Image.open(tmp_path / f"{name}.png") as restacked:
        assert restacked.width < 0.75 * picture.width  # so letters are larger


FOR_SPHINX_ALONE = {"index.md", "changelog.md"}
DIRECTIVE = r"(?m)^ *(?::::|`{3,}\{|\{[\w:]+\}`).*|\{[\w:]+\}`[^`]*`"


def test_pages_are_plain_markdown_which_a_repository_shows():
    """Directives are in comments; glossary, scripts and code are linked and written as in any Markdown file."""
    assert re.findall(DIRECTIVE, ":::{grid}\n```{toctree}\nsee {term}`logit`") == [
        ":::{grid}", "```{toctree}", "{term}`logit`"
    ]  # fmt: skip
    for page in {*DOCS.rglob("*.md"), DOCS.parent / "README.md"} - {DOCS / name for name in FOR_SPHINX_ALONE}:
        shown = re.sub(r"(?s)<!--.*?-->", "", page.read_text())
        assert re.findall(DIRECTIVE, shown) == [], page


def test_directives_in_comments_are_read():
    text = "<!-- begin: claim -->\n<!-- :::{card} -->\nText\n<!-- ::: -->\n<!--\n```{toctree}\n\npage\n```\n-->\n"
    source = [text]
    part("plain").show_directives(None, "page", source)
    lines = [line.rstrip() for line in source[0].splitlines() if line.strip()]
    assert lines == ["<!-- begin: claim -->", ":::{card}", "Text", ":::", "```{toctree}", "page", "```"]


def test_the_page_of_commands_has_all_options_with_their_defaults():
    commands, source = part("commands"), ["# Commands"]
    commands.list_commands(None, commands.PAGE, source)
    for command in commands.typer.main.get_command(commands.program).commands.values():
        assert f"\n\n## {command.name}\n\n```text\npyro-bnn {command.name} [OPTIONS]" in source[0]
        assert all(commands.definition(parameter) in source[0] for parameter in command.params)
    assert "\n\n`--seed`\n: Seed of the draws of the weights. Default: 0.\n\n" in source[0]
    assert commands.marked('a *.csv, --out or `fit`; "" for all') == r'a \*.csv, `--out` or `fit`; `""` for all'


@pytest.mark.parametrize(
    ("file", "page"),
    [
        ("../tutorials/plot_4_prune.py", "/gallery/tutorials/plot_4_prune"),
        ("../../examples/bandit.py", "/gallery/examples/bandit"),
        ("../data/digits.csv", None),
    ],
)
def test_a_link_to_a_script_leads_to_its_page(file, page):
    document = publish_doctree("")
    document += nodes.paragraph("", "", download_reference("", "", nodes.inline("", "words"), reftarget=file))
    part("plain").link_scripts(SimpleNamespace(env=SimpleNamespace(docname="how_to/export")), document)
    assert [link["reftarget"] for link in document.findall(pending_xref)] == ([page] if page else [])
    assert document.astext() == "words"


def gallery_page(text):
    """A page of a script, and a stand-in for the application."""
    app = SimpleNamespace(env=SimpleNamespace(docname="gallery/tutorials/plot"))
    return app, publish_doctree(text)


def test_a_paragraph_of_emphasis_after_a_picture_is_its_caption_and_its_text(tmp_path):
    gallery = part("gallery")
    app, document = gallery_page('Text.\n\n*The "blue" line.*\n\n*The second.*\n\n*Not a caption.*\n')
    app.srcdir = tmp_path
    (tmp_path / "b_phone.png").touch()
    for name in "ba":
        picture = gallery.imgsgnode(alt="plot", uri=f"/{name}.png", **{"class": ["single", "as-drawn"]})
        document.insert(1, picture)
    gallery.paragraphs_of_pictures(app, document)
    gallery.captions(app, document)
    first, caption, second, other, *_ = document[1:]
    assert [picture[0]["class"] for picture in (first, second)] == [["single as-drawn"], ["single as-drawn restacked"]]
    assert second[1]["uri"] == "/b_phone.png"  # a name of its own: Sphinx copies all pictures into one folder
    assert (second[1]["alt"], second[1]["classes"]) == ("The second.", ["single", "as-drawn", "on-phone"])
    assert [first[0]["alt"], second[0]["alt"]] == ["The &quot;blue&quot; line.", "The second."]
    assert [caption.astext(), other.astext()] == ['The "blue" line.', "The second."]
    assert document[-1].astext() == "Not a caption."


def test_what_an_example_shows_stands_above_its_code():
    gallery = part("gallery")
    _, document = gallery_page(EXAMPLE)
    picture = nodes.paragraph("", "", gallery.imgsgnode(alt="plot"))
    caption = nodes.paragraph("", "", nodes.emphasis("", "A caption."))
    printed = nodes.literal_block("", "accuracy", classes=["sphx-glr-script-out"])
    [*document.findall(nodes.section)][-1].extend([picture, caption, printed])
    app = SimpleNamespace(env=SimpleNamespace(docname="gallery/examples/bandit"))
    gallery.result_first(app, document)
    page = next(document.findall(nodes.section))
    assert page[2:5] == [picture, caption, printed]
    assert [title.astext() for title in page[5].findall(nodes.title)] == ["The script", "Run"]
    assert [block.astext() for block in page[5].findall(nodes.literal_block)] == ["import", "main()"]


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ("/home/me/script.py:3: PosteriorWarning: too short", True),
        ("saved in /tmp/run/fit.pt", True),
        ("UserWarning: slow", True),
        ("2/3 of https://pyro.ai/a/b and docs/how_to/index.md", False),
    ],
)
def test_warnings_and_paths_in_printed_results_are_found(line, is_fault):
    assert bool(part("outputs").FAULT.search(line)) == is_fault


def test_long_sentences_beside_a_printed_table_go_on_in_the_next_line():
    app, document = gallery_page("")
    text = "name    mean    sd\nweight  1.000   0.5\n" + " ".join(["words"] * 30)
    block = nodes.literal_block("", text, classes=["sphx-glr-script-out"])
    document += block
    part("outputs").wrap_outputs(app, document)
    assert max(map(len, block.astext().splitlines())) <= 80
    part("look").mark_blocks(app, document)
    assert block["classes"] == ["sphx-glr-script-out", "columns"]


def test_a_wide_table_of_words_repeats_the_titles_of_its_columns():
    bar, cell = "=" * 30, "some words that explain a row"
    rows = [["a", "b", "c", "d"], ["x", cell, cell, cell]]
    lines = [" ".join(f"{text:30}" for text in row).rstrip() for row in rows]
    bars = " ".join([bar] * 4)
    document = publish_doctree("\n".join([bars, lines[0], bars, lines[1], bars]))
    part("look").label_cells(None, document)
    labels = [label.astext() for label in document.findall(nodes.inline) if "label" in label["classes"]]
    assert labels == ["b: ", "c: ", "d: "]


def test_the_terms_of_the_glossary_are_in_order():
    terms = re.findall(r"(?m)^### (.*)", (DOCS / "understand" / "glossary.md").read_text())
    assert terms == sorted(terms, key=lambda term: term.lower().replace("-", " "))
