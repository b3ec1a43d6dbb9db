"""Formulas as MathML, which browsers draw without a script or the network.

A browser needs a font with mathematical signs of all sizes: that of ziamath is for systems that have none.
"""

from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

CONVERTER = LatexToMathML(fancy_error=False)
LOGGER = logging.getLogger(__name__)


def converted(latex: str, node: nodes.Element, *, is_block: bool) -> str:
    """MathML of a formula; a warning, with the formula as text, if it has an unknown command."""
    if is_block and "\\\\" in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"  # as `sphinx.ext.mathjax` does
    try:
        return CONVERTER.convert_with_local_state(latex, displaystyle=is_block)
    except LatexError as error:
        LOGGER.warning("%s: %s", error, latex, location=node)
        return f"<code>{nodes.Text(latex).astext()}</code>"


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(converted(node.astext(), node, is_block=False))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own, or several with blank lines between them."""
    for part in filter(str.strip, node.astext().split("\n\n")):
        formula = converted(part, node, is_block=True)
        translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def add_font(_: Sphinx, config: Config) -> None:
    """Copy the font to the static files; the style sheet names it."""
    package = Path(find_spec("ziamath").origin).parent
    config.html_static_path.append(
        str(package / "fonts" / "STIXTwoMath-Regular.ttf")
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.connect("config-inited", add_font)
    app.add_html_math_renderer(
        "mathml", (visit_inline, None), (visit_block, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
