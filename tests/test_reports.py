"""`pyro-bnn prune` and `pyro-bnn weights`, on a small run."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pyro_bnn.app import recipes
from pyro_bnn.app.datasets import load_data
from pyro_bnn.app.reports.weights import LEGEND, SiteSummary, least_certain

from .folders import train_run
from .test_cli import PNG, pyro_bnn  # noqa: F401  # a fixture


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on scikit-learn's digits, made once."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = recipes.RECIPES["digits", "default"]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        images, _ = load_data(replace(config, epochs=30), root=None)
        train_run(replace(config, epochs=30), images, folder)
    finally:
        torch.set_default_dtype(before)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy, to write into."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.nightly
def test_prune_prints_and_writes_table_and_pictures(pyro_bnn, run):  # noqa: F811
    code, out, err = pyro_bnn("prune", run, "--fractions", ".5,.9,1", "--num-samples", 5)
    assert (code, err) == (0, "")
    assert "7,207 weights, 307 rows, means of 5 draws:" in out
    assert "smaller" in out
    with (run / "pruning.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["fraction"]) for row in rows] == [0.5, 0.9, 1.0]
    assert [int(row["num_weights"]) for row in rows] == [3603, 721, 0]
    assert float(rows[0]["accuracy"]) > 0.9 > 0.5 > float(rows[2]["accuracy"])
    gains = json.loads((run / "pruning.json").read_text())["gains"]
    assert gains["file_bytes"] > 2 * gains["rows"][0]["file_bytes"] > 2 * gains["rows"][1]["file_bytes"]
    assert all(row["sparse_seconds"] > 0 for row in gains["rows"])
    for picture in ("pruning.png", "snr.png"):
        assert (run / picture).read_bytes().startswith(PNG)


@pytest.mark.nightly
def test_a_pruned_run_is_a_run(pyro_bnn, run, tmp_path):  # noqa: F811
    small = tmp_path / "small"
    code, out, err = pyro_bnn("prune", run, "--fractions", "0,.75", "--num-samples", 20, "--keep", 0.25, "--out", small)
    assert (code, err) == (0, "")
    assert "5,405 of 7,207 weights are removed (75 %)" in out
    assert 0 < out.index("of the weights") < out.index("7,207 weights, 307 rows")  # the conclusion comes first
    expected = json.loads((run / "pruning.json").read_text())["report"]["rows"][1]
    code, out, err = pyro_bnn("evaluate", small, "--num-samples", 20)
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads((small / "metrics.json").read_text())["rows"]}
    assert rows["mean weights"]["accuracy"] == expected["mean_accuracy"]
    assert rows["mean of 20 draws"]["nll"] == pytest.approx(expected["nll"], rel=1e-4)
    assert (small / "posterior.safetensors").stat().st_size < (run / "posterior.safetensors").stat().st_size / 4
    code, out, _ = pyro_bnn("weights", small)
    assert code == 0
    assert sum(int(line.split()[2].replace(",", "")) for line in out.splitlines() if line.startswith("net.")) == 5405


@pytest.mark.parametrize(
    ("medians", "said"),
    [
        (
            (3.0, -2.04),
            (
                "Least certain is b: its median weight has -2.0 dB, so the sd of that weight is larger than its mean. "
                "Try how many weights can be removed: pyro-bnn prune some/run"
            ),
        ),
        ((1.0, 4.0), "Least certain is a: its median weight has 1.0 dB, so the sd of that weight is at most as large"),
        ((math.nan, 4.0), "Least certain is b: "),
        ((math.nan, math.nan), "All weights were removed."),
    ],
)
def test_the_least_certain_tensor_is_said(medians, said):
    rows = [
        SiteSummary(name, 9, 9 * math.isnan(middle), 1.0, 1.0, (middle - 1, middle, middle + 1))
        for name, middle in zip("ab", medians, strict=True)
    ]
    assert least_certain(rows, Path("some/run")).startswith(said)


def test_weights_shows_one_weight_and_all_layers(pyro_bnn, run):  # noqa: F811
    code, out, err = pyro_bnn("weights", run, "--site", "net.3.weight", "--index", "2,7")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines[1:5]] == ["net.1.weight", "net.1.bias", "net.3.weight", "net.3.bias"]
    assert lines[1][1] == "6,400"
    assert LEGEND in out
    assert "\nLeast certain is net." in out
    for picture in ("weight.png", "weights.png"):
        assert (run / picture).read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prune", "--fractions", "10,50"), "--fractions must be numbers from 0 to 1, got '10,50'"),
        (("prune", "--fractions", "a"), "must be numbers separated by commas"),
        (("prune", "--keep", 0.5), "--keep and --out go together"),
        (("weights", "--site", "net.9.weight"), "there is no site 'net.9.weight'; choose from net.1.weight"),
        (("weights", "--index", "3"), "must name one element of `net.1.weight`, of shape (100, 64), got (3,)"),
        (("weights", "--index", "3,64"), "must name one element of `net.1.weight`"),
    ],
)
def test_mistakes_are_named(pyro_bnn, run, arguments, message):  # noqa: F811
    command, *options = arguments
    code, out, err = pyro_bnn(command, run, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_the_run_itself_is_not_overwritten_by_its_pruned_copy(pyro_bnn, run):  # noqa: F811
    (run.parent / "config.json").write_text("{}")  # the folder above passes for a run
    for out in (run, run.parent):
        code, _, err = pyro_bnn("prune", run, "--keep", 0.5, "--out", out, "--force")
        assert code == 2
        assert "is the run itself, or contains it" in err
        assert (run / "posterior.safetensors").exists()


def test_nothing_is_written_when_a_share_is_wrong(pyro_bnn, run, tmp_path):  # noqa: F811
    code, _, err = pyro_bnn("prune", run, "--keep", 0.5, "--out", tmp_path / "new", "--fractions", "2")
    assert code == 2
    assert "--fractions must be numbers from 0 to 1, got '2'" in err
    assert not (tmp_path / "new").exists()


def test_an_empty_network_has_no_weight_to_show(pyro_bnn, run, tmp_path):  # noqa: F811
    empty = tmp_path / "empty"
    options = "--keep", 0, "--out", empty, "--fractions", "1", "--num-samples", 1, "--per", "layer"
    assert pyro_bnn("prune", run, *options)[0] == 0
    code, _, err = pyro_bnn("weights", empty)
    assert code == 2
    assert "all weights were removed" in err
