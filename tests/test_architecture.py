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
    {"_checks", "_functional", "_globs", "_reflection", "_scope"},
    {"data", "metrics", "nets", "posterior", "scale_maps", "uncertainty", "history"},
    {"distributions", "likelihoods", "priors"},
    {"model"},
    {"joint", "kl"},
    {"guides", "estimators"},
    {"svi", "mcmc", "laplace"},
    {"prediction"},
    {"checkpoint", "comparison", "pruning"},
    {"plotting"},
    {"app"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

SIDEWAYS = {
    ("metrics", "uncertainty"),
    ("likelihoods", "distributions"),
    ("priors", "distributions"),
    ("estimators", "guides"),
}
"""Allowed within a layer."""


def unit(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_units(path):
    """Units of the package that a file imports, at any depth of the code."""
    package = ("pyro_bnn", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            targets = [module] if len(module) > 1 else [(*module, alias.name) for alias in node.names]
            yield from (target[1] for target in targets if target[0] == "pyro_bnn" and len(target) > 1)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("pyro_bnn."))


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_strictly_down(path):
    this = unit(path)
    for other in set(imported_units(path)) - {this, "__init__"}:
        assert LEVEL[other] < LEVEL[this] or (this, other) in SIDEWAYS, f"{this} imports {other}"


def test_the_layering_test_sees_relative_absolute_and_late_imports(tmp_path):
    folder = PACKAGE / "priors"
    late = "def f():\n    from ..model import BayesianModel\n"
    source = f"from ..svi import fit_svi\nfrom .. import kl\nimport pyro_bnn.app\n{late}"
    path = folder / "_never_written.py"

    class Fake(type(path)):
        def read_text(self):
            return source

    assert set(imported_units(Fake(path))) == {"svi", "kl", "app", "model"}


def test_only_plotting_knows_matplotlib():
    importers = {unit(p) for p in FILES if "import matplotlib" in p.read_text() or "from matplotlib" in p.read_text()}
    assert importers == {"plotting"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_small(path):
    assert len(path.read_text().splitlines()) <= 400


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
    """A fresh process: no global changed, and neither matplotlib, scikit-learn nor torchvision is loaded."""
    code = """
import random, sys, torch, pyro
before = (torch.get_default_dtype(), pyro.settings.get(), torch.get_rng_state().tolist(), random.getstate(),
          dict(pyro.get_param_store()), torch.distributions.Distribution._validate_args, torch.get_num_threads())
import pyro_bnn
after = (torch.get_default_dtype(), pyro.settings.get(), torch.get_rng_state().tolist(), random.getstate(),
         dict(pyro.get_param_store()), torch.distributions.Distribution._validate_args, torch.get_num_threads())
assert before == after
heavy = [name for name in ("matplotlib", "sklearn", "torchvision", "typer") if name in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
