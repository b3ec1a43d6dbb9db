"""Modules keep out of each other: few private names are used from outside, and no imports run in a circle."""

import pytest

from .encapsulation import accesses, ambiguous_names, circles, import_graph, private_names_used, read

MOST_ACCESSES = 10

ACCEPTED: dict[tuple[str, str], str] = {}
"""(file, private name of another file) -> why it is used all the same."""

AMBIGUOUS: dict[str, str] = {}
"""Private names both of another library's classes and of the package's."""

FOR_TYPES = {
    ("pyro_bnn/uncertainty/_prediction.py", "pyro_bnn/uncertainty/_classification.py"),
    ("pyro_bnn/uncertainty/_prediction.py", "pyro_bnn/uncertainty/_regression.py"),
}
"""Imports (from, to) that only annotations need."""

USED_IN_TESTS = {
    "tests/test_predict_at_once.py": (
        {"pyro_bnn.prediction._at_once"},
        "Which difference of two draws is noticed cannot be seen in a prediction.",
    ),
    "tests/test_checkpointing.py": (
        {"pyro_bnn._checkpointing", "pyro_bnn._files"},
        "When states are written and what a signal does is the same for every computation.",
    ),
    "tests/test_architectures_values.py": (
        {"pyro_bnn._functional"},
        "Layers that do not see the drawn weights must be noticed.",
    ),
    "tests/test_batches.py": (
        {"pyro_bnn.svi._batches"},
        "The order of the rows is compared with its definition, and fits go through it.",
    ),
    "tests/test_curvatures.py": (
        {"pyro_bnn.guides._curvatures", "pyro_bnn.guides._natural_state"},
        "Second derivatives are taken away, to show what fits are without them; where they go is checked by hand.",
    ),
    "tests/test_conversion.py": (
        {"pyro_bnn._inputs"},
        "What becomes of arrays, lists and frames is compared with their numbers; fits and predictions use the same.",
    ),
    "tests/fits.py": ({"pyro_bnn.svi._svi_step"}, "The direct path is closed, so that the same fit is run by Pyro's."),
    "tests/test_direct_graph.py": (
        {"pyro_bnn.svi._graph", "pyro_bnn.svi._step"},
        "Recordings are played without a GPU, by a stand-in for its graphs.",
    ),
    "tests/test_direct_numbers.py": ({"pyro_bnn.joint._joint"}, "Chunks are made small enough for a test."),
    "tests/test_distributions.py": (
        {"pyro_bnn._reflection"},
        "Copies of distributions on another device are the subject.",
    ),
    "tests/test_files.py": (
        {"pyro_bnn._files"},
        "Which files are damaged is decided in one place for every file of the library.",
    ),
    "tests/test_flat_guide.py": (
        {"pyro_bnn._scope"},
        "A family of guides of one's own declares its parameters to Pyro as those of the library do.",
    ),
    "tests/test_joint.py": (
        {"pyro_bnn._scope"},
        "Stored draws are evaluated in eval mode, as the library does.",
    ),
    "tests/test_kl.py": ({"pyro_bnn.kl._divergence"}, "The number of draws per chunk is made small enough for a test."),
    "tests/test_mcmc_adaptation.py": (
        {"pyro_bnn.mcmc._adaptation"},
        "Step size, mass and windows are compared with their definitions; no fit shows them alone.",
    ),
    "tests/test_mcmc_blocks.py": (
        {
            "pyro_bnn.mcmc._blocks",
            "pyro_bnn.mcmc._emit",
            "pyro_bnn.mcmc._native",
            "pyro_bnn.mcmc._operations",
            "pyro_bnn.mcmc._traced",
        },
        "Potentials in C are compared with torch's; which are written in blocks is seen in time alone.",
    ),
    "tests/test_mcmc_random.py": (
        {"pyro_bnn.mcmc._native"},
        "Potentials in C are compared with torch's and with densities written by hand.",
    ),
    "tests/test_mcmc_kernels.py": (
        {"pyro_bnn.mcmc._tree"},
        "A mutant of the sampler must be seen to be wrong.",
    ),
    "tests/test_mcmc_native.py": (
        {"_compile", "_kept", "pyro_bnn.mcmc._native", "pyro_bnn.mcmc._native_kernel"},
        "Potentials in C are compared with torch's, and chains with those of the eager sampler, draw by draw.",
    ),
    "tests/test_resume.py": ({"pyro_bnn._scope"}, "A fit whose random numbers do not go on must be seen to differ."),
    "tests/test_posterior_damage.py": (
        {"pyro_bnn._files"},
        "A forged file has a right checksum, and only its content is wrong.",
    ),
    "tests/test_mcmc_replayed.py": (
        {"pyro_bnn.mcmc._replayed", "pyro_bnn.mcmc._steps", "pyro_bnn.mcmc._traced"},
        "Draws from records are compared with those without, for which there is no public option.",
    ),
    "tests/test_mcmc_resume.py": ({"pyro_bnn._files"}, "How far the chains of a file are is in the file alone."),
    "tests/test_mcmc_tree.py": ({"pyro_bnn.mcmc._tree"}, "The tree of NUTS is compared with its definition."),
    "tests/frozen_fits.py": (
        {"pyro_bnn.svi._features"},
        "Fits are compared with those that compute no features, for which there is no public option.",
    ),
    "tests/test_features_changes.py": (
        {"pyro_bnn._reuse", "pyro_bnn.svi._features"},
        "A network that takes another way, and tables that may not be used, are made on purpose.",
    ),
    "tests/test_features.py": (
        {"pyro_bnn._reuse", "pyro_bnn.svi._direct", "pyro_bnn.svi._features"},
        "What runs in a step shows in no number of a fit, and its absence must be compared with its presence.",
    ),
    "tests/test_reuse.py": (
        {"pyro_bnn._reuse", "pyro_bnn.prediction._batch"},
        "How much memory is held between two draws shows in no prediction.",
    ),
    "tests/test_extras.py": (
        {"pyro_bnn._extras"},
        "A package that is installed but broken can be told from an absent one only where it is imported.",
    ),
    "tests/test_forged_files.py": (
        {"pyro_bnn._files"},
        "A forger writes files with a right checksum.",
    ),
    "tests/test_posterior_records.py": (
        {"pyro_bnn._files"},
        "What a file leaves out shows in nothing that is loaded from it.",
    ),
    "tests/test_warning_filters.py": (
        {"pyro_bnn._scope", "pyro_bnn.sgmcmc._fit"},
        "What two threads do to the process's filters depends on their meeting inside these contexts.",
    ),
    "tests/test_threads.py": (
        {"pyro_bnn._scope"},
        "Threads use streams of random numbers, and spoil each other without the lock.",
    ),
}
"""Test file -> the private files and names of the package that it uses, and why."""


