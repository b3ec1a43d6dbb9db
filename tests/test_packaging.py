"""Installation: the wheel and the source archive contain the right files, and work outside of the checkout."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import pyro_bnn
from pyro_bnn import data

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyro_bnn"
SESSIONS = ("lint", "types", "fast", "tests", "nightly", "docs", "picture", "wheel")


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The folder of the built wheel and source archive."""
    folder = tmp_path_factory.mktemp("archives")
    build(ROOT, folder)
    return folder


def build(project, folder, *targets):
    options = [part for target in targets for part in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options]
    subprocess.run(command, cwd=project, check=True, capture_output=True)


def names_in_wheel(folder):
    with zipfile.ZipFile(*folder.glob("*.whl")) as wheel:
        return set(wheel.namelist())


def run_isolated(code, *, path, cwd):
    """Run code in a new process that finds the package only in `path`, and without torchvision."""
    code = f"import sys; sys.modules['torchvision'] = None; sys.path.insert(0, {str(path)!r})\n{code}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", code]
    return subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout


def test_the_wheel_holds_the_package_its_types_and_its_license_and_nothing_else(archives):
    names = names_in_wheel(archives)
    sources = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.pyi", "*.c", "*.html", "*.css", "py.typed")
        for path in PACKAGE.rglob(pattern)
        if "__pycache__" not in path.parts
    }
    assert {"pyro_bnn/py.typed", "pyro_bnn/inference/mcmc/_trajectory.c"} <= sources
    assert {"pyro_bnn/app/reports/page/templates/page.html", "pyro_bnn/app/reports/page/templates/style.css"} <= sources
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert any(re.fullmatch(r"pyro_bnn-[\w.]+\.dist-info/licenses/LICENSE", name) for name in names)


def test_the_source_archive_holds_all_that_the_tests_and_documents_need_and_no_caches(archives):
    with tarfile.open(*archives.glob("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    hidden = (".pre-commit-config.yaml", ".github/workflows/tests.yml")
    files = ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "docs/api.rst", "tests/conftest.py")
    for name in (*files, *hidden):
        assert name in names
    assert {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")} <= names
    assert not [name for name in names if "__pycache__" in name or re.search(r"\.(pyc|egg-info)|_cache/", name)]


def test_the_source_archive_makes_the_same_wheel(archives, tmp_path):
    with tarfile.open(*archives.glob("*.tar.gz")) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    [project] = tmp_path.iterdir()
    build(project, tmp_path / "built", "wheel")
    assert names_in_wheel(tmp_path / "built") == names_in_wheel(archives)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_wheel_works_in_a_folder_of_its_own_and_without_torchvision(archives, tmp_path):
    with zipfile.ZipFile(*archives.glob("*.whl")) as wheel:
        wheel.extractall(tmp_path / "site")
    code = """
import pyro_bnn
from pyro_bnn import data, plotting
from pyro_bnn.app.cli import main
data.load_images("digits")
print(pyro_bnn.__file__)
sys.argv = ["pyro-bnn", "train", "digits", "--epochs", "1", "--out", "run"]
main()
"""
    printed = run_isolated(code, path=tmp_path / "site", cwd=tmp_path)
    assert printed.startswith(str(tmp_path / "site" / "pyro_bnn"))
    assert (tmp_path / "run" / "posterior.safetensors").is_file()


def test_the_description_has_no_links_that_work_only_in_the_repository(archives):
    """Package indexes show the README, without the files that it points to."""
    with zipfile.ZipFile(*archives.glob("*.whl")) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        metadata = wheel.read(name).decode()
    assert f"\nVersion: {pyro_bnn.__version__}\n" in metadata
    links = re.findall(r"\]\(([^)]*)\)", metadata)
    assert links
    assert all(link.startswith("https://") for link in links)
    assert "<!--" not in metadata
    assert not re.search(r"(?m)^## More|^\*Left:", metadata)  # no sections of links, and no caption without its picture
    text = re.sub(r"(?s)<!-- begin: repository.*?<!-- end: repository -->", "", (ROOT / "README.md").read_text())
    prose = re.sub(r"(?m)^\|.*", "", text)
    pointers = [" ".join(words.split()) for words in re.findall(r"\[([^]]+)\]\((?!https:)", prose)]
    assert len(pointers) > 5
    flat = " ".join(metadata.split())
    assert [words for words in pointers if re.search(rf"\({re.escape(words)}[,)]", flat)] == []  # nor pointers
    assert "Which method to use has the calls for" in flat  # the words of other links stay


def test_the_page_on_installing_names_packages_that_are_required(archives):
    with zipfile.ZipFile(*archives.glob("*.whl")) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        required = re.findall(r"(?m)^Requires-Dist: ([^;\n]+)$", wheel.read(name).decode())
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    for said, package in {"torch": "torch", "Pyro": "pyro-ppl"}.items():
        version = re.search(rf"{said} \(([\d.]+) or newer\)", page).group(1)
        assert f"{package}>={version}" in required
    for package in ("scikit-learn", "pandas", "matplotlib"):
        assert package in page
        assert any(line.startswith(f"{package}>=") for line in required)


def test_the_command_is_installed(archives):
    with zipfile.ZipFile(*archives.glob("*.whl")) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        lines = wheel.read(name).decode().split("\n")
    assert "pyro-bnn = pyro_bnn.app.cli:main" in lines


def test_only_downloading_needs_torchvision_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    message = (
        r"MNIST cannot be downloaded: .*torchvision, .*pip install -e '\.\[vision\]'.* Or put the files into .*raw"
    )
    with pytest.raises(data.MissingDataError, match=message):
        data.load_images("mnist", root=tmp_path, download=True)


def test_each_command_of_a_contributor_is_on_the_page_for_them():
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert [*re.findall(r"(?m)^[*-] (\w+)", listed)] == [*SESSIONS]
    page = (ROOT / "docs" / "CONTRIBUTING.md").read_text()
    assert all(f"| `nox -s {name}" in page for name in SESSIONS)


@pytest.fixture(scope="module")
def noxfile():
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_full_pages_run_the_tutorials(noxfile):
    commands = []
    for given in ([], ["full"]):
        session = SimpleNamespace(posargs=given, run=lambda *command: commands.append(command), error=print)
        noxfile.docs(session)
    assert ["plot_gallery=False" in command for command in commands] == [True, False]


class SessionError(Exception):
    """As nox stops a session."""


@pytest.mark.parametrize("name", ["tests", "nightly", "docs"])
def test_a_session_whose_packages_are_missing_names_the_command_that_installs_them(name, noxfile, monkeypatch):
    def stop(message):
        raise SessionError(message)

    monkeypatch.setattr(noxfile, "find_spec", {}.get)
    extra = "docs" if name == "docs" else "test"
    with pytest.raises(SessionError, match=rf"pip install -e '\.\[{extra}\]'"):
        getattr(noxfile, name)(SimpleNamespace(posargs=[], run=print, error=stop))


def test_one_file_can_be_tested_without_the_packages_of_all_tests(noxfile, monkeypatch):
    monkeypatch.setattr(noxfile, "find_spec", {}.get)
    commands = []
    noxfile.tests(SimpleNamespace(posargs=["tests/test_kl.py"], run=lambda *command: commands.append(command)))
    assert commands == [("pytest", "tests/test_kl.py")]
