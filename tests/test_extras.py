"""An error names a missing package and the remedy; any other import error is shown unchanged."""

import re
import sys
from pathlib import Path

import pytest

from pyro_bnn._core.extras import MissingExtraError, optional

ROOT = Path(__file__).parents[1]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes an installed package of some source."""
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda source: (tmp_path / "installed_package.py").write_text(source)
    sys.modules.pop("installed_package", None)


def test_an_absent_package_is_named_with_what_works_in_a_checkout():
    with pytest.raises(MissingExtraError, match=r"needs Absent, which is not installed: run `pip install -e '\.\[x"):
        optional("absent_package.part", "Absent", "x")


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("import absent_dependency", ModuleNotFoundError, "No module named 'absent_dependency'"),
        ("from torch import absent_name", ImportError, "cannot import name 'absent_name'"),
        ("raise ImportError('libfoo.so: undefined symbol')", ImportError, "libfoo.so: undefined symbol"),
        ("1 / 0", ZeroDivisionError, "division by zero"),
    ],
)
def test_a_package_that_is_installed_but_broken_says_so_itself(package, source, error, message):
    package(source)
    with pytest.raises(error, match=message) as caught:
        optional("installed_package", "Installed", "x")
    assert not isinstance(caught.value, MissingExtraError)


def test_every_extra_that_the_package_names_exists():
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    source = "".join(path.read_text() for path in (ROOT / "pyro_bnn").rglob("*.py"))
    named = {*re.findall(r'optional\("[^"]+", "[^"]+", "([^"]+)"', source)}
    assert named
    assert named <= {*extras}