# --- the package ------------------------------------------------------------------------------------------------------


def test_few_private_names_are_used_from_outside_and_each_for_a_reason():
    found = accesses(read("pyro_bnn"))[0]
    unexplained = [str(access) for access in found if (access.file, access.name) not in ACCEPTED]
    assert not unexplained, "\n".join(unexplained)
    assert len(found) <= MOST_ACCESSES
    assert all(ACCEPTED.values())
    assert set(ACCEPTED) <= {(access.file, access.name) for access in found}, "reasons without an access"


def test_no_name_of_the_package_passes_for_a_librarys():
    assert ambiguous_names(read("pyro_bnn")) <= set(AMBIGUOUS)


@pytest.mark.parametrize("late", [False, True])
def test_no_files_import_each_other_in_a_circle(late):
    graph, for_types = import_graph(read("pyro_bnn"), late=late)
    assert circles(graph) == []
    assert set(for_types) == FOR_TYPES


def test_tests_use_private_names_only_where_those_are_their_subject():
    found = private_names_used(read("tests"), read("pyro_bnn"))
    assert found == {file: names for file, (names, _) in USED_IN_TESTS.items()}
    assert all(reason for _, reason in USED_IN_TESTS.values())


# --- the measure itself: small packages with one use of each kind -----------------------------------------------------


