"""The structure: imports point strictly down, no room imports private files of another, and no imports are circular.

Ruff checks accesses to underscored names of other objects (`SLF001` in `pyproject.toml`), and who imports matplotlib or
changes the filters of warnings (`TID251`).
"""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pyro_bnn as pb

PACKAGE = Path(pb.__file__).parent

FLOORS = (
    {"_core"},
    {"nets", "data", "scores"},
    {"modelling"},
    {"inference"},
    {"results"},
    {"auto", "interop"},
    {"app"},
    {"__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

SIDEWAYS = {("interop", "auto")}
"""Imports (from, to) that are allowed on one floor: estimators let `auto` choose."""

WAYS = {"svi", "mcmc", "sgmcmc", "gauss_newton", "laplace", "swag"}
"""Ways to infer, which do not know each other."""

SHARED_WAYS = {("sgmcmc", "svi"), ("sgmcmc", "mcmc")}
"""Stochastic-gradient MCMC steps as `svi` does, and its draws are judged as those of `mcmc`."""

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_of(path):
    """Parts of a file's module below the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path) for path in FILES} | {()}


@functools.cache
def imports_of(path, source=None) -> tuple[tuple[str, ...], ...]:
    """Modules of the package that a file imports, below the package, also inside of functions."""
    folder = path.relative_to(PACKAGE).parts[:-1]

    def walk(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom):
            above = ("pyro_bnn", *folder)[: len(folder) + 2 - node.level] if node.level else ()
            module = (*above, *(node.module.split(".") if node.module else ()))
            if module[:1] == ("pyro_bnn",):
                targets = ((*module[1:], alias.name) for alias in node.names)
                yield from (target if target in MODULES else module[1:] for target in targets)
        elif isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("pyro_bnn."))
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    return (*walk(ast.parse(path.read_text() if source is None else source)),)


def found_in(check, files=FILES):
    """What a check finds, by file."""
    found = {str(path.relative_to(PACKAGE)): sorted(check(path)) for path in files}
    return {file: what for file, what in found.items() if what}


def upward(path, source=None):
    """Rooms that a file may not import."""
    this = module_of(path)[0]
    rooms = {module[0] for module in imports_of(path, source) if module} - {this}
    return {room for room in rooms if FLOOR[room] >= FLOOR[this] and (this, room) not in SIDEWAYS}


def reached_into(path, source=None):
    """Private files of other folders that a file imports; those of the ground floor are allowed."""
    folder = path.relative_to(PACKAGE).parts[:-1]
    for module in imports_of(path, source):
        for end, part in enumerate(module):
            if part.startswith("_") and part not in ("_core", "__main__") and module[:end] != folder[:end]:
                yield module


def wrong_ways(path, source=None):
    """Inference methods that a file of another method imports."""
    this = module_of(path)
    if this[0] == "inference" and this[1:2] and this[1] in WAYS:
        others = {module[1] for module in imports_of(path, source) if module[0] == "inference" and len(module) > 1}
        return {other for other in others & WAYS - {this[1]} if (this[1], other) not in SHARED_WAYS}
    return set()


def first_circle():
    """Modules whose imports are circular, if there are any."""
    graph = {module_of(path): {*imports_of(path)} for path in FILES}
    # A folder's `__init__` is imported before its files are, and counts as none of their imports.
    graph = {m: {t for t in targets if t and t != m and t != m[: len(t)]} for m, targets in graph.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def test_there_are_ten_doors():
    names = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert names == {*FLOOR} - {"__main__"} | {"__main__.py", "__init__.py", "__init__.pyi", "py.typed"}


def floors_of(page):
    """The floors in a page's table of rooms, lowest first, and the sentence about imports on one floor."""
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", page, re.MULTILINE)
    floors = {int(number): set(re.findall(r"`(\w+)`", rooms)) for number, rooms in rows}
    sideways = re.findall(r"one exception is `(\w+)`, which imports `(\w+)`", page)
    return [floors[number] for number in sorted(floors)], set(sideways)


def test_the_page_for_contributors_shows_these_floors():
    page = (PACKAGE.parent / "docs" / "CONTRIBUTING.md").read_text()
    assert floors_of(page) == ([*FLOORS[:-1]], SIDEWAYS)
    assert floors_of(page.replace("| 5 | `results` |", "| 5 | `data` |")) != floors_of(page)


def test_imports_point_strictly_down():
    assert found_in(upward) == {}
    below_reports = [path for path in FILES if module_of(path)[:2] in (("app", "own"), ("app", "numbers"))]
    assert not [path for path in below_reports for to in imports_of(path) if to[:2] == ("app", "reports")]


def test_private_files_are_imported_by_their_own_folder_only():
    assert found_in(reached_into) == {}


def test_ways_to_infer_do_not_know_each_other():
    assert found_in(wrong_ways) == {}


def test_no_files_import_each_other_in_a_circle():
    assert first_circle() == []


@pytest.mark.parametrize(
    ("source", "up", "into", "ways"),
    [
        ("from ..posterior import Posterior\nfrom ..._core.checks import positive", set(), [], set()),
        ("def f():\n    from ...results.prediction import predict", {"results"}, [], set()),
        ("import pyro_bnn.app.runs", {"app"}, [], set()),
        ("from ..guides._flat import FlatGuide", set(), [("inference", "guides", "_flat")], set()),
        ("from ..mcmc import NUTS", set(), [], {"mcmc"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ...app import runs", set(), [], set()),
    ],
)
def test_wrong_imports_are_seen(source, up, into, ways):
    path = PACKAGE / "inference" / "svi" / "_never_written.py"
    assert (upward(path, source), list(reached_into(path, source)), wrong_ways(path, source)) == (up, into, ways)


# --- who may know what ------------------------------------------------------------------------------------------------


MATHEMATICS = {"backward", "grad", "log_prob", "rsample", "kl_divergence", "functional_call", "matmul", "einsum"}
"""What a density, a gradient or a network is computed with."""


def mathematics_in(source):
    """Computations of densities, gradients and networks."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in MATHEMATICS:
                yield name
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield "@"


def test_the_program_holds_no_mathematics():
    program = [path for path in FILES if module_of(path)[0] == "app"]
    assert found_in(lambda path: mathematics_in(path.read_text()), program) == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [("y = f(x) / 2", []), ("prior.log_prob(x).sum().backward()", ["backward", "log_prob"]), ("y = x @ w", ["@"])],
)
def test_mathematics_is_recognised(source, found):
    assert sorted(mathematics_in(source)) == found


# --- sizes ------------------------------------------------------------------------------------------------------------

MOST_LINES = 400


def test_files_are_small():
    lengths = {path: len(path.read_text().splitlines()) for path in [*FILES, *Path(__file__).parent.glob("*.py")]}
    assert {str(path): length for path, length in lengths.items() if length > MOST_LINES} == {}
