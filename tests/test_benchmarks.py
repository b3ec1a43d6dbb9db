"""The benchmarks run, print what they promise, and compare methods under the same conditions."""

import importlib.util
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy.stats import norm
from torch import nn

import benchmarks.__main__
from benchmarks import _blundell, _measure, _peers, _rows, _serving, mnist_blundell, modes, nuts, serving
from benchmarks._steps import FitSVI, HandWritten, Setting
from pyro_bnn.app.datasets import load_data
from pyro_bnn.app.recipes import RECIPES
from tests.tolerances import IDENTITY

SMALL = Setting((5, 4, 3), batch_size=6, num_steps=2, num_data=20)
FULL_SIZE = Setting(batch_size=2, num_steps=1)
MODULES = {
    "bayesian-torch": "bayesian_torch",
    "blitz-bayesian-pytorch": "blitz",
    "posteriors": "posteriors",
    "pyro-ppl": "pyro",
    "torchbnn": "torchbnn",
}


def peer_or_skip(name):
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"{name} is not installed: pip install -e '.[bench]'")
    return _peers.PEERS[name]


@pytest.fixture
def program(monkeypatch, capsys):
    """Runs a benchmark's `main`, in the program's own type of numbers; returns what it prints."""

    def run(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
        monkeypatch.setenv("XLA_FLAGS", "")
        torch.set_default_dtype(torch.float32)
        try:
            main()
        finally:
            torch.set_default_dtype(torch.float64)
        return capsys.readouterr().out

    return run


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("texts", [("Trace_ELBO", "prediction,"), ("SVI",)])
def test_the_quick_run_prints_and_writes_every_row_it_is_asked_for(program, tmp_path, texts):
    options = ["--quick", "--threads", 1, "--device", "cpu", "--json", tmp_path / "rows.json"]
    printed = program(benchmarks.__main__.main, *options, *(part for text in texts for part in ("--only", text)))
    rows = json.loads((tmp_path / "rows.json").read_text())
    names = [row.name for row in _rows.all_rows(_rows.Options(quick=True))]
    assert [row["name"] for row in rows] == [name for name in names if any(text in name for text in texts)]
    for row in rows:
        assert f"| {row['name']} |" in printed
        if "cpu" in row and not row["cpu"]["reason"].startswith("not run: ModuleNotFoundError"):
            assert not row["cpu"]["reason"]
            assert all(math.isfinite(value) for value in row["cpu"]["values"])


def test_a_row_that_cannot_be_measured_says_why_and_meets_nothing():
    def measure(device):
        return _peers.import_peer("a_peer_that_nobody_has")

    row = _measure.Row("peer / ours", measure, _measure.at_most(1))
    row.run("cpu")
    assert "ModuleNotFoundError: No module named 'a_peer_that_nobody_has'" in _measure.show([row])
    assert row.is_met("cpu") is None
    assert row.to_dict()["cpu"]["median"] is None


def test_a_row_shows_median_quartiles_goals_and_an_empty_cell_without_a_gpu():
    goals = {"goal": _measure.at_most(2), "gpu_goal": _measure.at_least(10)}
    row = _measure.Row("a / b", lambda device: _measure.Cell([1.0, 2.0, 3.0, 4.0, 5.0], detail="3 / 1 ms"), **goals)
    row.run("cpu")
    assert _measure.show([row]).splitlines()[-1] == "| a / b | 3 (2 to 4) | <= 2 | NO |  | >= 10 |  | 3 / 1 ms |"


def test_ratios_are_taken_within_rounds_and_the_first_is_left_out():
    class Fake:
        def __init__(self, *times):
            self.times = iter(times)

        def burst(self):
            return next(self.times)

    cell = _measure.alternate(Fake(99.0, 2.0, 30.0), Fake(1.0, 1.0, 10.0), rounds=2)
    assert cell.values == [2.0, 3.0]


def test_the_step_written_by_hand_computes_the_elbo_of_pyro():
    """The weights are the same, and the closed form is the KL of guide and prior."""
    hand = HandWritten(SMALL)
    with torch.no_grad():
        for rho in hand.rho:
            rho.uniform_(-3, 0)
    ours = FitSVI(SMALL)
    for name, loc, rho in zip(ours.model.site_names, hand.loc, hand.rho, strict=True):
        ours.guide.loc.get_parameter(name).data.copy_(loc)
        ours.guide.rho.get_parameter(name).data.copy_(rho)
    x, y = (part[:6] for part in SMALL.data)
    weights, kl = hand.draw()
    draw = dict(zip(ours.model.site_names, weights, strict=True))
    guide_trace = poutine.trace(poutine.condition(ours.guide, data=draw)).get_trace(x, y)
    model_trace = poutine.trace(poutine.condition(ours.model, data=draw)).get_trace(x, y)
    elbo = model_trace.log_prob_sum() - guide_trace.log_prob_sum()
    torch.testing.assert_close(hand.negative_elbo(weights, kl, x, y), -elbo, **IDENTITY)

    in_closed_form = HandWritten(SMALL, closed_form=True)
    in_closed_form.loc, in_closed_form.rho = hand.loc, hand.rho
    pairs = zip(ours.guide.locations().values(), ours.guide.scales().values(), strict=True)
    exact = sum(
        torch.distributions.kl_divergence(torch.distributions.Normal(*pair), torch.distributions.Normal(0.0, 1.0)).sum()
        for pair in pairs
    )
    torch.testing.assert_close(in_closed_form.draw()[1], exact, **IDENTITY)


@pytest.mark.parametrize("name", _peers.PEERS)
def test_a_peer_does_the_work_of_one_step(name):
    peer = peer_or_skip(name)
    assert _peers.check(peer, FULL_SIZE) == 478_410


@pytest.mark.parametrize("name", _peers.PEERS)
def test_a_peer_starts_where_we_start_and_minimises_the_same_loss(name):
    """One draw of the loss at the first step: the data term is nearly that of the network's own weights."""
    peer = peer_or_skip(name)(Setting((5, 4, 3), batch_size=400, num_steps=1, num_data=1e6))
    x, y = peer.setting.data
    locations, _ = peer.parameters()
    by_shape = {tuple(loc.shape): loc.detach().clone() for loc in locations}  # the shapes of (5, 4, 3) differ
    hidden = torch.relu(nn.functional.linear(x, by_shape[4, 5], by_shape[4,]))
    expected = 1e6 * nn.functional.cross_entropy(nn.functional.linear(hidden, by_shape[3, 4], by_shape[3,]), y)
    peer.burst()
    torch.testing.assert_close(torch.tensor(peer.losses), expected.detach()[None], rtol=0.05, atol=0)


def test_a_step_without_a_kl_over_all_weights_is_noticed():
    class Forgetful(HandWritten):
        def draw(self):
            weights, _ = super().draw()
            return weights, weights[0].square().sum() + self.rho[0].sum()

        def parameters(self):
            return self.loc, self.rho

    with pytest.raises(RuntimeError, match="the KL moved 0 elements of a tensor of 4"):
        _peers.check(Forgetful, SMALL)


def test_a_step_that_runs_the_network_twice_is_noticed():
    class Twice(HandWritten):
        def loss(self, x, y):
            return super().loss(x, y) + super().loss(x, y)

        def parameters(self):
            return self.loc, self.rho

    with pytest.raises(RuntimeError, match="expected one run"):
        _peers.check(Twice, SMALL)


def test_the_rows_are_named_apart_and_the_networks_have_their_size():
    names = [row.name for row in _rows.all_rows(_rows.Options())]
    assert len(set(names)) == len(names)
    assert sum(parameter.numel() for parameter in Setting().net().parameters()) == 478_410
    assert Setting((16, 32), is_conv=True).net()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.nightly
def test_the_benchmark_of_modes_scores_chains_on_a_table(program, tmp_path):
    x = np.linspace(-2, 2, 100)
    rows = np.stack([x, np.sin(2 * x)], 1)
    np.savetxt(tmp_path / "sine.csv", rows, delimiter=",", header="x,y", comments="")
    options = ["--seeds", 2, "--chains", 4, "--warmup", 400, "--samples", 100]
    printed = program(modes.main, tmp_path / "sine.csv", *options)
    rmse, nll, mixture, *_ = (float(cell) for cell in printed.splitlines()[0].strip("| ").split(" | ")[1:])
    normal = norm.logpdf(rows[:, 1], 0, rows[:, 1].std()).mean()
    assert 0 < rmse < rows[:, 1].std()  # short chains end in modes that rounding decides; all know more than the mean
    assert mixture < min(nll, -normal)
    assert "mean ± sd: rmse 0." in printed


@pytest.mark.slow
@pytest.mark.nightly
def test_the_benchmark_of_nuts_prints_and_writes_its_rows(program, tmp_path):
    options = ["--only", "fit_nuts, 4 chains", "--json", tmp_path / "rows.json"]
    printed = program(nuts.main, "--draws", 10, "--repeats", 2, *options)
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["sampler"] == "fit_nuts, 4 chains"
    assert row["repeats"] == 2
    assert row["us per leapfrog"] > 0
    assert row["z"] == 0  # beside itself
    assert "| fit_nuts, 4 chains |" in printed


@pytest.fixture
def blundell(monkeypatch, capsys, tmp_path):
    """Runs `mnist_blundell` on scikit-learn's digits, with 7, 8 and 9 as the unknown; returns what it prints."""
    loads = []

    def load(root, validation):
        loads.append(validation)
        return load_data(replace(RECIPES["digits", "default"], validation=validation), root=root)

    monkeypatch.setattr(_blundell, "load", load)

    def run(*arguments):
        torch.set_default_dtype(torch.float32)
        options = ("--out", tmp_path, "--units", 8, "--threads", 1, "--samples", 3)
        try:
            mnist_blundell.main([str(argument) for argument in (*options, *arguments)])
        finally:
            torch.set_default_dtype(torch.float64)
        return capsys.readouterr().out

    run.loads = loads
    return run


def test_blundells_networks_are_trained_measured_and_pruned(blundell, tmp_path):
    printed = blundell("--epochs", 1)
    for method, setting in mnist_blundell.SETTINGS.items():
        record = json.loads((tmp_path / f"{method}-8-seed0.json").read_text())
        assert f"| {method}, 2 x 8, seed 0 |" in printed
        assert all(math.isfinite(value) for value in [*record["scores"].values(), *record["training"].values()])
        assert record["task"]["setting"]["epochs"] == 1
        assert [row["fraction"] for row in record["pruned"]] == (
            list(_blundell.FRACTIONS) if setting.is_bayesian else []
        )
        if setting.is_bayesian:
            assert record["pruned"][0]["error"] == pytest.approx(record["scores"]["error"])
            assert record["pruned"][0]["mean_error"] == pytest.approx(record["scores"]["mean_error"])
    assert "| 98% |" in printed


def test_a_recipe_may_use_local_reparameterisation(blundell, tmp_path, monkeypatch):
    recipe = _blundell.Setting(prior="normal:1", kl_weight="warmup:2,0.1", is_closed=True, is_local=True)
    monkeypatch.setitem(mnist_blundell.SETTINGS, "recipe", recipe)
    blundell("--epochs", 20, "--methods", "recipe", "--units", 32)
    assert json.loads((tmp_path / "recipe-32-seed0.json").read_text())["scores"]["error"] < 0.25


def test_blundells_networks_that_are_done_are_not_done_again(blundell, tmp_path):
    first = blundell("--epochs", 1, "--methods", "sgd", "mixture")
    again = blundell("--epochs", 1, "--methods", "sgd", "mixture")
    assert "# mixture-8-seed0: done before" in again
    assert first.partition("On the test images")[2] == again.partition("On the test images")[2]
    assert len(blundell.loads) == 1
    scores = json.loads((tmp_path / "mixture-8-seed0.json").read_text())
    unmeasured = {name: scores[name] for name in ("task", "training", "machine")}  # as if interrupted
    (tmp_path / "mixture-8-seed0.json").write_text(json.dumps(unmeasured))
    assert "epoch" not in blundell("--epochs", 1, "--methods", "mixture").partition("On the test images")[0]
    assert json.loads((tmp_path / "mixture-8-seed0.json").read_text()) == scores


def test_blundells_results_of_other_settings_are_not_mixed(blundell, capsys):
    blundell("--epochs", 1, "--methods", "sgd")
    with pytest.raises(SystemExit):
        blundell("--epochs", 2, "--methods", "sgd")
    assert "was made with other settings; choose another --out, or delete it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        blundell("--epochs", 1, "--methods", "sgd", "--validation", 100)


def test_a_recipe_can_be_chosen_without_the_test_images(blundell):
    assert "On 100 images set aside" in blundell("--epochs", 1, "--methods", "recipe", "--validation", 100)
    assert blundell.loads == [100]


@pytest.mark.nightly
@pytest.mark.slow
def test_validation_takes_nothing_from_the_test_sets(real_data):
    images, unknown = _blundell.load(real_data, 1000)
    assert (len(images.x_train), len(images.x_test), len(unknown)) == (59_000, 1000, 1000)
    everything, foreign = _blundell.load(real_data, 0)
    assert len(everything.x_test) == len(foreign) == 10_000
    assert not torch.equal(foreign[:1000], unknown)


@pytest.mark.parametrize("method", ["sgd", "dropout"])
def test_blundells_baselines_learn_digits(blundell, tmp_path, method):
    blundell("--epochs", 20, "--units", 32, "--methods", method)
    assert json.loads((tmp_path / f"{method}-32-seed0.json").read_text())["scores"]["mean_error"] < 0.25


@pytest.mark.nightly
def test_a_guide_is_built_with_little_more_memory_than_it_holds():
    """In a process of its own; a guide built from a list of all initial values, as a twin, takes twice as much."""
    found = _measure.in_new_process("_construction:build_also_from_a_list", threads=1)
    held = found["guide"]["held"]
    assert 0.9 * held < found["guide"]["bytes"] < 1.2 * held
    assert found["model"]["bytes"] < 1.3 * found["model"]["held"]
    assert found["list"]["bytes"] > 1.8 * held


def test_a_setting_can_be_changed_from_the_command_line(blundell, tmp_path, capsys):
    blundell("--epochs", 1, "--methods", "natural", "--change", "lr=0.02", "kl_weight=0.1", "batch_size=50")
    setting = json.loads((tmp_path / "natural-8-seed0.json").read_text())["task"]["setting"]
    assert (setting["lr"], setting["kl_weight"], setting["batch_size"]) == (0.02, "0.1", 50)
    for wrong in ("rate=0.1", "lr=high"):
        with pytest.raises(SystemExit):
            blundell("--epochs", 1, "--methods", "natural", "--change", wrong)
        assert wrong.partition("=")[2] in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.slow
def test_ways_to_serve_are_timed_and_drawn(program, monkeypatch, tmp_path):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(_serving, "BURST_SECONDS", 0.001)
    quick = replace(_serving.CASES["10-50-50-1"], is_compiled=False)
    monkeypatch.setitem(_serving.CASES, "10-50-50-1", quick)
    files = {"--json": tmp_path / "times.json", "--picture": tmp_path / "picture.png"}
    options = [item for pair in files.items() for item in pair]
    text = program(serving.main, "--networks", "10-50-50-1", "--draws", 3, "--rounds", 2, *options)
    rows = [line for line in text.splitlines() if line.startswith("| 10-50-50-1")]
    assert [row.split(" | ")[1] for row in rows] == [
        *("plain network", "predict", "predict, stored draws", "PredictiveModule", "torch.export", "ONNX"),
    ]
    assert files["--picture"].exists()
    assert program(serving.main, *options, "--draw-only").splitlines() == text.splitlines()[-len(rows) - 2 :]


def test_a_picture_of_latencies_names_networks_that_were_not_compiled(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(serving, "save_small", lambda ax, path, lines: drawn.append(ax.figure))
    small, large = {"plain network": 1.0, "torch.compile": 9.0, "ONNX": 4.0}, {"plain network": 1.0, "ONNX": 4.0}
    pairs = {
        (name, way): [ms, 10 * ms] for name, some in (("small", small), ("LeNet-5", large)) for way, ms in some.items()
    }
    serving.picture(pairs, tmp_path / "picture.png", [])
    left, right = drawn[0].axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        *("plain network", "ONNX", "torch.compile\n(not LeNet-5)"),
    ]
    assert left.get_xlim() == right.get_xlim()
