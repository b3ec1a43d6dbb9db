"""Imports point strictly down, and the public names are exported once and documented."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_bnn as pb

PACKAGE = Path(pb.__file__).parent

LAYERS = [
    {"_checks", "_devices", "_summary", "_tensors"},
    {"_copies", "_inputs", "_saved_tensors"},
    {"_files", "_gaussian_mixture", "_globs", "_processes", "_records", "_reflection", "_scope"},
    {"_checkpointing", "_extras", "_functional"},
    {"_fit_arguments", "_reuse"},
    {"data", "metrics", "nets", "scale_maps", "uncertainty", "history"},
    {"distributions", "likelihoods", "priors"},
    {"model"},
    {"joint", "kl"},
    {"inference_data"},
    {"posterior"},
    {"guides", "estimators"},
    {"batch_norm", "gauss_newton", "laplace", "mcmc", "stored", "svi"},
    {"prediction"},
    {"checkpoint", "comparison", "fitting", "pruning", "sgmcmc", "swag"},
    {"plotting", "scikit", "tensorboard"},
    {"app"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

SIDEWAYS = {
    ("uncertainty", "metrics"),
    ("likelihoods", "distributions"),
    ("priors", "distributions"),
    ("estimators", "guides"),
}
"""Imports (from, to) that are allowed within a layer."""


def unit(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_units(path):
    """Units of the package (its files and folders at the top) that a file imports, at any depth of the code."""
    package = ("pyro_bnn", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            targets = [module] if len(module) > 1 else [(*module, alias.name) for alias in node.names]
            yield from (target[1] for target in targets if target[0] == "pyro_bnn" and len(target) > 1)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("pyro_bnn."))


EXPORTS = PACKAGE / "__init__.pyi"
"""The list of public names; `__init__.py` loads them from it."""

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_strictly_down(path):
    this = unit(path)
    for other in set(imported_units(path)) - {this, "__init__"}:
        assert LEVEL[other] < LEVEL[this] or (this, other) in SIDEWAYS, f"{this} imports {other}"


def never_written(path, source):
    """A path that reads as if there were a file."""

    class Fake(type(path)):
        def read_text(self):
            return source

    return Fake(path)


def test_the_layering_test_sees_relative_absolute_and_late_imports():
    late = "def f():\n    from ..model import BayesianModel\n"
    source = f"from ..svi import fit_svi\nfrom .. import kl\nimport pyro_bnn.app\n{late}"
    path = never_written(PACKAGE / "priors" / "_never_written.py", source)
    assert set(imported_units(path)) == {"svi", "kl", "app", "model"}
    path = never_written(
        PACKAGE / "app" / "cli" / "_never_written.py", "from ...svi import fit_svi\nfrom .. import runs"
    )
    assert set(imported_units(path)) == {"svi", "app"}


def importers_of(*units):
    return {unit(path) for path in FILES if not {*units}.isdisjoint({*imported_units(path)})}


def test_nothing_but_the_command_imports_the_program():
    assert importers_of("app") - {"app"} == {"__main__"}
    assert "app" not in {*imported_units(EXPORTS)}


def test_what_a_joint_density_is_does_not_depend_on_guides():
    assert "joint" not in importers_of("guides", "estimators")


def test_only_plotting_knows_matplotlib():
    importers = {unit(p) for p in FILES if "import matplotlib" in p.read_text() or "from matplotlib" in p.read_text()}
    assert importers == {"plotting"}


def test_only_one_module_changes_the_filters_of_warnings_which_belong_to_the_process():
    assert {unit(path) for path in FILES if "catch_warnings" in path.read_text()} == {"_scope"}


# --- the program holds no mathematics ---------------------------------------------------------------------------------

MATHEMATICS = {"backward", "grad", "log_prob", "rsample", "kl_divergence", "functional_call", "matmul", "einsum"}
"""What a density, a gradient or a network is computed with."""


PROGRAMS_OWN = {"Folder", "ValueError"}
"""Classes that the program may derive others from: one of its own, and errors of wrong use."""


def mathematics_in(source):
    """Computations of densities, gradients and networks; and classes that are derived from others than its own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in MATHEMATICS:
                yield name
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(base) not in PROGRAMS_OWN for base in node.bases):
            yield node.name
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield "@"


