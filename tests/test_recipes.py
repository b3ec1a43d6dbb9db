"""The cost of a new member: it is added to a copy of the library, and its rows make the generic tests run over it."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "tests" / "recipes"
PARTS = ("pyro_bnn", "tests", "docs", "CHANGELOG.md", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Recipe:
    """How one member is added, and how a mistake in it is found.

    Args:
        num_files: Files that are written to, its own included.
        member: Name of the class.
        source: Its file in `tests/recipes`.
        target: Path of the file in the library.
        edits: ``(file, line, what is put below it)``, for all other files but the changelog.
        row: Name of its row in the tables.
        tests: Files whose tests must run over the row.
        but: Tests over the row that are left out here because they take long, as `-k` takes them.
        fault: ``(right, wrong)``: a mistake in the source.
        finder: Beginning of the name of a generic test that must find it.
    """

    num_files: int
    member: str
    source: str
    target: str
    edits: tuple[tuple[str, str, str], ...]
    row: str
    tests: tuple[str, ...]
    fault: tuple[str, str]
    finder: str
    but: str = "nothing"

    @property
    def selection(self):
        """The tests to run."""
        names = f"{self.member} or {Path(self.target).name} or exported_once or in_the_reference"
        return f"({self.row} and not ({self.but})) or {names}"

    def apply(self, root, *, faulty=False):
        """Add the member to the library under `root`."""
        code = (SOURCES / self.source).read_text()
        if faulty:
            assert code.count(self.fault[0]) == 1
            code = code.replace(*self.fault)
        target = root / self.target
        if target.exists():
            target.write_text(f"{target.read_text()}\n\n{code[code.index('@dataclass') :]}")
        else:
            target.write_text(code)
        for path, line, below in (*self.edits, ("CHANGELOG.md", "### Added\n\n", f"- `{self.member}`.\n")):
            text = (root / path).read_text()
            assert text.count(line) == 1, f"{path}: {line!r} is there {text.count(line)} times"
            (root / path).write_text(text.replace(line, line + below))


def exported(room, file, member, *, below):
    """Edits that make a member of a file public, each in the line below that of a name that is so already."""
    return (
        ("pyro_bnn/__init__.pyi", export(room, below), export(f"{room}.{file}", member)),
        ("docs/api.rst", f"   {below}\n", f"   {member}\n"),
    )


def export(module, name):
    return f"from .{module} import {name} as {name}\n"


RECIPES = {
    "prior": Recipe(
        num_files=6,
        member="StudentTPrior",
        source="student_t.py",
        target="pyro_bnn/modelling/priors/_student_t.py",
        edits=(
            *exported("modelling.priors", "_student_t", "StudentTPrior", below="ScaleMixturePrior"),
            ("tests/cases.py", "\nFIXED_PRIORS = {\n", '    "student-t": pb.StudentTPrior(4.0, 0.5),\n'),
            (
                "pyro_bnn/app/specs.py",
                '"MIXING,SCALE1,SCALE2"),\n',
                '    "student-t": (lambda *numbers: pb.StudentTPrior(*numbers), "DF,SCALE"),\n',
            ),
        ),
        row="student-t",
        tests=(
            "test_priors",
            "test_specs",
            "test_joint",
            "test_direct_numbers",
            "test_mcmc",
            "test_pruning_elbo",
        ),
        fault=("parameter.new_tensor(self.scale)", "Tensor([self.scale])[0]"),
        finder="test_a_prior_has_the_parameters_shape_device_and_dtype",
    ),
    "guide": Recipe(
        num_files=5,
        member="OneScaleGuide",
        source="one_scale.py",
        target="pyro_bnn/inference/guides/_one_scale.py",
        edits=(
            *exported("inference.guides", "_one_scale", "OneScaleGuide", below="MeanFieldGuide"),
            ("tests/cases.py", "\nGUIDES = {\n", '    "one-scale": pb.OneScaleGuide,\n'),
        ),
        row="one-scale",
        tests=("test_guides", "test_direct_numbers", "test_svi_objective", "test_prediction_use", "test_ensemble"),
        fault=("torch.stack([gradient.sum()", "torch.stack([gradient.mean()"),
        finder="test_every_guide_gives_the_same_fit[one-scale",
    ),
    "scale map": Recipe(
        num_files=3,
        member="LogScale",
        source="log_scale.py",
        target="pyro_bnn/inference/scale_maps.py",
        edits=(
            ("pyro_bnn/inference/scale_maps.py", '__all__ = ["', 'LogScale", "'),
            ("docs/api.rst", "   LogVariance\n", "   LogScale\n"),
        ),
        row="log_scale",
        tests=("test_scale_maps", "test_guides", "test_pruning", "test_pruning_elbo", "test_pruning_files"),
        fault=("out.copy_(scale)", "out.copy_(scale).mul_(0.5)"),
        finder="test_every_scale_map_is_the_same_on_both_paths",
    ),
    "estimator": Recipe(
        num_files=5,
        member="RowWeights",
        source="row_weights.py",
        target="pyro_bnn/inference/estimators/_row_weights.py",
        edits=(
            *exported(
                "inference.estimators",
                "_row_weights",
                "RowWeights",
                below="LocalReparameterization",
            ),
            ("tests/cases.py", "\nESTIMATORS = {\n", '    "row-weights": pb.RowWeights(),\n'),
        ),
        row="row-weights",
        tests=(
            "test_estimators_law",
            "test_estimators_fit",
            "test_estimators_context",
            "test_direct_numbers",
            "test_pruning",
        ),
        but="conv1d or only or history_holds",
        fault=(".tiny).sqrt()", ".tiny)"),
        finder="test_the_outputs_have_the_mean_and_variance_of_sampled_weights[linear-row",
    ),
    "sampler": Recipe(
        num_files=5,
        member="Langevin",
        source="langevin.py",
        target="pyro_bnn/inference/mcmc/_langevin.py",
        edits=(
            *exported("inference.mcmc", "_langevin", "Langevin", below="HMC"),
            ("tests/cases.py", "\nSAMPLERS = {\n", '    "MALA": (pb.Langevin(), 6000),\n'),
        ),
        row="MALA",
        tests=("test_mcmc", "test_mcmc_kernels"),
        fault=("torch.rand_like(gain).log() < gain", "everyone"),
        finder="test_draws_from_a_skewed_distribution_stay_so",
    ),
    "likelihood": Recipe(
        num_files=5,
        member="LaplaceLikelihood",
        source="laplace_noise.py",
        target="pyro_bnn/modelling/likelihoods/_laplace_noise.py",
        edits=(
            *exported("modelling.likelihoods", "_laplace_noise", "LaplaceLikelihood", below="GaussianLikelihood"),
            (
                "tests/cases.py",
                "\nLIKELIHOODS = {\n",
                '    "laplace-noise": (pb.LaplaceLikelihood(1.0), 2, two_numbers, lambda f, _: dist.Laplace(f, 1)),\n',
            ),
        ),
        row="laplace-noise",
        tests=(
            "test_model",
            "test_joint",
            "test_direct_numbers",
            "test_prediction",
            "test_pyro_tools",
            "test_networks",
        ),
        fault=('self.get_buffer("scale")', '2 * self.get_buffer("scale")'),
        finder="test_regression_moments_are_those_of_the_mixture",
    ),
}


def copied(root):
    """A copy of the library, its tests and its documents."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, root / part)
    return root


