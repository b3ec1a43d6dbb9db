"""Calls in pages and scripts match the library, also in those that are run at night."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import pyro_bnn

ROOT = Path(__file__).parent.parent
PAGES = [path for path in (ROOT / "docs").rglob("*.md") if "```python" in path.read_text()]
SCRIPTS = [path for folder in ("examples", "docs/tutorials", "docs/pictures") for path in (ROOT / folder).glob("*.py")]


def code_of(path):
    text = path.read_text()
    return text if path.suffix == ".py" else "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def imported(tree):
    """Objects of the library by the names that the code gives them."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pyro_bnn":
            module = importlib.import_module(node.module)
            found |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import) and any(alias.name == "pyro_bnn" for alias in node.names):
            found |= {alias.asname or alias.name: pyro_bnn for alias in node.names if alias.name == "pyro_bnn"}
    return found


def resolved(node, names):
    """The object of the library that an expression such as `pb.nets.mlp` names; None for any other expression."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := resolved(node.value, names)) is not None:
        return getattr(owner, node.attr)
    return None


def check(code):
    """Raise if a name of the library is missing, or a call of it does not match its signature; returns their number."""
    tree = ast.parse(code)
    names, num_calls = imported(tree), 0
    for node in ast.walk(tree):
        resolved(node, names)
        if not isinstance(node, ast.Call):
            continue
        function, arguments = node.func, node.args
        if ast.unparse(function) == "functools.partial":
            function, *arguments = arguments
        called = resolved(function, names)
        has_stars = any(isinstance(argument, ast.Starred) for argument in arguments)
        if called is not None and not has_stars:
            inspect.signature(called).bind_partial(*arguments, **{k.arg: k for k in node.keywords if k.arg})
            num_calls += 1
    return num_calls


@pytest.mark.parametrize("path", sorted(PAGES + SCRIPTS), ids=lambda path: path.name)
def test_calls_match_the_signatures(path):
    code = code_of(path)
    assert check(code) or "pyro_bnn" not in code


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("pb.fit_svii(model)", AttributeError),
        ("pb.nets.mpl([1, 2])", AttributeError),
        ("pb.fit_svi(model, data, guide, num_epoch=3)", TypeError),
        ("functools.partial(pb.fit_svi, epochs=3)", TypeError),
    ],
)
def test_a_misspelt_call_is_found(line, error):
    with pytest.raises(error):
        check(f"import pyro_bnn as pb\n{line}")
