"""Sphinx configuration.

`python -m sphinx -W docs build/html` runs every tutorial and example, which takes some minutes; with
`-D plot_gallery=False` it runs none. Links to the documentation of other libraries need the network;
`DOCS_OFFLINE=1` leaves them out.
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

# read when tqdm is imported: no lines about the progress of fits between the results of scripts
os.environ["TQDM_DISABLE"] = "1"

import pyro_bnn

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
PUBLIC = (
    "acquisition",
    "calibration",
    "distributions",
    "interop",
    "kl",
    "likelihoods",
    "metrics",
    "optim",
    "plotting",
    "pruning",
    "scale_maps",
)
# autodoc imports modules by their public names
for name in (*PUBLIC, "uncertainty"):
    sys.modules[f"pyro_bnn.{name}"] = getattr(pyro_bnn, name)

HAS_MATHML = bool(find_spec("math_core") and find_spec("ziamath"))

project = "pyro-bnn"
author = "The pyro-bnn developers"
release = pyro_bnn.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    # without the extra `docs`, formulas need a script from the network
    "_mathml" if HAS_MATHML else "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "tutorials", "**/README.*"]
templates_path = ["_templates"]

# --- reference ------------------------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "description"
# the style sheet lets the lines of longer signatures flow, and break only between parameters
python_maximum_signature_line_length = 70
python_trailing_comma_in_multi_line_signatures = False
toc_object_entries_show_parents = "hide"
# descriptions link to the types, whose modules are private
napoleon_attr_annotations = False
autodoc_default_options = {"members": True, "show-inheritance": True}
if not os.environ.get("DOCS_OFFLINE"):
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "pyro": ("https://docs.pyro.ai/en/stable", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
    "arviz": ("https://python.arviz.org/en/v0.23.0", None),
}

# --- pages ----------------------------------------------------------------------------------------

default_role = "code"  # single backquotes in docstrings and tutorials
myst_enable_extensions = ["alert", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
if HAS_MATHML:
    html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# --- tutorials and examples as pages with their pictures ------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": ["tutorials", "../examples"],
    "gallery_dirs": ["gallery/tutorials", "gallery/examples"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "_gallery.InOrderOfTheList",
    "image_scrapers": ("_gallery.pictures",),
    "thumbnail_size": (640, 427),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 10**6,
    "write_computation_times": False,  # a page that loads scripts from the network
}

# --- look -----------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"pyro-bnn {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["custom.css"]
pygments_style = "tango"
pygments_dark_style = "github-dark"


def without_overloads(analyzer: ModuleAnalyzer) -> None:
    """Analyze a module, but show one signature of each function: overloads differ only in types."""
    analyze(analyzer)
    analyzer.overloads = {}


analyze = ModuleAnalyzer.analyze
ModuleAnalyzer.analyze = without_overloads


def example_first(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Show the example directly after the first sentence, above the many parameters, as a block without a heading."""
    if "Example:" not in lines:
        return
    start, first = lines.index("Example:"), lines.index("")
    end = next(
        (i for i in range(start + 1, len(lines)) if re.match(r"\S", lines[i])),
        len(lines),
    )
    example = dedent("\n".join(lines[start + 1 : end])).rstrip().splitlines()
    lines[:] = [
        *lines[: first + 1],
        *example,
        *lines[first:start],
        *lines[end:],
    ]


def setup(app: Sphinx) -> None:
    """Add titles to the sidebar after the theme has made it.

    Types in the reference are made shorter, names link to the reference, pictures get dark versions, and lists of
    scripts and of parameters get a form that is easy to scan.
    """
    from _commands import list_commands
    from _dark import add_dark_pictures
    from _fields import (
        as_definitions,
        attributes_first,
        complete,
        with_types,
        without_private_names,
        without_type,
    )
    from _gallery import (
        below_title,
        captions,
        cards,
        mark_traps,
        paragraphs_of_pictures,
        result_first,
    )
    from _look import (
        add_breaks,
        join_numbers,
        label_cells,
        mark_blocks,
        mark_cells,
    )
    from _names import Links
    from _notes import add_tooltips
    from _outputs import check_outputs, wrap_outputs
    from _plain import link_scripts, show_directives
    from _sidebar import add_titles
    from _types import link_types, public_bases, short_types

    # before Sphinx collects the pictures and files of a page
    app.connect("doctree-read", cards, priority=400)
    app.connect("doctree-read", add_dark_pictures, priority=400)
    app.connect("doctree-read", link_scripts, priority=400)
    app.connect("doctree-read", paragraphs_of_pictures, priority=400)
    app.connect("doctree-read", captions, priority=400)
    # before Sphinx collects the headings of a page
    app.connect("doctree-read", result_first, priority=400)
    app.connect("doctree-read", as_definitions)
    app.connect("doctree-read", with_types)
    app.connect("doctree-read", attributes_first)
    app.connect("doctree-read", mark_traps)
    app.connect("doctree-read", check_outputs)
    app.connect("doctree-read", wrap_outputs)
    app.connect("doctree-read", mark_blocks)
    app.connect("doctree-read", mark_cells)
    app.connect("doctree-read", label_cells)
    links = Links()
    app.connect("env-updated", links.collect)
    app.connect("doctree-resolved", links.add)
    app.connect("doctree-resolved", without_private_names)
    app.connect("doctree-resolved", join_numbers)
    app.connect("autodoc-process-bases", public_bases)
    # before napoleon reads the sections
    app.connect("autodoc-process-docstring", complete, priority=300)
    app.connect("autodoc-process-docstring", without_type, priority=300)
    app.connect("autodoc-process-docstring", example_first, priority=400)
    app.connect("object-description-transform", short_types, priority=900)
    app.connect("missing-reference", link_types, priority=400)
    app.connect("source-read", below_title)
    app.connect("source-read", show_directives)
    app.connect("source-read", list_commands)
    app.connect("html-page-context", add_titles, priority=900)
    app.connect("html-page-context", add_tooltips)
    app.connect("html-page-context", add_breaks)
