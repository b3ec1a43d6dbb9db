"""The front of the command line: help, completion, JSON, formats and colours, and how soon each is there."""

import io
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import pyro_bnn as pb
from pyro_bnn.app import recipes, study
from pyro_bnn.app.cli import compare, demo, evaluate, main, predict, prune, train, weights
from pyro_bnn.app.cli import program as program_module
from pyro_bnn.app.cli.output import Output, has_colours
from pyro_bnn.app.cli.program import COMMANDS, program
from pyro_bnn.app.config import RunConfig

NAMES = [command.__name__ for command, _ in COMMANDS]
EXAMPLES = [line for _, lines in COMMANDS for line in lines]
STARTS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command line; returns exit code, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pyro-bnn", *map(str, arguments)])
        torch.set_default_dtype(torch.float32)
        with pytest.raises(SystemExit) as stop:
            main()
        torch.set_default_dtype(torch.float64)
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def wide(monkeypatch):
    """A terminal so wide that no line of a help is broken."""
    monkeypatch.setenv("COLUMNS", "400")


# --- what is loaded when ----------------------------------------------------------------------------------------------

FRESH = """
import os, sys
from pyro_bnn.app.cli import main

def run(*arguments):
    sys.argv = ["pyro-bnn", *arguments]
    try:
        main()
    except SystemExit as stop:
        return stop.code

HEAVY = {"torch", "pyro", "numpy", "matplotlib", "sklearn", "pandas"}
for command in COMMANDS:
    assert not run(*command)
    assert not HEAVY & sys.modules.keys(), command
for command in MISTAKES:
    assert run(*command) == 2
    assert not HEAVY & sys.modules.keys(), command
os.environ["_PYRO_BNN_COMPLETE"] = "complete_bash"
os.environ.update(COMP_WORDS="pyro-bnn train d", COMP_CWORD="2")
assert not run()
assert not HEAVY & sys.modules.keys()
del os.environ["_PYRO_BNN_COMPLETE"]
assert run("weights", "nowhere") == 2
assert {"torch", "pyro"} <= sys.modules.keys()  # the check sees them
"""


def test_help_version_and_completion_load_neither_torch_nor_pyro(tmp_path):
    helps = [["--help"], ["--version"], *([name, "--help"] for name in NAMES)]
    code = FRESH.replace("COMMANDS", repr(helps)).replace("MISTAKES", repr([["trian"], ["train", "--epochs", "x"]]))
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "digits" in result.stdout


THREADS = """
import pickle, sys, threading
import pyro_bnn
assert "torch" not in sys.modules
failures = []
def use(name):
    try:
        assert callable(getattr(pyro_bnn, name))
    except BaseException as error:
        failures.append(error)
names = ["fit_svi", "fit_nuts", "predict", "load_posterior", "MeanFieldGuide", "compare"]
threads = [threading.Thread(target=use, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
assert pickle.loads(bytes.fromhex(sys.argv[1])) == pyro_bnn.ScaleMixturePrior(0.5, 1.0, 0.1)
import pyro_bnn.plotting
assert pyro_bnn.plotting.save
from pyro_bnn import *
assert fit_svi is pyro_bnn.fit_svi
"""


def test_names_load_in_threads_and_by_pickles():
    pickled = pickle.dumps(pb.ScaleMixturePrior(0.5, 1.0, 0.1)).hex()
    subprocess.run([sys.executable, "-c", THREADS, pickled], check=True)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

SWALLOWS = """
import time
print("loading", flush=True)
try:
    time.sleep(60)
except BaseException:
    raise ImportError("another error, in which Ctrl-C is lost")
"""