def package(code, **more):
    """A package in which `b.py` holds the code."""
    sources = {
        "pkg/__init__.py": "",
        "pkg/_checks.py": "def positive(x): ...\ndef _hidden(x): ...",
        "pkg/a/__init__.py": "from ._file import A\ndef _helper(): ...",
        "pkg/a/_file.py": "class A:\n    def __init__(self): self._x = 1",
        "pkg/b.py": code,
    }
    return sources | {path.replace("__", "/") + ".py": text for path, text in more.items()}


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        ("def f(a): return a._x", "attribute", "_x"),
        ("def f(a): a._x = 1", "attribute", "_x"),
        ("def f(a): a._x += 1", "attribute", "_x"),
        ("class B:\n    def f(self): return self.a._x", "attribute", "_x"),
        ("class B(A):\n    def f(self, other): return other._x", "attribute", "_x"),
        ("def f(a): return a.b()[0]._x()", "attribute", "_x"),
        ("def f(a): return a.__x", "attribute", "__x"),
        ("def f(a): return getattr(a, '_x')", "attribute", "_x"),
        ("def f(a): setattr(a, '_x', 1)", "attribute", "_x"),
        ("def f(a): return hasattr(a, '_x')", "attribute", "_x"),
        ("def f(a): return vars(a)['_x']", "attribute", "_x"),
        ("def f(a): return a.__dict__['_x']", "attribute", "_x"),
        ("from . import _checks\n_checks._hidden(1)", "attribute", "_hidden"),
        ("import pkg.a\npkg.a._file.A()", "attribute", "_file"),
        ("from .a import _helper", "name", "_helper"),
        ("from pkg.a import _helper as helper", "name", "_helper"),
        ("from ._checks import _hidden", "name", "_hidden"),
        ("from .a._file import A", "file", "pkg.a._file"),
        ("from .a import _file", "file", "pkg.a._file"),
        ("from pkg.a._file import A", "file", "pkg.a._file"),
        ("import pkg.a._file", "file", "pkg.a._file"),
        ("def f():\n    from .a._file import A", "file", "pkg.a._file"),
    ],
)
def test_each_way_to_reach_in_is_seen(code, kind, name):
    (access,) = accesses(package(code))[0]
    assert (access.file, access.kind, access.name) == ("pkg/b.py", kind, name)
    assert f"pkg/b.py:{access.line}: {kind} {name}" in str(access)


@pytest.mark.parametrize(
    "code",
    [
        "from .a import A",
        "from . import _checks\n_checks.positive(1)",
        "from ._checks import positive",
        "def f(a): return a.x, a.__dict__, a.__class__, a._",
        "def f(a): return getattr(a, 'x'), vars(a)['x'], a['_x'], print(a, '_x')",
        "class B(A):\n    def f(self): return self._x, super()._x\n    @classmethod\n    def g(cls): return cls._x",
        "class B:\n    def __init__(self): self._x = 1\n    def f(self, other): return other._x",
        "class B:\n    _x: int = 1\ndef f(b): return b._x",
        "def _x(): ...\nimport pkg.b\npkg.b._x()",
    ],
)
def test_a_class_may_use_its_own_and_everyone_what_is_public(code):
    assert accesses(package(code)) == ([], [])


