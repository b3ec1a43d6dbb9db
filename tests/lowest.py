"""Runs tests with the lowest versions that `pyproject.toml` allows: `python -m tests.lowest`.

It needs nothing but Python 3.11. It makes a fresh virtual environment, with the lowest Python that is allowed if there
is one on the path, and installs the package with the extras `mcmc` and `test`, every requirement at its lower bound.
The tests are those of the paths that touch torch, Pyro and the other libraries most; more arguments go to pytest.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = ("mcmc", "test")
TESTS = (
    "architecture",
    "batches",
    "checkpointing",
    "cli",
    "cli_front",
    "cli_results",
    "conformal",
    "conversion",
    "direct_path",
    "direct_numbers",
    "estimators_fit",
    "files",
    "guides",
    "laplace",
    "low_rank",
    "mcmc",
    "mcmc_layers",
    "mcmc_posterior",
    "model",
    "one_step_ensemble",
    "plotting",
    "predict_at_once",
    "prediction",
    "processes",
    "pruning",
    "resume",
    "sgmcmc",
    "svi_options",
    "svi_step",
    "threads",
)

LENIENT = [
    *(f"-W=ignore::{kind}" for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")),
    "-W=ignore:The epoch parameter in `scheduler.step:UserWarning",  # torch 2.4's own sequence of schedulers
    "-W=ignore:invalid value encountered in cast:RuntimeWarning",  # pandas 2.2 writing finite numbers
]
"""Old versions of what we ask for are warned by new versions of what these ask for."""


def read_project() -> dict:
    """The table `project` of `pyproject.toml`."""
    import tomllib  # new in Python 3.11; pytest imports this file with 3.10, too

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lower_bound(requirement: str) -> str | None:
    """The requirement at the lowest version that it allows, as a constraint of pip; none if it has no lower bound."""
    match = re.match(r"([\w.-]+)\s*[^;]*?>=\s*([\w.]+)[^;]*(;.*)?$", requirement)
    return match and f"{match[1]}=={match[2]}{match[3] or ''}"


def requirements_of(project: dict, extra: str) -> list[str]:
    """The requirements of an extra, including those of other extras of this package that it names."""
    found = []
    for requirement in project["optional-dependencies"][extra]:
        named = re.fullmatch(r"pyro-bnn\[([\w,]+)\]", requirement)
        if named:
            found += [inner for name in named[1].split(",") for inner in requirements_of(project, name)]
        else:
            found.append(requirement)
    return found


def lower_bounds(project: dict) -> list[str]:
    """Constraints for all requirements of the package and of `EXTRAS`.

    Raises:
        ValueError: If a requirement has no lower bound.
    """
    requirements = list(project["dependencies"])
    for extra in EXTRAS:
        requirements += requirements_of(project, extra)
    unbounded = [requirement for requirement in requirements if lower_bound(requirement) is None]
    if unbounded:
        raise ValueError(f"Requirements in pyproject.toml must have a lower bound (`>=`), got {', '.join(unbounded)}.")
    return sorted({bound for bound in map(lower_bound, requirements) if bound})


def lowest_python(project: dict) -> str:
    """The lowest Python that is allowed if it can be run; else the Python that runs this script, with a note."""
    name = "python" + project["requires-python"].removeprefix(">=")
    path = shutil.which(name)
    if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
        return path
    print(f"# no {name} on the path: these are the lowest versions for Python {sys.version.split()[0]}", flush=True)
    return sys.executable


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.lowest", description=__doc__)
    parser.add_argument("--venv", type=Path, help="where to make the environment, and leave it; else it is temporary")
    parser.add_argument("--reuse", action="store_true", help="run the tests in the environment that is at --venv")
    parser.add_argument("--python", help="the interpreter to take instead of the lowest allowed")
    arguments, to_pytest = parser.parse_known_args()
    if arguments.reuse and not arguments.venv:
        parser.error("--reuse needs --venv: the folder of an environment that an earlier run has left.")
    project = read_project()
    with tempfile.TemporaryDirectory() as folder:
        venv = (arguments.venv or Path(folder) / "venv").absolute()
        if not arguments.reuse:
            subprocess.run([arguments.python or lowest_python(project), "-m", "venv", "--clear", venv], check=True)
            constraints = Path(folder) / "lowest.txt"
            constraints.write_text("\n".join(lower_bounds(project)) + "\n")
            print(constraints.read_text(), flush=True)
            what = f"{ROOT}[{','.join(EXTRAS)}]"
            pip = [venv / "bin" / "python", "-m", "pip"]
            subprocess.run([*pip, "install", "--quiet", "--constraint", constraints, "--editable", what], check=True)
            subprocess.run([*pip, "freeze"], check=True)
        files = [f"tests/test_{name}.py" for name in TESTS]
        environment = dict(os.environ, PATH=f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}")
        command = [venv / "bin" / "python", "-m", "pytest", "-n", "0", *LENIENT, *(to_pytest or ["-q", *files])]
        sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
