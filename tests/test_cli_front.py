"""The user interface of the commands: help, completion, JSON, formats and colours, and how fast each appears."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import os
import pickle
import platform
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pyro
import pytest
import torch
from typer.testing import CliRunner

import pyro_bnn as pb
from pyro_bnn.app import recipes
from pyro_bnn.app.cli import compare, demo, evaluate, predict, prune, report, train, weights
from pyro_bnn.app.cli import program as program_module
from pyro_bnn.app.cli.options import BRIEF
from pyro_bnn.app.cli.program import COMMANDS, program
from pyro_bnn.app.config import RunConfig

from .test_cli import pyro_bnn  # noqa: F401  # a fixture

NAMES = [command.__name__ for command, _ in COMMANDS]
EXAMPLES = [line for _, lines in COMMANDS for line in lines]


@pytest.fixture
def wide(monkeypatch):
    """A terminal so wide that no line of a help is broken."""
    monkeypatch.setenv("COLUMNS", "400")


# --- what is loaded when ----------------------------------------------------------------------------------------------

MISTAKES = [["trian"], ["train", "--epochs", "x"], ["train", "digits"], ["train", "cifar", "--out", "r"]]
MISTAKES += [["weights", "nowhere"], ["train", "nowhere.csv", "--target", "y", "--out", "r"]]
MISTAKES += [["predict", "full", "nowhere.csv"], ["report", "nowhere"], ["compare", "nowhere"]]
MISTAKES += [["train", "digits", "--out", "full"], ["demo", "--out", "full"]]  # a folder with a file
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
import numpy
assert HEAVY & sys.modules.keys()  # the check sees them
"""


def test_help_version_and_completion_load_neither_torch_nor_pyro(tmp_path):
    helps = [["--help"], ["--version"], *([name, "--help"] for name in NAMES)]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    code = FRESH.replace("COMMANDS", repr(helps)).replace("MISTAKES", repr(MISTAKES))
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "digits" in result.stdout


EARLY = {
    "train t.csv --target pirce --out r": "t.csv has no column 'pirce'; did you mean 'price'?",
    "train t.csv --target price --ignore aera --out r": "t.csv has no column 'aera'; did you mean 'area'?",
    "train t.csv --target price --split-by dya --out r": "t.csv has no column 'dya'; its columns are 'area', 'price'.",
    "train t.csv": "Missing --target and --out. Its columns are 'area', 'price'. Example: pyro-bnn train t.csv",
    "train t.csv --out r": "Missing --target. Its columns are 'area', 'price'. Example: pyro-bnn train t.csv --out r",
    "train t.csv --target price --method nuts --out r": "--method must be auto, mclmc or svi, got nuts; to compare",
    "train t.csv --target price --prior gaussian:1 --out r": "--prior: unknown prior 'gaussian:1' (did you mean",
    "train t.csv --target price --hidden 10,-3 --out r": "--hidden must be at least 1, got -3.",
    "train t.csv --target price --hidden 10,,9 --out r": "--hidden must be whole numbers separated by commas, such as",
    "train t.csv --target price --optimizer lion --out r": "--optimizer: unknown optimizer 'lion'; choose adam,",
    "train t --target price --out r": "unknown data set 't' (did you mean 't.csv'?); choose fashion-mnist,",
    "train t.xyz --target price --out r": "t.xyz is empty; pass a table",
    "train digits --method auto --out r": "--method goes with tables and arrays only.",
    "report ../early": "../early holds no training run: there is no ../early/manifest.json; make one with",
    "evaluate run/posterior.safetensors": "run/posterior.safetensors is a file; pass the folder: run.",
    "evaluate t.csv": "t.csv is a file; pass a folder that `pyro-bnn train` wrote.",
}
"""Mistakes that the arguments and the first line of the file show, and what is said about them."""


def test_mistakes_that_arguments_alone_show_are_reported_before_torch_is_loaded(tmp_path):
    place = tmp_path / "early"
    (place / "run").mkdir(parents=True)
    (place / "t.csv").write_text("area,price\n1,2\n")
    for name in ("t.xyz", "run/manifest.json", "run/posterior.safetensors"):
        (place / name).touch()
    start = FRESH.partition("HEAVY")[0]
    checks = [f"assert run(*{line.split()}) == 2, {line!r}" for line in EARLY]
    code = "\n".join([start, *checks, 'assert not {"torch", "pyro", "sklearn"} & sys.modules.keys()'])
    wide = os.environ | {"COLUMNS": "400"}  # so that no message is broken
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=place, env=wide, check=False
    )
    assert result.returncode == 0, result.stderr
    said = result.stderr.splitlines()
    assert len(said) == len(EARLY)
    for line, expected in zip(said, EARLY.values(), strict=True):
        assert line.startswith(f"error: {expected}")


