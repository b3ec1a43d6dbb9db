"""--net: users' networks on the command line."""

import sys

import numpy as np
import pytest

from .own_data import houses, predictions_in, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

NETWORKS = """
import torch
from torch import nn

def both(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.Tanh(), nn.Linear(8, num_outputs))

def width_only(num_outputs, *, width=6):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, num_outputs))

def fixed():
    return nn.Linear(7, 1)

def too_wide():
    return nn.Linear(7, 3)

def other_input():
    return nn.Linear(4, 1)

def anything(**options):
    return nn.Linear(options["input_shape"][0], options["num_outputs"])

def conv(num_outputs):
    layers = nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(144, num_outputs))

def embedding(num_outputs):
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, num_outputs))

def nothing():
    pass

def broken():
    raise RuntimeError("the disk is on fire")

def demanding(depth, num_outputs):
    pass

number = 3

class Net(nn.Module):
    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layer = nn.Linear(*input_shape, num_outputs)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The current folder, with a file of networks and a table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_nets.py").write_text(NETWORKS)
    write_table(tmp_path / "houses.csv", houses(40))
    yield tmp_path
    sys.modules.pop("own_nets", None)


def train(pyro_bnn, net, *options):  # noqa: F811
    return pyro_bnn("train", "houses.csv", "--target", "price", "--net", net, "--out", "run", "--epochs", 10, *options)


@pytest.mark.daily("*both", "*fixed")
@pytest.mark.parametrize(
    "net",
    [
        "own_nets.py:both",
        "own_nets:both",
        "own_nets.py:fixed",
        "own_nets.py:anything",
        "own_nets.py:Net",
        "own_nets.py:width_only",
    ],
)
def test_a_network_is_imported_again_by_other_commands(pyro_bnn, nets, net):  # noqa: F811
    code, _, err = train(pyro_bnn, net)
    assert (code, err) == (0, "")
    assert pyro_bnn("evaluate", "run", "--num-samples", 5)[0] == 0
    code, _, err = pyro_bnn("predict", "run", "houses.csv", "--out", "out.csv")
    assert code == 0, err
    assert len(predictions_in(nets / "out.csv")) == 40


def test_a_network_in_a_file_is_found_from_another_folder(pyro_bnn, nets, monkeypatch):  # noqa: F811
    assert train(pyro_bnn, "own_nets.py:both")[0] == 0
    elsewhere = nets / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert pyro_bnn("evaluate", nets / "run", "--num-samples", 5)[0] == 0


@pytest.mark.daily("images*")
@pytest.mark.parametrize("dataset", ["digits", "images.npz"])
def test_convolutions_on_images(pyro_bnn, nets, dataset):  # noqa: F811
    numbers = np.random.default_rng(0)
    np.savez(nets / "images.npz", x=numbers.integers(0, 256, (30, 8, 8), dtype=np.uint8), y=np.arange(30) % 3)
    code, _, err = pyro_bnn("train", dataset, "--net", "own_nets.py:conv", "--out", "run", "--epochs", 2)
    assert (code, err) == (0, "")
    assert pyro_bnn("evaluate", "run", "--num-samples", 5)[0] == 0


def test_whole_numbers_reach_an_embedding_as_they_are(pyro_bnn, nets):  # noqa: F811
    numbers = np.random.default_rng(0)
    x = numbers.integers(0, 5, (40, 4))
    np.savez(nets / "words.npz", x=x, y=x.sum(1) > 8)
    options = ("--net", "own_nets.py:embedding", "--inputs", "raw", "--out", "run", "--epochs", 5)
    code, _, err = pyro_bnn("train", "words.npz", *options)
    assert (code, err) == (0, "")
    assert pyro_bnn("evaluate", "run", "--num-samples", 5)[0] == 0
    assert pyro_bnn("predict", "run", "words.npz", "--out", "out.csv")[0] == 0


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("own_nets.py", "--net must be mlp, FILE.py:FUNCTION or MODULE:FUNCTION, got 'own_nets.py'"),
        ("own_nets.py:", "--net must be mlp, FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("no_such.py:make", "there is no file"),
        ("no_such_module:make", "importing no_such_module raised ModuleNotFoundError"),
        ("own_nets.py:no_such", "has no function no_such"),
        ("own_nets.py:number", "has no function number"),
        ("own_nets.py:nothing", "the function must return a torch.nn.Module, got NoneType"),
        (
            "own_nets.py:broken",
            '`raise RuntimeError("the disk is on fire")`, raised RuntimeError: the disk is on fire',
        ),
        ("own_nets.py:demanding", "but is missing a required argument: 'depth'; give"),
        ("own_nets.py:too_wide", "must give outputs of shape (2, 1) for 1 target under gaussian, got (2, 3)"),
        ("own_nets.py:other_input", "the network cannot take inputs of shape (2, 7)"),
        ("syntax.py:make", "raised SyntaxError"),
        ("leaving.py:make", "raised SystemExit"),
    ],
)
def test_what_is_wrong_with_a_network_is_said_in_one_sentence(pyro_bnn, nets, net, message):  # noqa: F811
    (nets / "syntax.py").write_text("def make(:\n")
    (nets / "leaving.py").write_text("raise SystemExit(3)\n")
    code, out, err = train(pyro_bnn, net)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert "Trained" not in out
    assert not (nets / "run").exists()


def test_hidden_units_are_not_for_a_network_of_ones_own(pyro_bnn, nets):  # noqa: F811
    code, _, err = train(pyro_bnn, "own_nets.py:both", "--hidden", 5)
    assert (code, "leave it out with --net" in err) == (2, True)


@pytest.mark.daily("8)*", "def*")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("8), nn.Tanh(), nn.Linear(8,", "9), nn.Tanh(), nn.Linear(9,", "has changed since run was trained"),
        ("(*input_shape, 8)", "(*input_shape, 9)", "the network cannot take inputs of shape (2, 7)"),
        ("nn.Linear(8, num_outputs)", "nn.Linear(8, num_outputs, bias=False)", "has changed since run was trained"),
        ("nn.Tanh()", "nn.ReLU()", "has changed since run was trained"),
        ("def both(", "def renamed(", "has no function both"),
    ],
)
def test_a_network_that_changed_since_training_is_refused(pyro_bnn, nets, old, new, message):  # noqa: F811
    assert train(pyro_bnn, "own_nets.py:both")[0] == 0
    (nets / "own_nets.py").write_text(NETWORKS.replace(old, new, 1) + "\n# later\n")
    for command in (("evaluate", "run"), ("predict", "run", "houses.csv"), ("weights", "run")):
        code, _, err = pyro_bnn(*command)
        assert (code, message in err) == (2, True), err


FUTURE = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Sizes:
    width: int = 4

def make(num_outputs):
    return nn.Linear(7, num_outputs)
"""

