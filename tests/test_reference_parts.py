"""Types and parameters in the reference: public names, and a text for each parameter of the estimators."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from numpy.typing import NDArray

pytest.importorskip("docutils")
pytest.importorskip("sphinx")
from docutils import nodes
from sphinx.addnodes import desc, desc_content, desc_signature, pending_xref
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import signature
from sphinx.util.typing import stringify_annotation

import pyro_bnn as pb

from .test_public_names import public_objects

DOCS = Path(__file__).parent.parent / "docs"


def part(name):
    """The module `docs/_extensions/_NAME.py`."""
    spec = importlib.util.spec_from_file_location(f"_{name}", DOCS / "_extensions" / f"_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def annotations():
    """Each type in a signature of the reference, as Sphinx writes it."""
    for _, _, value in public_objects():
        members = vars(value).items() if inspect.isclass(value) else ()
        for function in (value, *(member for name, member in members if not name.startswith("_"))):
            if inspect.isfunction(function) or (inspect.isclass(function) and not issubclass(function, BaseException)):
                found = signature(function, type_aliases={})
                for kind in (found.return_annotation, *(one.annotation for one in found.parameters.values())):
                    if kind is not inspect.Signature.empty:
                        yield stringify_annotation(kind, "smart")


def test_no_private_type_is_shown():
    types = part("types")
    found = {*annotations()}
    shown = {types.short(text) for text in found}
    assert any("_SupportsArray" in text for text in found)
    assert "~torch.Tensor | ~numpy.typing.ArrayLike" in shown
    assert {text for text in shown if re.search(r"(?<![.\w])~?_\w|\._\w+(?=[\[\], ]|$)", text)} == set()


def test_types_of_arrays_have_numpys_names():
    text = stringify_annotation(NDArray[bool] | None, "smart")
    field = nodes.field("", nodes.field_name("", "rtype"), nodes.field_body("", nodes.paragraph(text, text)))
    content = desc_content("", nodes.field_list("", field))
    part("types").short_types(None, "py", "function", content)
    assert content.astext().split("\n")[-1] == "~numpy.typing.NDArray[bool] | None"


@pytest.mark.parametrize(("target", "kind"), [("numpy.typing.ArrayLike", "obj"), ("torch.Tensor", "class")])
def test_names_of_numpy_are_found_as_data(target, kind):
    """The names are data in numpy's inventory, and Sphinx looks for classes."""
    node = pending_xref("", reftarget=target, reftype="class")
    assert part("types").link_types(None, None, node, None) is None
    assert node["reftype"] == kind


@pytest.mark.parametrize("target", ["Inputs", "OptimizerFactory"])
def test_names_of_long_types_link_to_their_explanations(target):
    app = SimpleNamespace(builder=SimpleNamespace(get_relative_uri=lambda start, end: f"../{end}.html"))
    node = pending_xref("", reftarget=target, refdoc="generated/pyro_bnn.fit")
    link = part("types").link_types(app, None, node, nodes.emphasis("", target))
    title, line = link["refuri"].partition("#")[2].capitalize().replace("-", " "), f"The type ``{target}``"
    assert (title, line) == ("Types of arguments", line)
    assert line in (DOCS / "api.rst").read_text().partition(f"\n{title}\n")[2]


@pytest.mark.parametrize("estimator", [pb.BNNRegressor, pb.BNNClassifier])
def test_each_parameter_of_an_estimator_has_a_text_on_its_page(estimator):
    fields = part("fields")
    lines = inspect.getdoc(estimator).splitlines()
    before = fields.parameters(lines)
    fields.complete(None, "class", "", estimator, None, lines)
    after = fields.parameters(lines)
    assert [*after] == [*inspect.signature(estimator).parameters]
    assert all(len(texts[0].partition(": ")[2]) > 10 for texts in after.values())
    assert before.items() <= after.items()
    text = "\n".join(line for texts in after.values() for line in texts)
    for name in re.findall(r":meth:`(?:BNN\w+\.)?(\w+)`", text):
        assert f":meth:`{name}`" not in text or hasattr(estimator, name)
    assert hasattr(estimator, "likelihood") or "likelihood" not in text


def test_parameters_of_methods_are_divided_once():
    """A class has its methods within it."""
    items = [nodes.paragraph("", "", nodes.strong("", name), nodes.Text(" (int)")) for name in ("x", "y")]
    listed = nodes.bullet_list("", *(nodes.list_item("", item) for item in items))
    field = nodes.field("", nodes.field_name("", "Parameters"), nodes.field_body("", listed))
    document = nodes.container("", desc_content("", desc_content("", nodes.field_list("", field))))
    part("fields").as_definitions(None, document)
    terms = [*document.findall(nodes.term)]
    assert [term.astext() for term in terms] == ["x (int)", "y (int)"]


def test_attributes_are_one_block_below_links_to_the_methods():
    kinds = {"fit": "method", "model_": "attribute", "predict": "method", "draws": "property", "score": "method"}
    members = [desc("", desc_signature("", name, ids=[f"A.{name}"]), objtype=kind) for name, kind in kinds.items()]
    content = desc_content("", nodes.paragraph("", "Text."), *members)
    part("fields").attributes_first(None, nodes.container("", desc("", content)))
    texts = ["Text.", "Methods: fit, predict, score.", "Attributes", "model_", "draws", "fit", "predict", "score"]
    assert [child.astext() for child in content] == texts
    assert [link["refid"] for link in content[1].findall(nodes.reference)] == ["A.fit", "A.predict", "A.score"]


def test_the_first_sentence_of_an_attribute_stays_whole():
    """Napoleon takes what is before a colon as the type."""
    lines = ["The verdict: in words."]
    part("fields").without_type(None, "property", "A.verdict", None, None, lines)
    assert str(GoogleDocstring(lines, what="property", name="A.verdict")).strip() == "The verdict: in words."


def test_the_type_of_what_is_returned_is_beside_its_description():
    texts = {"Returns": "The posterior.", "Raises": "ValueError", "Return type": "Posterior"}
    bodies = {title: nodes.field_body("", nodes.paragraph("", text)) for title, text in texts.items()}
    fields = nodes.field_list("", *(nodes.field("", nodes.field_name("", name), body) for name, body in bodies.items()))
    part("fields").with_types(None, nodes.container("", fields))
    assert [field[0].astext() for field in fields] == ["Returns", "Raises"]
    (item,) = fields.findall(nodes.definition_list_item)
    assert [child.astext() for child in item] == ["Posterior", "The posterior."]


def test_every_public_function_and_class_links_to_its_source():
    """Sphinx cannot read some expressions in decorators, and then leaves out the links of the whole module."""
    for owner, name, value in public_objects():
        if inspect.isfunction(value) or inspect.isclass(value):
            analyzer = ModuleAnalyzer.for_module(value.__module__)
            analyzer.analyze()
            assert value.__qualname__ in analyzer.tags, f"{owner}.{name}"
