"""Output of commands: JSON for programs, pictures in several formats, and colours for people."""

# ruff: noqa: F811  # tests take the imported fixture as a parameter

import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios

import pytest

import pyro_bnn as pb
from pyro_bnn.app import demo
from pyro_bnn.app.cli.output import Output, for_terminal, has_colours
from pyro_bnn.app.reports.scores import shown_score

from .test_cli import pyro_bnn  # noqa: F401  # a fixture

STARTS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
SHORT = {
    "train": ["--epochs", 2, "--hidden", 8],
    "evaluate": ["--num-samples", 4],
    "prune": ["--num-samples", 2, "--fractions", "0,.5"],
    "compare": ["--num-samples", 40, "--num-steps", 2],
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
        "num_calibration",
        "num_train",
        "pictures",
        "seconds",
        "status",
    },
    "evaluate": {"folder", "headline", "num_test", "num_unknown", "ood", "pictures", "rows", "usability"},
    "prune": {"folder", "gains", "pictures", "pruned", "report"},
    "weights": {"folder", "pictures", "sites"},
    "compare": {"folder", "num_samples", "pictures", "rows", "seed", "statuses", "verdict"},
    "demo": {"digits", "folder", "pictures", "regression", "seconds"},
}


def result(pyro_bnn, name, *arguments):
    """The JSON document of a command, and its text for people."""
    code, out, err = pyro_bnn(name, *arguments, *SHORT.get(name, ()), "--json")
    assert code == 0, err

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    document = json.loads(out, parse_constant=refuse)
    assert document.pop("command") == name
    assert document.pop("version") == pb.__version__
    assert document.keys() == KEYS[name]
    return document, err


