"""`pyro-bnn train --resume`: a stopped run resumes bit for bit."""

import os
import signal
from contextlib import contextmanager

import pytest
import torch

from pyro_bnn.app import runs
from pyro_bnn.app.datasets import load_data
from pyro_bnn.app.folders import Folder

from .own_data import houses, write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

OPTIONS = ("train", "digits", "--epochs", 6, "--hidden", 8, "--accuracy")


@contextmanager
def stopping(monkeypatch):
    """A context in which SIGTERM stops a run after three epochs."""

    def note(folder, progress):
        told(folder, progress)
        if progress.startswith("3 of"):
            os.kill(os.getpid(), signal.SIGTERM)

    told = Folder.note
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "note", note)
        yield


def learned(run):
    """The ELBO of each step of a run, and the parameters of its guide."""
    torch.set_default_dtype(torch.float32)  # that of the program
    images = load_data(runs.load_config(run), root=None)[0]
    _, posterior = runs.load_run(run, images)
    torch.set_default_dtype(torch.float64)
    return posterior.history.elbo, posterior.guide.state_dict()


@pytest.fixture(params=["default", "fast"])
def options(request):
    """A run's command line, with each kind of optimizer."""
    return (*OPTIONS, "--recipe", request.param)


@pytest.fixture
def stopped(pyro_bnn, tmp_path, monkeypatch, options):  # noqa: F811
    """A run that SIGTERM has stopped after three of six epochs."""
    with stopping(monkeypatch):
        code, out, err = pyro_bnn(*options, "--out", tmp_path / "stopped")
    assert (code, out) == (130, "")
    said = f"error: stopped; `pyro-bnn train --resume {tmp_path / 'stopped'}` continues it."
    assert err.strip() == f"{said} Until then, its files are in the hidden folder .stopped.part."
    return tmp_path / "stopped"


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(pyro_bnn, stopped, tmp_path, options):  # noqa: F811
    code, _, err = pyro_bnn("evaluate", stopped)
    assert (code, "is not finished: 3 of 6 epochs; `pyro-bnn train --resume" in err) == (2, True)
    code, out, err = pyro_bnn("train", "--resume", stopped)
    assert (code, err) == (0, "")
    assert " s, 6 of 6 epochs" in out
    assert pyro_bnn(*options, "--out", tmp_path / "whole")[0] == 0
    for name in ("config.json", "data.json", "accuracy.json", "accuracy.csv"):
        assert (stopped / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    resumed, whole = (learned(run) for run in (stopped, tmp_path / "whole"))
    assert resumed[0] == whole[0]
    assert all(map(torch.equal, resumed[1].values(), whole[1].values()))
    assert not (stopped / "checkpoint").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped", "whole"]


def test_an_edited_checkpoint_or_configuration_is_refused(pyro_bnn, stopped):  # noqa: F811
    part = stopped.parent / ".stopped.part"
    for name in ("checkpoint", "config.json"):
        good = (part / name).read_bytes()
        (part / name).write_bytes(good[:-9] + b"7" + good[-8:])
        code, _, err = pyro_bnn("train", "--resume", stopped)
        assert (code, f"{part / name} is damaged" in err) == (1, True)
        (part / name).write_bytes(good)
    assert pyro_bnn("train", "--resume", stopped)[0] == 0


@pytest.mark.parametrize(
    "option", [("digits",), ("--out", "r"), ("--epochs", 9), ("--force",), ("--recipe", "default")]
)
def test_a_run_goes_on_with_its_own_settings(pyro_bnn, tmp_path, option):  # noqa: F811
    code, _, err = pyro_bnn("train", *option, "--resume", tmp_path / "run")
    assert (code, "--resume takes the settings of the unfinished run" in err) == (2, True)


@pytest.mark.parametrize("end", ["as it was", "changed"])
def test_a_stopped_run_on_a_table_goes_on_with_its_own_rows(pyro_bnn, tmp_path, monkeypatch, end):  # noqa: F811
    table = write_table(tmp_path / "houses.csv", houses())
    options = ("train", table, "--target", "price", "--epochs", 6, "--hidden", 4)
    assert pyro_bnn(*options, "--out", tmp_path / "whole")[0] == 0
    with stopping(monkeypatch):
        assert pyro_bnn(*options, "--out", tmp_path / "run")[0] == 130
    if end == "changed":
        table.write_text(table.read_text().replace("Oslo", "Rome", 1))
        code, _, err = pyro_bnn("train", "--resume", tmp_path / "run")
        assert (code, "its rows have changed" in err) == (2, True)
        return
    moved = table.rename(tmp_path / "moved.csv")
    assert pyro_bnn("train", "--resume", tmp_path / "run", "--data", moved)[0] == 0
    torch.set_default_dtype(torch.float32)  # that of the program
    states = [runs.load_run(tmp_path / name)[1].guide.state_dict() for name in ("run", "whole")]
    torch.set_default_dtype(torch.float64)
    assert all(map(torch.equal, states[0].values(), states[1].values()))
