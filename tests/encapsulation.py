"""Measures how far the modules of a package keep out of each other: `python -m tests.encapsulation`.

Three figures. Accesses: how often a file uses what another file keeps private (a name with an underscore, or a file of
another folder whose name has one). Circles: groups of files that import each other. Test names: what tests use of the
package's private names.
"""

import ast
import functools
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLOOR = frozenset(
    {
        "_checkpointing",
        "_checks",
        "_copies",
        "_devices",
        "_extras",
        "_files",
        "_fit_arguments",
        "_functional",
        "_gaussian_mixture",
        "_globs",
        "_inputs",
        "_processes",
        "_records",
        "_reflection",
        "_reuse",
        "_saved_tensors",
        "_scope",
        "_summary",
        "_tensors",
    }
)
"""Private files of the package's own folder that every file may import."""

Sources = Mapping[str, str]
"""The text of each file, by its path from the folder that holds the package, such as ``pyro_bnn/svi/_fit.py``."""


@dataclass(frozen=True)
class Access:
    """One use of a private name.

    Args:
        file: The file that uses it.
        line: The line.
        kind: ``attribute``, ``name`` (imported from another file) or ``file`` (a private one, of another folder).
        name: The private name.
        code: The expression or import.
    """

    file: str
    line: int
    kind: str
    name: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind} {self.name} ({self.code})"


def read(folder: str) -> dict[str, str]:
    """The sources of a folder of this repository."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


def is_private(name: str) -> bool:
    """Whether a name is its owner's own; names of Python and of notebooks are not."""
    if name == "_repr_html_":
        return False
    return name.startswith("_") and name != "_" and not (name.startswith("__") and name.endswith("__"))


# --- names and imports ------------------------------------------------------------------------------------------------


def module_of(file: str) -> tuple[str, ...]:
    parts = tuple(file.removesuffix(".py").split("/"))
    return parts[:-1] if parts[-1] == "__init__" else parts


def folder_of(file: str) -> tuple[str, ...]:
    return tuple(file.split("/")[:-1])


def files_by_module(sources: Sources) -> dict[tuple[str, ...], str]:
    return {module_of(file): file for file in sources}


@dataclass(frozen=True)
class Import:
    """One imported name: the module it is taken from, the name (None for the module itself), and where it stands."""

    module: tuple[str, ...]
    name: str | None
    bound: str
    node: ast.Import | ast.ImportFrom
    is_late: bool
    is_for_types: bool


def imports_of(file: str, tree: ast.Module) -> Iterator[Import]:
    """All imports of a file, at any depth, with relative ones resolved."""

    def walk(node: ast.AST, is_late: bool, is_for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield Import(tuple(alias.name.split(".")), None, bound, node, is_late, is_for_types)
        elif isinstance(node, ast.ImportFrom):
            folder = folder_of(file)
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield Import(module, alias.name, alias.asname or alias.name, node, is_late, is_for_types)
        is_late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from walk(child, is_late, True)
            for child in node.orelse:
                yield from walk(child, is_late, is_for_types)
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, is_late, is_for_types)

    yield from walk(tree, False, False)


def private_names_defined(tree: ast.Module) -> set[str]:
    """Private names that a file makes: its functions, classes, variables, attributes and parameters."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def is_own(node: ast.expr) -> bool:
    """Whether an expression is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@functools.cache
def foreign_names() -> frozenset[str]:
    """Private names that the classes of torch and Pyro, and named tuples, have themselves."""
    import pyro.distributions as dist
    import torch
    from pyro.infer import Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule
    from torch import nn

    normal = dist.Normal(torch.zeros(2), torch.ones(2))
    objects = [
        PyroModule(),
        nn.Module(),
        nn.LSTM(1, 1),
        torch.zeros(1),
        torch.ops.aten.add.Tensor,
        torch.optim.Adam([nn.Parameter(torch.zeros(1))], fused=True),
        normal.to_event(1),
        dist.LogNormal(0.0, 1.0),
        dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), normal),
        dist.transforms.ExpTransform(),
        namedtuple("Pair", "a b")(1, 2),
        Trace_ELBO(),
        AutoNormal(lambda: None),
    ]
    return frozenset(name for value in objects for name in dir(value) if is_private(name))


# --- accesses ---------------------------------------------------------------------------------------------------------