def test_each_command_gives_its_results_as_json(pyro_bnn, tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    trained, words = result(pyro_bnn, "train", "digits", "--out", run, "--accuracy")
    assert "next: pyro-bnn evaluate" in words
    assert trained["config"] == json.loads((run / "config.json").read_text())
    assert trained["config"]["epochs"] == len(trained["accuracy"]["test"]) == trained["last_epoch"]["epoch"] + 1 == 2
    assert trained["status"]["ok"] is None  # too few steps to tell
    assert trained["pictures"] == ["accuracy.png"]
    assert trained["folder"] == str(run)

    evaluated, words = result(pyro_bnn, "evaluate", run)
    assert "mutual information" in words
    metrics = json.loads((run / "metrics.json").read_text())
    assert {key: evaluated[key] for key in metrics} == metrics

    pruned, _ = result(pyro_bnn, "prune", run, "--keep", "0.5", "--out", copy)
    assert pruned["pruned"]["folder"] == str(copy)
    assert {key: pruned[key]["rows"] for key in ("report", "gains")} == {
        key: [{**row} for row in value["rows"]]
        for key, value in json.loads((run / "pruning.json").read_text(), parse_constant=lambda _: None).items()
    }
    result(pyro_bnn, "prune", run, "--keep", "0", "--out", tmp_path / "empty")
    for folder, num_removed in ((run, 0), (copy, 1)):
        sites = result(pyro_bnn, "weights", folder)[0]["sites"]
        assert [site["site"] for site in sites] == ["net.1.weight", "net.1.bias", "net.3.weight", "net.3.bias"]
        assert min(sum(site["num_removed"] for site in sites), 1) == num_removed


@pytest.mark.nightly
def test_json_of_the_comparison(pyro_bnn, tmp_path, monkeypatch):
    """With two methods that take no time; `test_cli.py` runs them all."""
    methods = demo.RegressionStudy.methods
    monkeypatch.setattr(demo.RegressionStudy, "nuts", lambda self: methods(self)["laplace"]())
    monkeypatch.setattr(demo.RegressionStudy, "methods", lambda self: {"mean-field, LRT": methods(self)["laplace"]})
    compared, words = result(pyro_bnn, "compare", "--out", tmp_path / "c", "--format", "svg")
    assert "mean-field, LRT" in words
    assert compared["statuses"].keys() == {"nuts", "mean-field, LRT"}
    assert {row["region"] for row in compared["rows"]} == {"data", "gap", "outside"}
    assert compared["pictures"] == ["comparison.svg"]
    assert (tmp_path / "c" / "comparison.svg").read_bytes().startswith(STARTS["svg"])


@pytest.mark.nightly
@pytest.mark.slow
def test_json_of_the_demo(pyro_bnn, tmp_path):
    shown, words = result(pyro_bnn, "demo", "--out", tmp_path / "demo", "--format", "pdf")
    assert "Done in" in words
    assert shown["digits"]["rows"][-1]["accuracy"] > 0.97
    assert shown["pictures"] == ["loss.pdf", "ood.pdf", "regression.pdf", "reliability.pdf", "votes.pdf"]


def test_with_json_an_error_is_json_too(pyro_bnn, tmp_path):
    code, out, err = pyro_bnn("evaluate", tmp_path / "nowhere", "--json")
    document = json.loads(out)
    assert (code, document["command"]) == (2, "evaluate")
    assert "make one with `pyro-bnn train`" in document["error"]
    assert err == f"error: {document['error']}\n"


@pytest.mark.nightly
def test_pictures_come_in_the_format_that_is_asked_for(pyro_bnn, tmp_path):
    run = tmp_path / "run"
    options = ["--recipe", "tutorial", "--hold-out", "7,8,9", "--format", "pdf"]
    pyro_bnn("train", "digits", "--out", run, *options, *SHORT["train"])
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
            code, out, err = pyro_bnn(name, run, "--format", kind, *SHORT.get(name, ()))
            assert (code, err) == (0, "")
            for stem in stems:
                assert (run / f"{stem}.{kind}").read_bytes().startswith(STARTS[kind])
            if name != "evaluate":
                assert all(f"{stem}.{kind}" in out for stem in stems)
    assert {path.name for path in run.glob("*.svg")} == {"pruning.svg", "snr.svg"}  # the others would be out of date
    assert (run / "accuracy.pdf").exists()
    (run / "loss.svg").write_text("not ours")
    pyro_bnn("evaluate", run, *SHORT["evaluate"])
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
def test_an_unknown_format_is_told_before_anything_is_done(pyro_bnn, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = pyro_bnn(*arguments, "--format", "gif")
    assert (code, out, err) == (2, "", "error: --format must be one of 'png', 'pdf', 'svg', got 'gif'. Try --help.\n")
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


@pytest.mark.parametrize(
    ("stream", "columns", "num_lines"), [(Terminal, "20", 4), (io.StringIO, "20", 4), (io.StringIO, "", 1)]
)
def test_sentences_are_wrapped_between_words_on_a_terminal_and_to_columns(monkeypatch, stream, columns, num_lines):
    said = "Saved in runs/a-folder-with-a-long-name; next: pyro-bnn evaluate runs/b"
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    written = stream()
    monkeypatch.setattr(sys, "stdout", written)
    Output("train", as_json=False).say(said)
    lines = written.getvalue().splitlines()
    assert len(lines) == num_lines
    assert " ".join(lines) == said


def test_a_number_stays_beside_its_sign(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", written := Terminal())
    Output("train", as_json=False).say("The intervals hold 90 % of all rows, 3.25 ± 0.12")
    assert written.getvalue().splitlines() == ["The intervals hold", "90 % of all rows,", "3.25 ± 0.12"]


def test_the_lines_of_a_verdict_begin_below_its_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", written := io.StringIO())
    Output("report", as_json=False).say("good:     The intervals hold", indent=10)
    assert written.getvalue().splitlines() == ["good:     The", " " * 10 + "intervals", " " * 10 + "hold"]


WIDE = """\
rows of two words         NLL   share in 90 %
one draw                5.548               -
mean of draws          -12.33          91.2 %"""


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("columns", [50, 43, 35, 31, 25])
def test_a_table_fits_a_narrow_terminal(monkeypatch, columns, stream):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    written = stream()
    monkeypatch.setattr(sys, "stdout", written)
    Output("evaluate", as_json=False).table(WIDE)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    for cell in ("one draw", "5.548", "-12.33", "91.2 %"):
        assert any(cell in line for line in lines)


def test_a_list_of_cells_begins_with_what_the_table_is_about(monkeypatch):
    monkeypatch.setenv("COLUMNS", "25")
    monkeypatch.setattr(sys, "stdout", written := io.StringIO())
    Output("evaluate", as_json=False).table(WIDE)
    assert written.getvalue().splitlines()[:2] == ["rows of two words", "one draw:"]


def test_a_score_is_rounded_alike_in_all_commands():
    assert [shown_score("rmse", value) for value in (2.293, 12.91, None)] == ["2.293", "12.91", "-"]
    assert shown_score("nll", 0.07142) == "0.0714"
    assert shown_score("coverage_90", 0.924) == "92.4 %"


def test_many_rows_fit_on_one_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = "".join(f"{row},{'no' if row % 2 else 'yes'},{row / 1000},1e-9\n" for row in range(1000))
    shown = for_terminal(f"row,class,p(yes),entropy\n{lines}").splitlines()
    assert len(shown) <= 43
    assert shown[0].split() == ["row", "class", "p(yes)", "entropy"]
    assert shown[2].split() == ["1", "no", "0.001", "0.000"]
    assert shown[-1] == "960 more rows; --out FILE writes all."


def test_notes_have_the_width_of_their_own_terminal_though_the_output_is_piped(monkeypatch):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 31, 0, 0))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with os.fdopen(end, "w") as written:
        monkeypatch.setattr(sys, "stderr", written)
        Output("predict", as_json=False, only_notes=True).say("The run was trained on 85 of these rows.")
        written.flush()
        said = os.read(terminal, 999).decode()
    os.close(terminal)
    assert (said, sys.stdout.getvalue()) == ("The run was trained on 85 of\r\nthese rows.\r\n", "")