ODD = """
import os, sys
from torch import nn

os.chdir("/")

def moving(num_outputs):
    os.chdir("/usr")
    return Moving(7, num_outputs)

class Moving(nn.Linear):
    def forward(self, x):
        os.chdir("/")
        return super().forward(x)

def leaving():
    sys.exit(0)

class Leaving(nn.Linear):
    def forward(self, x):
        sys.exit(0)

def leaves_at_once(num_outputs):
    return Leaving(7, num_outputs)

class LeavingLater(nn.Linear):
    def forward(self, x):
        if len(x) > 2:
            sys.exit(0)
        return super().forward(x)

def leaves_later(num_outputs):
    return LeavingLater(7, num_outputs)

class Broken(nn.Linear):
    def forward(self, x):
        table = {}
        return table["weights"]

def breaks(num_outputs):
    return Broken(7, num_outputs)

class BrokenLater(nn.Linear):
    def forward(self, x):
        if len(x) > 2:
            raise KeyError("later")
        return super().forward(x)

def breaks_later(num_outputs):
    return BrokenLater(7, num_outputs)

class Mute(Exception):
    def __str__(self):
        raise RuntimeError

class Halt(BaseException):
    pass

def mute():
    raise Mute

def halts():
    raise Halt("now")

def closes():
    raise GeneratorExit
"""


def test_a_file_may_hold_dataclasses_with_postponed_annotations(pyro_bnn, nets):  # noqa: F811
    (nets / "future.py").write_text(FUTURE)
    code, _, err = train(pyro_bnn, "future.py:make")
    assert (code, err) == (0, "")


@pytest.mark.nightly
def test_a_file_that_changes_the_folder_does_not_lose_the_run(pyro_bnn, nets, monkeypatch):  # noqa: F811
    (nets / "odd.py").write_text(ODD)
    code, _, err = train(pyro_bnn, "odd.py:moving")
    assert (code, err) == (0, "")
    assert (nets / "run" / "posterior.safetensors").is_file()
    commands = (
        ("evaluate", "run", "--num-samples", 2),
        ("predict", "run", "houses.csv", "--out", "new.csv"),
        ("report", "run", "--num-samples", 2),
        ("report", "run", "--num-samples", 2, "--out", "page.html"),
    )
    for command in commands:
        code, _, err = pyro_bnn(*command)
        assert code == 0, err
        monkeypatch.chdir(nets)  # back, since the forward pass of the network changes the folder
    assert (nets / "new.csv").is_file()
    assert (nets / "run" / "report.html").is_file()
    assert (nets / "page.html").is_file()


def test_a_network_that_ends_the_program_while_it_predicts_is_an_error(pyro_bnn, nets):  # noqa: F811
    (nets / "odd.py").write_text(ODD.replace("sys.exit(0)\n        return", "pass\n        return"))
    assert train(pyro_bnn, "odd.py:leaves_later")[0] == 0
    (nets / "odd.py").write_text(ODD)
    code, out, err = pyro_bnn("predict", "run", "houses.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "odd.py, line 29, `sys.exit(0)`, raised SystemExit" in err


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("leaving", "odd.py, line 17, `sys.exit(0)`, raised SystemExit: 0"),
        ("leaves_at_once", "odd.py, line 21, `sys.exit(0)`, raised SystemExit: 0"),
        ("leaves_later", "odd.py, line 29, `sys.exit(0)`, raised SystemExit: 0"),
        ("breaks", "odd.py, line 38, `return table[\"weights\"]`, raised KeyError: 'weights'"),
        ("breaks_later", "odd.py, line 46, `raise KeyError(\"later\")`, raised KeyError: 'later'"),
        ("mute", "odd.py, line 60, `raise Mute`, raised Mute: its text cannot be shown (RuntimeError)"),
        ("halts", 'odd.py, line 63, `raise Halt("now")`, raised Halt: now'),
        ("closes", "odd.py, line 66, `raise GeneratorExit`, raised GeneratorExit"),
    ],
)
def test_an_error_in_a_network_is_shown_with_its_line(pyro_bnn, nets, function, message):  # noqa: F811
    (nets / "odd.py").write_text(ODD)
    code, out, err = train(pyro_bnn, f"odd.py:{function}")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert "cannot take inputs" not in err
    assert "Trained" not in out
    assert not (nets / "run").exists()
