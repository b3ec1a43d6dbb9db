"""Shorter types in the reference: the alias `Inputs` by its name, and no private base classes."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

INPUTS = re.compile(
    r"~?[\w.]*Tensor \| ~?[\w.]*Shared \| ~?[\w.]*Sequence\[~?[\w.]*Inputs\] "
    r"\| ~?[\w.]*Mapping\[~?str, ~?[\w.]*Inputs\]"
)
"""What `Inputs` stands for; Sphinx writes it out once more within itself."""


def public_bases(
    app: Sphinx, name: str, cls: type, options: Any, bases: list[type]
) -> None:
    """Leave out private base classes."""
    public = [base for base in bases if "._core." not in f"{base.__module__}."]
    bases[:] = public or [object]


def short_types(
    app: Sphinx, domain: str, kind: str, content: nodes.Element
) -> None:
    """Write the alias in the types of arguments and results."""
    for field in content.findall(nodes.field):
        name, body = field.children
        if name.astext().partition(" ")[0] not in ("type", "rtype"):
            continue
        for text in [*body.findall(nodes.Text)]:
            short, count = text.astext(), 1
            while count:
                short, count = INPUTS.subn("Inputs", short)
            text.parent.replace(text, nodes.Text(short))