@pytest.mark.parametrize("late", [True, False], ids=["in the commands", "told directly"])
def test_ctrl_c_while_a_library_loads_ends_in_a_sentence(tmp_path, late):
    """The second one is the twin: a library that is imported otherwise makes a traceback of Ctrl-C."""
    (tmp_path / "torch.py").write_text(SWALLOWS)
    code = "from pyro_bnn.app.cli import main; main()" if late else "import torch"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(pb.__file__).parent.parent)])}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "weights", "nowhere"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if late:
        assert (process.returncode, err) == (130, "error: stopped.\n")
    else:
        assert "Traceback" in err


def test_ctrl_c_before_a_command_begins_ends_in_a_sentence(command, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(program_module.typer.core.TyperGroup, "parse_args", interrupted)
    assert command("train", "digits") == (130, "", "error: stopped.\n")


# --- help and completion ----------------------------------------------------------------------------------------------


def test_version(command):
    assert command("--version") == (0, f"pyro-bnn {pb.__version__}\n", "")


def test_the_version_is_that_of_the_project():
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'version = "{pb.__version__}"' in project


IN_WORDS = {
    "accuracy": "only with the tutorial recipes",
    "likelihood": "guessed from the target, and said",
    "net": "fully connected layers of --hidden units",
    "estimator": "weights, for tables and arrays local",
    "features": "all but the target",
    "drop_missing": "they are refused",
    "test_fraction": "0.2",
}
"""Defaults that are no setting of the recipe of an image set."""

SETTINGS = [field.name for field in fields(RunConfig) if field.name not in ("dataset", "target")]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_help_of_train_shows_the_settings_of_the_default_recipe(command, wide, setting):
    printed = command("train", "--help")[1]
    option = re.search(rf"│ --{setting.replace('_', '-')} .*?(?=│\n│ --|╰)", printed, re.DOTALL).group()
    expected = IN_WORDS.get(setting) or recipes.default(setting)
    assert f"[default: ({expected})]" in option


def test_the_shown_settings_are_read_from_the_recipes(monkeypatch):
    assert recipes.default("epochs") == "50, for digits 100"
    changed = replace(recipes.RECIPES["mnist", "default"], epochs=7, hold_out=(1, 2))
    monkeypatch.setitem(recipes.RECIPES, ("mnist", "default"), changed)
    assert recipes.default("epochs") == "50, for mnist 7, for digits 100"
    assert recipes.default("hold_out") == "none, for mnist 1,2, for digits 7,8,9"


@pytest.mark.parametrize("name", NAMES)
def test_each_help_has_examples(command, wide, name):
    printed = command(name, "-h")[1]
    shown = [line.strip() for line in printed.splitlines() if line.strip().startswith(f"pyro-bnn {name}")]
    assert shown == [line for line in EXAMPLES if line.split()[1] == name]
    assert shown


class ReachedError(Exception):
    """The command line was read, and the work would begin."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_read(example, monkeypatch):
    def reached():
        raise ReachedError

    for module in (compare, demo, evaluate, predict, prune, train, weights):
        monkeypatch.setattr(module, "loading", reached)
    name, *arguments = shlex.split(example)
    assert name == "pyro-bnn"
    assert isinstance(CliRunner().invoke(program, arguments).exception, ReachedError)
    result = CliRunner().invoke(program, [*arguments, "--no-such-option"])  # the must-fail twin
    assert not isinstance(result.exception, ReachedError)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_shown(shell):
    """Typer asks which shell is running; the variable makes it take the name of one, as there is none in a test."""
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    arguments = [sys.executable, "-m", "pyro_bnn", "--show-completion", shell]
    printed = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=True).stdout
    assert f"_PYRO_BNN_COMPLETE=complete_{shell}" in printed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tr", ["train"]),
        ("train ", ["fashion-mnist", "mnist", "digits"]),
        ("train m", ["mnist"]),
        ("train digits --recipe t", ["tutorial", "tutorial-mixture"]),
        ("train digits --guide ", ["mean-field", "auto-normal"]),
        ("train digits --schedule c", ["constant", "cosine"]),
        ("train digits --optimizer ", ["adam", "sgd"]),
        ("train digits --prior ", ["normal:", "mixture:", "laplace:", "fan-in:"]),
        ("train digits --kl-weight b", ["blundell"]),
        ("train digits --init n", ["normal", "network:"]),
        ("train digits --inputs s", ["standardized", "scaled:"]),
        ("evaluate run --ood m", ["mnist"]),
        ("evaluate run --device ", ["cpu", "cuda"]),
        ("compare --format ", ["png", "pdf", "svg"]),
        ("train digits --recipe x", []),
    ],
)
def test_values_are_completed(command, monkeypatch, words, expected):
    monkeypatch.setenv("_PYRO_BNN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pyro-bnn {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"{words}|".split())))
    code, out, _ = command()
    assert code == 0
    assert out.split() == expected


# --- results ----------------------------------------------------------------------------------------------------------

SHORT = {
    "train": ["--epochs", 2, "--hidden", 8],
    "evaluate": ["--num-samples", 4],
    "prune": ["--num-samples", 2, "--fractions", "0,.5"],
    "compare": ["--num-draws", 40, "--num-steps", 2],
}
"""Options that make a command quick."""

KEYS = {
    "train": {
        "accuracy",
        "classes",
        "config",
        "folder",
        "last_epoch",
        "notes",
        "num_test",
        "num_train",
        "pictures",
        "seconds",
        "status",
    },
    "evaluate": {"folder", "num_test", "num_unknown", "ood", "pictures", "rows"},
    "prune": {"folder", "gains", "pictures", "pruned", "report"},
    "weights": {"folder", "pictures", "sites"},
    "compare": {"folder", "pictures", "rows", "statuses"},
    "demo": {"digits", "folder", "pictures", "regression", "seconds"},
}


def result(command, name, *arguments):
    """The JSON document of a command, with what it said to people."""
    code, out, err = command(name, *arguments, *SHORT.get(name, ()), "--json")
    assert code == 0, err

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    document = json.loads(out, parse_constant=refuse)
    assert document.pop("command") == name
    assert document.pop("version") == pb.__version__
    assert document.keys() == KEYS[name]
    return document, err


def test_each_command_gives_its_results_as_json(command, tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    trained, words = result(command, "train", "digits", "--out", run, "--accuracy")
    assert "next: pyro-bnn evaluate" in words
    assert trained["config"] == json.loads((run / "config.json").read_text())
    assert trained["config"]["epochs"] == len(trained["accuracy"]["test"]) == trained["last_epoch"]["epoch"] + 1 == 2
    assert trained["status"]["ok"]
    assert trained["pictures"] == ["accuracy.png"]
    assert trained["folder"] == str(run)

    evaluated, words = result(command, "evaluate", run)
    assert "mutual information" in words
    metrics = json.loads((run / "metrics.json").read_text())
    assert {key: evaluated[key] for key in metrics} == metrics

    pruned, _ = result(command, "prune", run, "--keep", "0.5", "--out", copy)
    assert pruned["pruned"]["folder"] == str(copy)
    assert {key: pruned[key]["rows"] for key in ("report", "gains")} == {
        key: [{**row} for row in value["rows"]]
        for key, value in json.loads((run / "pruning.json").read_text(), parse_constant=lambda _: None).items()
    }
    result(command, "prune", run, "--keep", "0", "--out", tmp_path / "empty")
    for folder, num_removed in ((run, 0), (copy, 1)):
        sites = result(command, "weights", folder)[0]["sites"]
        assert [site["site"] for site in sites] == ["net.1.weight", "net.1.bias", "net.3.weight", "net.3.bias"]
        assert min(sum(site["num_removed"] for site in sites), 1) == num_removed


def test_json_of_the_comparison(command, tmp_path, monkeypatch):
    """With two methods that take no time; `test_cli.py` runs them all."""
    methods = study.RegressionStudy.methods
    monkeypatch.setattr(study.RegressionStudy, "nuts", lambda self: methods(self)["laplace"]())
    monkeypatch.setattr(study.RegressionStudy, "methods", lambda self: {"mean-field, LRT": methods(self)["laplace"]})
    compared, words = result(command, "compare", "--out", tmp_path / "c", "--format", "svg")
    assert "mean-field, LRT" in words
    assert compared["statuses"].keys() == {"nuts", "mean-field, LRT"}
    assert {row["region"] for row in compared["rows"]} == {"data", "gap", "outside"}
    assert compared["pictures"] == ["comparison.svg"]
    assert (tmp_path / "c" / "comparison.svg").read_bytes().startswith(STARTS["svg"])


@pytest.mark.slow
def test_json_of_the_demo(command, tmp_path):
    shown, words = result(command, "demo", "--out", tmp_path / "demo", "--format", "pdf")
    assert "Done in" in words
    assert shown["digits"]["rows"][-1]["accuracy"] > 0.97
    assert shown["pictures"] == ["loss.pdf", "ood.pdf", "regression.pdf", "reliability.pdf", "votes.pdf"]


def test_with_json_a_fault_leaves_standard_output_empty(command, tmp_path):
    code, out, err = command("evaluate", tmp_path / "nowhere", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_pictures_come_in_the_format_that_is_asked_for(command, tmp_path):
    run = tmp_path / "run"
    options = ["--recipe", "tutorial", "--hold-out", "7,8,9", "--format", "pdf"]
    command("train", "digits", "--out", run, *options, *SHORT["train"])
    assert (run / "accuracy.pdf").read_bytes().startswith(STARTS["pdf"])
    pictures = {
        "evaluate": ["loss", "reliability", "votes", "ood"],
        "weights": ["weight", "weights"],
        "prune": ["pruning", "snr"],
    }
    for kind in ("svg", "png"):
        for name, stems in pictures.items():
            if (name, kind) == ("prune", "png"):
                continue  # takes longest
            code, out, err = command(name, run, "--format", kind, *SHORT.get(name, ()))
            assert (code, err) == (0, "")
            for stem in stems:
                assert (run / f"{stem}.{kind}").read_bytes().startswith(STARTS[kind])
            if name != "evaluate":
                assert all(f"{stem}.{kind}" in out for stem in stems)
    assert {path.name for path in run.glob("*.svg")} == {"pruning.svg", "snr.svg"}  # the others would be out of date
    assert (run / "accuracy.pdf").exists()
    (run / "loss.svg").write_text("not ours")
    command("evaluate", run, *SHORT["evaluate"])
    assert (run / "loss.svg").read_text() == "not ours"


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo"],
        ["train", "digits", "--out", "r"],
        ["compare"],
        *([name, "r"] for name in ("evaluate", "prune", "weights")),
    ],
)
def test_an_unknown_format_is_told_before_anything_is_done(command, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments, "--format", "gif")
    assert (code, out, err) == (2, "", "error: unknown format 'gif'; choose png, pdf or svg.\n")
    assert list(tmp_path.iterdir()) == []


# --- colours ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


TABLE = "name      value\na            1\nb  [red] {x}  2\n\na note on the values"


@pytest.mark.parametrize(
    ("stream", "variables", "is_coloured"),
    [
        (Terminal, {}, True),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_a_terminal_shows_the_same_letters_in_colours(monkeypatch, stream, variables, is_coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "20", **variables}.items():
        monkeypatch.setenv(name, value)
    written = stream()
    monkeypatch.setattr(sys, "stdout", written)
    output = Output("evaluate", as_json=False)
    output.table(TABLE)
    output.say("done.", style="green")
    output.document(rows=[1])
    assert has_colours(written) == is_coloured
    assert bool(ESCAPE.search(written.getvalue())) == is_coloured
    assert ESCAPE.sub("", written.getvalue()) == f"{TABLE}\ndone.\n"
