"""Calls in the tables of the documents: the name exists and takes these arguments; runnable calls are run."""

import ast
import collections
import functools
import inspect
import re
from pathlib import Path

import pytest
import torch

import pyro_bnn as pb

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SPACES = (
    *("pb", "acquisition", "calibration", "data", "distributions", "interop", "kl", "likelihoods", "metrics"),
    *("nets", "optim"),
    *("plotting", "pruning", "scale_maps", "uncertainty"),
)

OTHERS = {"AutoIAFNormal", "Trace_ELBO", "detach", "next", "step"}
"""Names of other libraries that a table calls."""


def cells(page):
    """The cells of a page's tables; of tables that compare libraries, only the columns of this library."""
    head, own = None, None
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            head = None
            continue
        row = re.split(r"(?<!\\)\|", line)[1:-1]
        if head is None:
            head = [cell.strip() for cell in row]
            own = [i for i, name in enumerate(head) if name.startswith("pyro-bnn")] or range(len(head))
        else:
            yield from (row[i] for i in own if i < len(row))


def calls(text):
    """Calls in the code of a cell, at any depth; code that is not an expression has none."""
    for code in re.findall(r"`([^`]+)`", text):
        try:
            tree = ast.parse(code.strip(), mode="eval")
        except SyntaxError:
            continue
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def owner(node):
    """The object of the library that a call names; None where it is a method or another library's."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or (names and node.id not in SPACES):
        return None
    if not names and node.id in OTHERS:
        return None
    found = pb
    for name in [node.id, *names[::-1]] if node.id != "pb" else names[::-1]:
        found = next((getattr(space, name) for space in spaces(found) if hasattr(space, name)), None)
        assert found is not None, f"the library has no `{name}`"
    return found


def spaces(found):
    return (pb, *(getattr(pb, name) for name in SPACES[1:])) if found is pb else (found,)


def misuse(call):
    """What is wrong with a call of the library, if anything is; `...` stands for any arguments."""
    found = owner(call.func)
    if found is None or not callable(found):
        return None
    signature = inspect.signature(found)
    is_open = any(isinstance(a, ast.Starred) or ast.unparse(a) == "..." for a in call.args)
    named = {k.arg: None for k in call.keywords if k.arg}
    given = [None for a in call.args if ast.unparse(a) != "..."]
    try:
        (signature.bind_partial if is_open or not call.args else signature.bind)(*given, **named)
    except TypeError as error:
        return f"`{ast.unparse(call)}`: {error}; the signature is {signature}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_calls_in_tables_are_accepted(page):
    wrong = [misuse(call) for cell in cells(page) for call in calls(cell)]
    assert [message for message in wrong if message] == []


SHORT = {
    "fit_svi": {"optimizer": functools.partial(torch.optim.Adam, lr=1e-2), "num_epochs": 2},
    "fit_nuts": {"num_samples": 4, "num_warmup": 4, "num_chains": 1},
}
"""Arguments that make a fit short, or that the tables leave to the reader."""


@pytest.fixture
def names(tmp_path):
    """The names that calls in the tables use."""
    x = torch.linspace(-1, 1, 8)[:, None]
    net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(0.1), num_data=8)
    guide = pb.MeanFieldGuide(model)
    data = (x, torch.sin(3 * x))
    posterior = pb.fit_svi(model, data, guide, seed=0, **SHORT["fit_svi"])
    posteriors = [posterior, posterior]
    public = {name: getattr(pb, name) for name in pb.__all__} | {"pb": pb}
    short = {name: functools.partial(getattr(pb, name), **arguments) for name, arguments in SHORT.items()}
    path = tmp_path / "posterior.safetensors"
    own = {"x": x, "y": data[1], "S": 3, "s": 1.0, "scale": 0.1, "gain": 1.0, "delta": 0.1}
    own |= {"mixing": 0.5, "scale1": 1.0, "scale2": 0.1, "glob": "**", "prior": pb.NormalPrior(), "nn": torch.nn}
    return public | short | own | locals()


def runnable(call, names):
    """Whether all names in a call are known."""
    is_open = any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(call))
    if is_open or ast.unparse(call.func).startswith("nn."):
        return False
    return {node.id for node in ast.walk(call) if isinstance(node, ast.Name)} <= {*names}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning", "ignore::pyro_bnn.PosteriorWarning")  # tiny fits
@pytest.mark.usefixtures("short_chains", "short_fits")
def test_calls_in_tables_run(names):
    """A call with `...` leaves arguments to the reader: the shown arguments are bound, but the call is not run."""
    counts, seen = collections.Counter(), set()
    for page in PAGES:
        for call in (call for cell in cells(page) for call in calls(cell)):
            if runnable(call, names):
                if (text := ast.unparse(call)) not in seen:  # the same call is on several pages
                    eval(compile(ast.Expression(call), str(page), "eval"), dict(names))
                seen.add(text)
                counts[page.parent.name] += 1
    assert counts["coming_from"] > 15
    assert counts.total() > 28


@pytest.mark.parametrize(
    ("cell", "is_wrong"),
    [
        ("`predict(model, posterior, x)`", False),
        ("`predict(model, posterior, x, draws=3)`", True),
        ("`predict(model)`", True),
        ("`fit_svi(..., estimator=Flipout())`", False),
        ("`fit_svi(..., estimator=Flipout(how=1))`", True),
        ("`metrics.brier_score(probs, y)`", False),
        ("`posterior.anything(1)`, text", False),
    ],
)
def test_a_wrong_call_is_seen(cell, is_wrong):
    assert any(misuse(call) for call in calls(cell)) == is_wrong


def test_an_unknown_name_is_seen():
    with pytest.raises(AssertionError, match="no `fit_magic`"):
        misuse(next(calls("`fit_magic(model)`")))
