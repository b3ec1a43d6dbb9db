"""Shorter types in the reference: names for long types, with links, and no private base classes."""

import re
from abc import ABC
from typing import Any, Generic, get_origin

from docutils import nodes
from numpy.typing import ArrayLike
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import stringify_annotation

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

ARRAY = re.compile(
    r"~?numpy\.ndarray\[~?tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[([^\[\]]+)\]\]"
)
ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
"""What numpy's names `NDArray` and `ArrayLike` stand for: types of which some are private."""

NAMED = ("Inputs", "OptimizerFactory")
NUMPY = "numpy.typing."


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


def short(text: str) -> str:
    """A type with names for its long parts, as Sphinx writes types in fields."""
    count = 1
    while count:
        text, count = INPUTS.subn("Inputs", text)
    text = FACTORY.sub("OptimizerFactory", text)
    text = ARRAY.sub(rf"~{NUMPY}NDArray[\1]", text)
    return text.replace(ARRAY_LIKE, f"~{NUMPY}ArrayLike")


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
            text.parent.replace(text, nodes.Text(short(text.astext())))


def link_types(
    app: Sphinx,
    env: BuildEnvironment,
    node: pending_xref,
    content: nodes.Element,
) -> nodes.Element | None:
    """Link the names of long types to their explanations: those of numpy are data, not classes, for `intersphinx`."""
    target = node.get("reftarget", "")
    if target in NAMED:
        return make_refnode(
            app.builder, node["refdoc"], "api", "types-of-arguments", content
        )
    if target.startswith(NUMPY):
        node["reftype"] = "obj"
    return None