def reached(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The x and _name of `x._name`, and of the same written with `getattr` and its kin, `vars(x)` or `x.__dict__`."""
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        return node.value, node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
        is_reader = node.func.id in ("getattr", "setattr", "hasattr", "delattr")
        if is_reader and isinstance(node.args[1], ast.Constant) and is_private(str(node.args[1].value)):
            return node.args[0], str(node.args[1].value)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and is_private(str(node.slice.value)):
        table = node.value
        if isinstance(table, ast.Attribute) and table.attr == "__dict__":
            return table.value, str(node.slice.value)
        if isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id == "vars" and table.args:
            return table.args[0], str(node.slice.value)
    return None


def accesses(sources: Sources, *, floor: frozenset[str] = FLOOR) -> tuple[list[Access], list[Access]]:
    """Uses of other files' private names in a package.

    `self._x`, `cls._x` and `super()._x` are a class's own, and `x._name` is free to the file that defines `_name`.

    Returns:
        Those of names of the package, and those of names that torch, Pyro or another library defines.
    """
    ours: list[Access] = []
    foreign: list[Access] = []
    modules = files_by_module(sources)
    packages = {module[0] for module in modules}
    for file, text in sources.items():
        tree = ast.parse(text)
        own = private_names_defined(tree)
        outside: set[str] = set()
        for found in imports_of(file, tree):
            code = ast.unparse(found.node)
            target = (*found.module, *((found.name,) if found.name else ()))
            if found.module[0] not in packages:
                outside.add(found.bound)
                foreign += [Access(file, found.node.lineno, "name", part, code) for part in target if is_private(part)]
                continue
            is_module = target in modules
            path = target if is_module else found.module
            is_near = path[:-1] == folder_of(file)
            is_floor = len(path) == 2 and path[1] in floor
            if any(map(is_private, path)) and not is_near and not is_floor:
                ours.append(Access(file, found.node.lineno, "file", ".".join(path), code))
            if found.name and is_private(found.name) and not is_module:
                ours.append(Access(file, found.node.lineno, "name", found.name, code))
        for node in ast.walk(tree):
            pair = reached(node)
            if pair is None or is_own(pair[0]):
                continue
            access = Access(file, node.lineno, "attribute", pair[1], ast.unparse(node))
            if root_name(pair[0]) in outside or pair[1] in foreign_names():
                foreign.append(access)
            elif pair[1] not in own:
                ours.append(access)
    return ours, foreign


def root_name(node: ast.expr) -> str | None:
    """The `x` of `x.y.z`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def ambiguous_names(sources: Sources) -> set[str]:
    """Names that count as another library's where they are used, although a file of the package defines them too."""
    defined = set().union(*(private_names_defined(ast.parse(text)) for text in sources.values()))
    return defined & {access.name for access in accesses(sources)[1]}


# --- circles ----------------------------------------------------------------------------------------------------------


def import_graph(sources: Sources, *, late: bool) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
    """Which files each file imports, and the imports (from, to) that are there for types only, which do not count.

    Args:
        sources: The package.
        late: Whether imports inside of functions count too.
    """
    modules = files_by_module(sources)
    graph: dict[str, set[str]] = {file: set() for file in sources}
    for_types: list[tuple[str, str]] = []
    for file, text in sources.items():
        for found in imports_of(file, ast.parse(text)):
            target = (*found.module, *((found.name,) if found.name else ()))
            path = target if target in modules else found.module
            ends = [path[:length] for length in range(1, len(path) + 1)]
            parents = {module_of(file)[:length] for length in range(len(folder_of(file)) + 1)}
            for end in ends:
                if end not in modules or (end in parents and end != path):
                    continue  # the packages around a file are being imported already
                if found.is_for_types:
                    for_types.append((file, modules[end]))
                elif late or not found.is_late:
                    graph[file].add(modules[end])
    return graph, for_types


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of files of which each imports each other one, directly or through others."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        stack = [*graph[start]]
        while stack:
            file = stack.pop()
            if file not in seen:
                seen.add(file)
                stack += graph[file]
        reach[start] = seen
    groups = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph if a in reach[a]}
    return sorted(sorted(group) for group in groups)


# --- what tests use ---------------------------------------------------------------------------------------------------


def private_names_used(tests: Sources, package: Sources) -> dict[str, set[str]]:
    """The private files and names of the package that each test file uses, where it uses any."""
    modules = files_by_module(package)
    root = next(iter(modules))[0]
    defined = set().union(*(private_names_defined(ast.parse(text)) for text in package.values())) - foreign_names()
    used: dict[str, set[str]] = {}
    for file, text in tests.items():
        tree = ast.parse(text)
        names: set[str] = set()
        outside: set[str] = set()
        for found in imports_of(file, tree):
            target = (*found.module, *((found.name,) if found.name else ()))
            if target[0] not in (root, "tests"):
                outside.add(found.bound)
            if target[0] == root:
                names.update(".".join(target[: end + 1]) for end, part in enumerate(target) if is_private(part))
        for node in ast.walk(tree):
            pair = reached(node)
            if pair and root_name(pair[0]) not in outside and pair[1] in defined - private_names_defined(tree):
                names.add(pair[1])
            for argument in node.args if isinstance(node, ast.Call) else ():  # as `monkeypatch.setattr` takes it
                path = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(path, str) and path.startswith(f"{root}."):
                    names.update(part for part in path.split(".") if part.isidentifier() and is_private(part))
        if names:
            used[file] = names
    return used


def report() -> str:
    """All figures of this repository."""
    package = read("pyro_bnn")
    ours, foreign = accesses(package)
    lines = [f"{len(ours)} accesses to private names of other files of the package", *(f"  {a}" for a in ours)]
    names = sorted({access.name for access in foreign})
    lines += [f"{len(foreign)} accesses to private names of other libraries: {', '.join(names)}"]
    for late, title in ((False, "at module level"), (True, "with those inside of functions")):
        graph, for_types = import_graph(package, late=late)
        groups = circles(graph)
        lines += [f"{len(groups)} circles of imports {title}", *(f"  {', '.join(group)}" for group in groups)]
    lines += [f"{len(for_types)} imports for types only", *(f"  {a} of {b}" for a, b in for_types)]
    used = private_names_used(read("tests"), package)
    lines += [f"{len(used)} test files use private names", *(f"  {f}: {', '.join(sorted(n))}" for f, n in used.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