THREADS = """
import pickle, sys, threading
import pyro_bnn
assert "torch" not in sys.modules
sys.setswitchinterval(1e-5)
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
sys.setswitchinterval(5e-3)
assert not failures, failures
assert pickle.loads(bytes.fromhex(sys.argv[1])) == pyro_bnn.ScaleMixturePrior(0.5, 1.0, 0.1)
import pyro_bnn.results.plotting
assert pyro_bnn.results.plotting.save
from pyro_bnn import *
assert fit_svi is pyro_bnn.fit_svi
"""


@pytest.mark.nightly
def test_names_load_in_threads_and_by_pickles():
    pickled = pickle.dumps(pb.ScaleMixturePrior(0.5, 1.0, 0.1)).hex()
    subprocess.run([sys.executable, "-c", THREADS, pickled], check=True)


TERMINAL = """
import os, pty, sys, time
begin = time.perf_counter()
child, terminal = pty.fork()
if not child:
    os.execv(sys.executable, [sys.executable, "-c", "from pyro_bnn.app.cli import main; main()", "weights", "."])
first = os.read(terminal, 11)
seconds = time.perf_counter() - begin
rest = b""
try:
    while part := os.read(terminal, 999):
        rest += part
except OSError:
    pass
os.waitpid(child, 0)
print(seconds / (time.perf_counter() - begin), first, rest)
"""


@pytest.mark.nightly
def test_a_terminal_shows_a_word_before_the_library_is_loaded(tmp_path):
    (tmp_path / "manifest.json").touch()
    shown = subprocess.run([sys.executable, "-c", TERMINAL], capture_output=True, text=True, check=True, cwd=tmp_path)
    share, said = shown.stdout.split(maxsplit=1)
    assert said.startswith(r"b'loading ...' b'\r")
    assert r"\r            \r" in said  # the word is removed
    assert "error:" in said
    assert float(share) < 0.5  # of the time; on an idle machine it is shown after 0.2 s


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
    """The second command is the twin: outside of `loading`, Ctrl-C during an import ends in a traceback."""
    (tmp_path / "torch.py").write_text(SWALLOWS)
    (tmp_path / "manifest.json").touch()  # the folder looks like a run, so the library is loaded
    code = "from pyro_bnn.app.cli import main; main()" if late else "import torch"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(pb.__file__).parent.parent)])}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "weights", str(tmp_path)],
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