@pytest.mark.parametrize("path", [p for p in FILES if unit(p) == "app"], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_program_holds_no_mathematics(path):
    assert list(mathematics_in(path.read_text())) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A: ...\ny = f(x) / 2", []),
        ("prior.log_prob(x).sum().backward()", ["backward", "log_prob"]),
        ("from torch.distributions import kl_divergence\nkl_divergence(p, q)", ["kl_divergence"]),
        ("class Net(nn.Module): ...", ["Net"]),
        ("y = x @ w", ["@"]),
    ],
)
def test_mathematics_is_recognised(source, found):
    assert sorted(mathematics_in(source)) == found


# --- sizes ------------------------------------------------------------------------------------------------------------

MOST_LINES = 400
TESTS = sorted(Path(__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", [*FILES, *TESTS], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_files_are_small(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


# --- public names -----------------------------------------------------------------------------------------------------


def test_the_list_of_public_names_is_what_there_is():
    """Each line is `from .x import Y as Y`; the name it loads is there, and `dir` shows it."""
    names = []
    for node in ast.parse(EXPORTS.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1
            assert [alias.asname for alias in node.names] == [alias.name for alias in node.names]
            names += [alias.name for alias in node.names]
            for alias in node.names:
                owner = importlib.import_module(f"pyro_bnn.{node.module}") if node.module else pb
                assert getattr(owner, alias.name) is getattr(pb, alias.name)
    assert sorted(names) == dir(pb) == pb.__all__
    with pytest.raises(AttributeError):
        pb.no_such_name  # noqa: B018


def public_names():
    """(owner, name) of everything a user can reach without an underscore."""
    for name in dir(pb):
        if not name.startswith("_"):
            yield "pyro_bnn", name
    for module in (
        "data",
        "distributions",
        "kl",
        "metrics",
        "nets",
        "plotting",
        "pruning",
        "scale_maps",
        "uncertainty",
    ):
        loaded = importlib.import_module(f"pyro_bnn.{module}")
        for name in loaded.__all__:
            yield f"pyro_bnn.{module}", name


def public_objects():
    for owner, name in public_names():
        value = getattr(importlib.import_module(owner), name)
        if not inspect.ismodule(value) and value is not pb.kl.KLWeight:
            yield owner, name, value


def test_every_public_name_is_exported_once():
    seen = {}
    for owner, name, value in public_objects():
        assert id(value) not in seen, f"{owner}.{name} is also {seen[id(value)]}"
        seen[id(value)] = f"{owner}.{name}"
    assert len(seen) > 50


@pytest.mark.parametrize(
    ("owner", "name", "value"), list(public_objects()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_public_name_is_documented(owner, name, value):
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(value, attribute)), f"{name}.{attribute}"


def test_every_public_name_is_in_the_reference():
    reference = (PACKAGE.parent / "docs" / "api.rst").read_text()
    for owner, name, _ in public_objects():
        assert f"   {name}\n" in reference, f"{owner}.{name} is missing from docs/api.rst"


def test_every_module_can_be_imported_on_its_own():
    for info in pkgutil.iter_modules([str(PACKAGE)]):
        if info.name != "__main__":
            importlib.import_module(f"pyro_bnn.{info.name}")


def test_importing_does_nothing_to_torch_pyro_or_the_import_time():
    """A fresh process: no global changed, and neither matplotlib, scikit-learn nor torchvision is loaded.

    `import pyro_bnn` loads not even torch; the first use of a name does.
    """
    code = """
import sys
import pyro_bnn
heavy = [name for name in ("torch", "pyro", "numpy", "matplotlib", "typer") if name in sys.modules]
assert not heavy, heavy
import random, torch, pyro
before = (torch.get_default_dtype(), pyro.settings.get(), torch.get_rng_state().tolist(), random.getstate(),
          dict(pyro.get_param_store()), torch.distributions.Distribution._validate_args, torch.get_num_threads())
pyro_bnn.fit_svi, pyro_bnn.predict, pyro_bnn.fit_nuts, pyro_bnn.compare, pyro_bnn.load_posterior, pyro_bnn.data
after = (torch.get_default_dtype(), pyro.settings.get(), torch.get_rng_state().tolist(), random.getstate(),
         dict(pyro.get_param_store()), torch.distributions.Distribution._validate_args, torch.get_num_threads())
assert before == after
heavy = [name for name in ("matplotlib", "sklearn", "torchvision", "typer") if name in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
