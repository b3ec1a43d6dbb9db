"""The pages link names to the reference, and the reference links to the pages that use a name."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sphinx")
ROOT = Path(__file__).parent.parent
NAMES = ("fit", "Posterior", "Posterior.sample", "plotting.save", "pruning.prune", "acquisition.entropy")
AGAIN = ("uncertainty.entropy", "calibration.Temperature")


@pytest.fixture
def names():
    spec = importlib.util.spec_from_file_location("_names", ROOT / "docs" / "_extensions" / "_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entries = {
        f"pyro_bnn.{name}": SimpleNamespace(docname=f"generated/{name}", node_id=name, aliased=False)
        for name in NAMES + AGAIN
    }
    return module.Names(SimpleNamespace(domaindata={"py": {"objects": entries}}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fit", "fit"),
        ("pb.fit(model, data)", "fit"),
        ("Posterior.sample", "Posterior.sample"),
        ("posterior.sample(100)", "Posterior.sample"),
        ("plotting.save", "plotting.save"),
        ("prune(guide)", "pruning.prune"),
        ("Temperature.fit(prediction, y)", None),  # a member that is not in the reference
        ("pb.calibration.Temperature", "calibration.Temperature"),
        ("Temperature", "calibration.Temperature"),
        ("pb.plotting", "plotting"),
        ("save", None),  # words and names of arguments
        ("sample", None),
        ("plotting", None),
        ("entropy(p)", None),  # two functions have this name
        ("regressor.fit", None),
        ('method="svi"', None),
    ],
)
def test_code_in_a_sentence_is_the_name_that_it_means(names, text, name):
    assert names.find(text) == (name and f"pyro_bnn.{name}")


def test_names_of_modules_link_to_sections_of_the_reference(names):
    titles = (ROOT / "docs" / "api.rst").read_text().lower().replace(" ", "-").splitlines()
    for name, (page, section) in names.places.items():
        assert page != "api" or section in titles, name
