"""Shorter types in the reference: names that it explains for two long types, and no private base classes."""

import re
from abc import ABC
from typing import Any, Generic, get_origin

from docutils import nodes
from sphinx.application import Sphinx

import pyro_bnn

INPUTS = re.compile(
    r"~?[\w.]*Tensor \| ~?[\w.]*Shared \| ~?[\w.]*Sequence\[~?[\w.]*Inputs\] "
    r"\| ~?[\w.]*Mapping\[~?str, ~?[\w.]*Inputs\]"
)
"""What `Inputs` stands for; Sphinx writes it out once more within itself."""

MAKER = r"~?[\w.]*Callable\[\[~?list\[~?[\w.]*Parameter\]\], "
FACTORY = re.compile(
    MAKER
    + r"~?[\w.]*Optimizer\] \| "
    + MAKER
    + r"~?tuple\[~?[\w.]*Optimizer, ~?[\w.]*LRScheduler \| ~?[\w.]*ReduceLROnPlateau\]\]"
)
"""What `OptimizerFactory` stands for: a name that only the reference has."""


def nearest(base: Any) -> list[Any]:
    """The base class, or in place of one that users cannot name, its own bases."""
    cls = get_origin(base) or base
    spaces = (pyro_bnn, *vars(pyro_bnn).values())
    if not cls.__module__.startswith("pyro_bnn.") or any(
        getattr(space, cls.__name__, None) is cls for space in spaces
    ):
        return [base]
    return [known for one in cls.__bases__ for known in nearest(one)]


def public_bases(
    app: Sphinx, name: str, cls: type, options: Any, bases: list[type]
) -> None:
    """Leave out private base classes, and those that say nothing to a reader."""
    found = dict.fromkeys(known for base in bases for known in nearest(base))
    bases[:] = [
        base
        for base in found
        if (get_origin(base) or base) not in (object, ABC, Generic)
    ] or [object]


def short_types(
    app: Sphinx, domain: str, kind: str, content: nodes.Element
) -> None:
    """Write the names in the types of arguments and results, and leave out that nothing is returned."""
    for field in [*content.findall(nodes.field)]:
        name, body = field.children
        if name.astext() == "rtype" and body.astext() == "None":
            fields = field.parent
            fields.remove(field)
            if not fields.children:
                fields.parent.remove(fields)
            continue
        if name.astext().partition(" ")[0] not in ("type", "rtype"):
            continue
        for text in [*body.findall(nodes.Text)]:
            short, count = text.astext(), 1
            while count:
                short, count = INPUTS.subn("Inputs", short)
            short = FACTORY.sub("OptimizerFactory", short)
            text.parent.replace(text, nodes.Text(short))
