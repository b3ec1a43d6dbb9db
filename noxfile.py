"""Commands for contributors: `nox -l` lists them, and `nox -s lint` runs one.

They run in the active environment, since a new one would need minutes to install torch.
"""

from importlib.util import find_spec

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "fast"]

FAST = [
    "tests/test_architecture.py",
    "tests/test_public_names.py",
    "tests/test_config.py",
    "tests/test_model.py",
    "tests/test_priors.py",
    "tests/test_named_likelihoods.py",
    "tests/test_kl.py",
    "tests/test_svi_step.py",
    "tests/test_direct_path.py",
    "tests/test_delta.py",
    "tests/test_ensemble.py",
    "tests/test_selection.py",
    "tests/test_gauss_newton.py",
    "tests/test_fit.py",
    "tests/test_prediction.py",
    "tests/test_metrics.py",
    "tests/test_conformal.py",
    "tests/test_pruning.py",
    "tests/test_posterior_files.py",
    "tests/test_repr.py",
]
"""Test files that together touch every package and run in less than a minute. They are named here, since pytest would
have to import all test files to find those with a marker."""


def require(session: nox.Session, extra: str, *packages: str) -> None:
    """Stop the session if packages of an extra are missing."""
    if not all(map(find_spec, packages)):
        session.error(f"Packages are missing: run `pip install -e '.[{extra}]'`.")


@nox.session
def lint(session: nox.Session) -> None:
    """Style of all Python files; `nox -s lint -- --fix` corrects what it can."""
    session.run("ruff", "check", ".", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]), ".")


@nox.session
def types(session: nox.Session) -> None:
    """Types of the package."""
    session.run("mypy", *session.posargs)


@nox.session
def fast(session: nox.Session) -> None:
    """Tests of the main paths, in less than a minute on two cores."""
    session.run("pytest", "-q", "-m", "not slow and not nightly", *FAST, *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests that run for each change (need `.[test]`); `nox -s tests -- tests/test_priors.py` runs one file."""
    if not session.posargs:
        require(session, "test", "hypothesis")
    session.run("pytest", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """Slow tests that seldom find an error (need `.[test]`)."""
    require(session, "test", "hypothesis")
    session.run("pytest", "-m", "nightly", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Pages in build/html; `nox -s docs -- full` also runs tutorials and examples. Both need `.[docs]`."""
    require(session, "docs", "sphinx", "furo", "arviz", "transformers", "peft")
    gallery = [] if "full" in session.posargs else ["-D", "plot_gallery=False"]
    session.run("python", "-m", "sphinx", "-W", "-q", "-b", "html", *gallery, "docs", "build/html")


@nox.session
def picture(session: nox.Session) -> None:
    """Pictures of the docs, all or by name: `nox -s picture -- priors`."""
    session.run("python", "docs/pictures/make.py", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel in a temporary folder, and run the demo from it in a fresh environment."""
    folder = session.create_tmp()
    session.run("python", "-m", "hatchling", "build", "-d", folder)
    session.run("python", "-m", "venv", f"{folder}/venv")
    session.run("bash", "-c", f"{folder}/venv/bin/pip install --quiet {folder}/*.whl")
    session.chdir(folder)
    session.run(f"{folder}/venv/bin/pyro-bnn", "demo", "--out", "demo", "--force")
