"""The run with the lowest versions reads these versions from `pyproject.toml`, and runs files that exist."""

import pytest

from . import lowest


@pytest.mark.parametrize(
    ("requirement", "bound"),
    [
        ("torch>=2.4", "torch==2.4"),
        ("arviz>=0.17,<1", "arviz==0.17"),
        ("pyro-ppl >= 1.9", "pyro-ppl==1.9"),
        ("numpy<3,>=1.24", "numpy==1.24"),
        ("jax>=0.8; python_version >= '3.11'", "jax==0.8; python_version >= '3.11'"),
        ("torchvision", None),
        ("jax; python_version >= '3.11'", None),
    ],
)
def test_the_lower_bound_of_a_requirement(requirement, bound):
    assert lowest.lower_bound(requirement) == bound


def test_every_requirement_of_ours_has_one():
    pytest.importorskip("tomllib", reason="new in Python 3.11")
    bounds = lowest.lower_bounds(lowest.read_project())
    assert any(bound.startswith("torch==") for bound in bounds)


def test_a_requirement_without_one_is_named():
    project = {"dependencies": ["torch>=2", "torchvision"], "optional-dependencies": {"mcmc": [], "test": []}}
    with pytest.raises(ValueError, match=r"must have a lower bound .* got torchvision"):
        lowest.lower_bounds(project)


def test_its_tests_exist():
    for name in lowest.TESTS:
        assert (lowest.ROOT / "tests" / f"test_{name}.py").is_file(), name