def test_ctrl_c_before_a_command_begins_ends_in_a_sentence(pyro_bnn, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(program_module.typer.core.TyperGroup, "parse_args", interrupted)
    assert pyro_bnn("train", "digits") == (130, "", "error: stopped.\n")


# --- help and completion ----------------------------------------------------------------------------------------------


def test_without_a_command_the_commands_are_listed(pyro_bnn):
    code, out, err = pyro_bnn()
    assert (code, err) == (0, "")
    assert all(name in out for name in NAMES)


def test_version(pyro_bnn):
    code, out, err = pyro_bnn("--version")
    assert (code, err) == (0, "")
    known = {"pyro-bnn": pb.__version__, "Pyro": pyro.__version__, "Python": platform.python_version()}
    assert {name: out.split(f"{name} ")[1].split()[0] for name in known} == known
    assert f"\ntorch {torch.__version__.partition('+')[0]}" in out  # the index says `+cpu`, the metadata may not


IN_WORDS = {
    "accuracy": "only with the tutorial recipes",
    "likelihood": "guessed from the target; a message says which",
    "net": "fully connected layers of --hidden units",
    "features": "all but the target",
    "drop_missing": "one more input says which values are missing",
    "method": "images svi; tables and arrays auto, or svi if you give a setting that only svi has, such as --epochs",
    "split_by": "a choice at random",
    "time_limit": "by the number of rows",
    "test_fraction": "0.2",
    "calibrate": "none",
}
"""Defaults that are no setting of the recipe of an image set."""

SETTINGS = [field.name for field in fields(RunConfig) if field.name not in ("dataset", "target", "header")]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_help_of_train_shows_the_settings_of_the_default_recipe(pyro_bnn, wide, setting):
    printed = pyro_bnn("train", "--help-all")[1]
    option = re.search(rf"│ --{setting.replace('_', '-')} .*?(?=│\n│ --|╰)", printed, re.DOTALL).group()
    expected = IN_WORDS.get(setting) or recipes.default(setting)
    assert f"[default: {expected}]" in " ".join(option.replace("│", " ").split())


def test_the_shown_settings_are_read_from_the_recipes(monkeypatch):
    assert recipes.default("epochs") == "images 50, digits 100; tables and arrays by the number of rows"
    assert recipes.default("prior").endswith("; tables and arrays chosen by held-out rows")
    assert recipes.default("lr") == "images 0.001, digits 0.01; tables and arrays 0.01"
    assert recipes.default("estimator") == "images weights; tables and arrays local"
    changed = replace(recipes.RECIPES["mnist", "default"], epochs=7, hold_out=(1, 2))
    monkeypatch.setitem(recipes.RECIPES, ("mnist", "default"), changed)
    assert recipes.default("epochs") == "images 50, mnist 7, digits 100; tables and arrays by the number of rows"
    assert recipes.default("hold_out") == "none, mnist 1,2, digits 7,8,9"


def test_the_help_of_train_shows_at_most_a_dozen_options_and_help_all_the_others(pyro_bnn, wide):
    brief, whole = (re.findall(r"│ (--[a-z-]+)", pyro_bnn("train", option)[1]) for option in ("--help", "--help-all"))
    names = ("json" if name == "as_json" else name.replace("_", "-") for name in (*BRIEF, "help"))
    assert set(brief) == {f"--{name}" for name in names}
    assert {"--hidden", "--prior"} <= set(brief)
    assert len(brief) <= 12
    assert {f"--{name.replace('_', '-')}" for name in SETTINGS} | set(brief) <= set(whole)


def test_the_help_of_train_says_what_is_required(pyro_bnn, wide):
    printed = pyro_bnn("train", "--help")[1]
    assert "KL weight" not in printed  # this is for image sets; --help-all tells it
    assert "Folder to write to. Required, except with --resume." in printed
    assert "Required for a table." in printed
    places = [pyro_bnn("train", "--help-all")[1].index(f"│ {name} ") for name in ("--target", "--out", "--device")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", NAMES)
def test_each_help_has_examples(pyro_bnn, wide, name):
    printed = pyro_bnn(name, "-h")[1]
    shown = [line.strip() for line in printed.splitlines() if line.strip().startswith(f"pyro-bnn {name}")]
    assert shown == [line for line in EXAMPLES if line.split()[1] == name]
    assert shown


class ReachedError(Exception):
    """Raised in place of the work, after the command line was read."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_read(example, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for run in ("digits-run", "garments", "houses"):
        (tmp_path / run).mkdir()
        if not example.startswith("pyro-bnn train"):
            (tmp_path / run / "manifest.json").touch()
    for file in ("houses.csv", "new.csv", "data.npz"):
        (tmp_path / file).write_text("id,rooms,price\n")  # the target's name is looked for at once

    def reached():
        raise ReachedError

    for module in (compare, demo, evaluate, predict, prune, report, train, weights):
        monkeypatch.setattr(module, "loading", reached)
    name, *arguments = shlex.split(example)
    assert name == "pyro-bnn"
    assert isinstance(CliRunner().invoke(program, arguments).exception, ReachedError)
    result = CliRunner().invoke(program, [*arguments, "--no-such-option"])  # the must-fail twin
    assert not isinstance(result.exception, ReachedError)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_shown(shell):
    """Typer asks which shell is running. There is none in a test, so the variable gives a name."""
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
        ("train digits --schedule w", ["warm-cosine"]),
        ("train digits --optimizer ", ["adam", "sgd", "natural"]),
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
def test_values_are_completed(pyro_bnn, monkeypatch, words, expected):
    monkeypatch.setenv("_PYRO_BNN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pyro-bnn {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"{words}|".split())))
    code, out, _ = pyro_bnn()
    assert code == 0
    assert out.split() == expected


def test_a_wrong_command_line_is_answered_with_the_right_one(pyro_bnn):
    for words, said in (
        (("train", "a.csv", "--taget", "y"), "No such option: --taget; did you mean --target?"),
        (("evaluate", "run", "--force"), "No such option: --force."),
        (("train", "--seprator"), "No such option: --seprator; the separator of a table is recognised: leave it out."),
        (("evalute", "run"), "No such command: evalute; did you mean evaluate?"),
        (("xyz", "run"), "No such command: xyz."),
        (("predict", "run"), "Missing argument 'ROWS'; write pyro-bnn predict [OPTIONS] RUN ROWS."),
        (("report",), "Missing argument 'RUN'; write pyro-bnn report [OPTIONS] RUN."),
    ):
        code, _, err = pyro_bnn(*words)
        assert (code, err.partition(" Try --help")[0]) == (2, f"error: {said}")


def test_the_help_shows_no_type_beside_a_flag(wide):
    for words in (["--help"], *([name, "--help-all" if name == "train" else "--help"] for name in NAMES)):
        shown = CliRunner().invoke(program, words).output
        assert "bool" not in shown.lower()
        assert "--help" in shown
        narrow = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(program, words).output
        assert "…" not in narrow  # no default is cut
