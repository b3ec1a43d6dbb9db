"""The public names: each is exported once, documented, and in the reference; importing has no side effects."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_bnn as pb

PACKAGE = Path(pb.__file__).parent
EXPORTS = PACKAGE / "__init__.pyi"
"""The list of public names; `__init__.py` loads them from it."""

SPACES = (
    *("acquisition", "calibration", "data", "distributions", "interop", "kl", "likelihoods", "metrics"),
    *("nets", "optim"),
    *("plotting", "pruning", "scale_maps", "uncertainty"),
)
"""Modules among the public names."""


def test_the_list_of_public_names_is_what_there_is():
    """Each line is `from .x import Y as Y`; the imported name exists, and `dir` shows it."""
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
    with pytest.raises(AttributeError, match=r"did you mean .*`fit_svi`"):
        pb.fit_vi  # noqa: B018


def public_names():
    """(owner, name) of everything a user can reach without an underscore."""
    for name in dir(pb):
        if not name.startswith("_"):
            yield "pyro_bnn", name
    for space in SPACES:
        for name in getattr(pb, space).__all__:
            yield f"pyro_bnn.{space}", name


def public_objects():
    for owner, name in public_names():
        value = getattr(pb if owner == "pyro_bnn" else getattr(pb, owner.rpartition(".")[2]), name)
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


def test_importing_changes_nothing_and_neither_it_nor_a_prediction_loads_what_takes_seconds():
    """A fresh process: no global changed, and neither matplotlib, scikit-learn nor torchvision is loaded.

    `import pyro_bnn` loads not even torch; the first use of a name does. Later, `pyro-bnn predict` loads no compiler,
    accuracies no scikit-learn, and pictures no pyplot.
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
pb = pyro_bnn
assert pb.layers is pb.layers  # also at first use
from pyro_bnn.app import runs, sources
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports.scores import in_units
x = torch.linspace(-1, 1, 20)[:, None]
net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.1), num_data=20)
posterior = pb.GuidePosterior(pb.MeanFieldGuide(model), pb.Status(True, ""), None)
in_units(pb.predict(model, posterior, x, num_samples=100, keep_draws=True), Target("y", [], [1.0], [2.0]))
assert pb.metrics.accuracy(torch.eye(2), torch.tensor([0, 0])) == 0.5
heavy = [name for name in ("torch._dynamo", "sympy", "matplotlib", "sklearn", "scipy.stats") if name in sys.modules]
assert not heavy, heavy
pb.plotting.new_axes(1, 1, size=("column", 2.0))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