def test_a_private_file_is_open_to_its_own_folder_only():
    code = "from ._file import A\nfrom . import _file"
    assert accesses(package("", pkg__a__c=code))[0] == []
    assert len(accesses(package("", pkg__c___inner="from ..a._file import A", pkg__c____init__=""))[0]) == 1
    assert len(accesses(package("from ._checks import positive"), floor=frozenset())[0]) == 0  # the same folder
    below = package("", pkg__a__c="from .._checks import positive")
    assert len(accesses(below, floor=frozenset())[0]) == 1
    assert accesses(below)[0] == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def f(net): return net._modules", "_modules"),
        ("def f(net): return net._pyro_samples", "_pyro_samples"),
        ("def f(d): return d._validate_args", "_validate_args"),
        ("def f(d): return d._extended_shape()", "_extended_shape"),
        ("def f(pair): return pair._replace(a=1)", "_replace"),
        ("def f(t): return t._version", "_version"),
        ("import torch\ntorch._not_of_any_class()", "_not_of_any_class"),
        ("from pyro.poutine.runtime import _PYRO_STACK", "_PYRO_STACK"),
    ],
)
def test_names_of_other_libraries_are_another_matter(code, name):
    ours, foreign = accesses(package(code))
    assert ours == []
    assert [access.name for access in foreign] == [name]


def test_a_name_that_hides_behind_a_librarys_is_ambiguous():
    code = "def f(a): return a._modules"
    assert ambiguous_names(package(code)) == set()
    assert ambiguous_names(package(code, pkg__c="class C:\n    def __init__(self): self._modules = 1")) == {"_modules"}


# --- circles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "at_module_level", "with_late"),
    [
        ({"a": "from .b import x", "b": "from . import c", "c": ""}, 0, 0),
        ({"a": "from .b import x", "b": "from . import a", "c": ""}, 1, 1),
        ({"a": "from .b import x", "b": "import pkg.c", "c": "if True:\n    from .a import x"}, 1, 1),
        ({"a": "from .b import x", "b": "def f():\n    from .a import x"}, 0, 1),
        (
            {"a": "from .b import x", "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"},
            0,
            0,
        ),
        ({"a": "from . import x"}, 1, 1),  # the package itself, which imports all of them
        ({"a": "from .b import x", "b": "from .a import x", "c": "from .d import x", "d": "from .c import x"}, 2, 2),
        ({"p/__init__": "from ..q import x", "p/_r": "", "q": "from .p._r import x"}, 1, 1),
        ({"p/__init__": "from ._r import x", "p/_r": "from ._s import x", "p/_s": "from .. import q", "q": ""}, 0, 0),
    ],
)
def test_circles_are_found_at_module_level_and_inside_of_functions(files, at_module_level, with_late):
    every = "\n".join(f"from .{name.replace('/__init__', '').replace('/', '.')} import x" for name in files)
    sources = {"pkg/__init__.py": every} | {f"pkg/{name}.py": text for name, text in files.items()}
    graphs = [import_graph(sources, late=late)[0] for late in (False, True)]
    assert [len(circles(graph)) for graph in graphs] == [at_module_level, with_late]


def test_imports_for_types_are_listed():
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A\nelse:\n    from . import _checks"
    graph, for_types = import_graph(package(code), late=False)
    assert for_types == [("pkg/b.py", "pkg/a/__init__.py")]
    assert graph["pkg/b.py"] == {"pkg/_checks.py"}


# --- what tests use ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from pkg.a._file import A", {"pkg.a._file"}),
        ("from pkg.a import _file", {"pkg.a._file"}),
        ("from pkg._checks import _hidden", {"pkg._checks", "pkg._checks._hidden"}),
        ("def test(a): assert a._x", {"_x"}),
        ("def test(a): a._x = 2", {"_x"}),
        ("def test(monkeypatch): monkeypatch.setattr('pkg.a._file.A', None)", {"_file"}),
        ("from pkg.a import A\ndef test(a): assert a.x._y and a._modules", set()),
        ("class Fake:\n    def __init__(self): self._x = 1\ndef test(): assert Fake()._x", set()),
        ("import numpy\nnumpy._x", set()),
    ],
)
def test_private_names_in_tests_are_found(code, names):
    used = private_names_used({"tests/test_b.py": code}, package(""))
    assert used == ({"tests/test_b.py": names} if names else {})
