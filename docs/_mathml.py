"""Formulas as MathML, which browsers draw without a script, a font or the network."""

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
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


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer(
        "mathml", (visit_inline, None), (visit_block, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