def files(root):
    paths = (path for part in PARTS for path in (root / part, *(root / part).rglob("*")))
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def changed(root):
    """Files that differ from the files here."""
    before, after = files(ROOT), files(root)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def run(root, selection, paths, *options):
    """Outcome of each test that was run, ``{(file, name): whether it passed}``."""
    report = root / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "-k", selection, *paths], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            is_passed = case.find("failure") is None and case.find("error") is None
            outcomes[case.get("classname").rpartition(".")[2], case.get("name")] = is_passed
    return outcomes, result.stdout


def documented(kind):
    """Number of files in the heading of the contributor's recipe, and the files that it lists."""
    text = (ROOT / "docs" / "contributing_recipes.md").read_text()
    ((number, section),) = re.findall(
        rf"^## A new (?:gradient )?{kind}: (\d+) files\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    return int(number), re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)


@pytest.mark.parametrize("kind", RECIPES)
def test_a_new_member_costs_as_many_files_as_is_said(kind, tmp_path):
    recipe, root = RECIPES[kind], copied(tmp_path)
    recipe.apply(root)
    number, listed = documented(kind)
    written = changed(root)
    assert len(written) == recipe.num_files == number
    assert written == {recipe.target if Path(path).name == "_yours.py" else path for path in listed}


def with_all(root, **options):
    """A copy of the library with all members, and the files whose tests run over their rows."""
    copied(root)
    for recipe in RECIPES.values():
        recipe.apply(root, **options)
    return sorted({f"tests/{name}.py" for recipe in RECIPES.values() for name in recipe.tests})


@pytest.mark.nightly
def test_new_members_get_the_generic_tests(tmp_path):
    paths = with_all(tmp_path)
    paths += ["tests/test_architecture.py", "tests/test_public_names.py", *(r.target for r in RECIPES.values())]
    selection = " or ".join(f"({recipe.selection})" for recipe in RECIPES.values())
    outcomes, printed = run(tmp_path, selection, paths, "-x", "-m", "not slow and not nightly")
    assert not [name for name, is_passed in outcomes.items() if not is_passed], printed
    for recipe in RECIPES.values():
        for file in recipe.tests:
            assert [name for at, name in outcomes if at == file and recipe.row in name.partition("[")[2]], file


@pytest.mark.nightly
@pytest.mark.slow
def test_a_mistake_in_a_member_is_found_by_the_generic_tests(tmp_path):
    """The must-fail twin."""
    paths = with_all(tmp_path, faulty=True)
    selection = " or ".join(f"({recipe.finder} and {recipe.row})" for recipe in RECIPES.values())
    outcomes, _ = run(tmp_path, selection, paths, "--tb=no")
    for kind, recipe in RECIPES.items():
        found = [is_passed for (_, name), is_passed in outcomes.items() if name.startswith(recipe.finder)]
        assert found, kind
        assert not all(found), kind
