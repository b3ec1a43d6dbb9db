"""The benchmark of methods, on a few images of 28 x 28 pixels written here."""

import json
import re

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from benchmarks import _dots, _methods, _methods_list, _methods_scores, _methods_tables, methods

from .test_damaged_files import NAMES, idx

NUM_ASIDE, NUM_TRAIN, NUM_TEST = 20, 400, 30
SEARCHED = ("deterministic", "natural")
"""Methods whose settings compete, to save time."""


def write_images(root, name):
    """Images of two classes, dark in the upper or lower half; the images in place of MNIST are noise."""
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for images, labels, count in ((*NAMES[:2], NUM_TRAIN + NUM_ASIDE), (*NAMES[2:], NUM_TEST)):
        x = generator.integers(0, 200, (count, 28, 28), np.uint8)
        y = (np.arange(count) % 2).astype(np.uint8)
        if name == "FashionMNIST":
            x[y == 0, :14] //= 8
            x[y == 1, 14:] //= 8
        (raw / images).write_bytes(idx(x))
        (raw / labels).write_bytes(idx(y))


@pytest.fixture
def benchmark(monkeypatch, capsys, tmp_path):
    """Runs `methods` on these images; returns what it prints."""
    for name in ("FashionMNIST", "MNIST"):
        write_images(tmp_path, name)
    monkeypatch.setattr(_methods_scores, "NUM_ASIDE", NUM_ASIDE)

    def run(*arguments):
        torch.set_default_dtype(torch.float32)
        options = ("--data", tmp_path, "--out", tmp_path / "out", "--epochs", 2, "--draws", 4, "--units", 20)
        try:
            methods.main([str(argument) for argument in (*options, *arguments)])
        finally:
            torch.set_default_dtype(torch.float64)
        return capsys.readouterr().out

    run.out = tmp_path / "out"
    return run


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.daily("lenet")
@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_every_method_is_searched_trained_and_measured_once(benchmark, monkeypatch, network):
    """The settings are chosen on images that were set aside, and a second run does nothing."""
    names = list(methods.BY_NAME) if network == "mlp" else ["deterministic", "mc-dropout"]
    fitted, grids = [], {method: method.grid for method in _methods_list.METHODS}
    for method in _methods_list.METHODS:

        def fit(self, problem, points, original=method.fit):
            fitted.append((self.name, len(problem.x)))
            return original(self, problem, points)

        def grid(network, point, original=grids[method], count=2 if method.name in SEARCHED else 1):
            return original(network, point)[:count]

        if "fit" in vars(method):  # an inherited one is counted already
            monkeypatch.setattr(method, "fit", fit)
        monkeypatch.setattr(method, "grid", grid)
    printed = benchmark("--network", network, "--seeds", 0, "--methods", *names)
    searched, found = (rows(benchmark.out / file) for file in ("search.jsonl", "results.jsonl"))
    assert [row["method"] for row in found] == names
    assert {row["num_train"] for row in searched} == {NUM_TRAIN}
    assert {row["num_train"] for row in found} == {NUM_TRAIN + NUM_ASIDE}
    for row in found:
        tried = [other for other in searched if other["method"] == row["method"]]
        best = min(tried, key=lambda other: other["scores"]["nll"]) if tried else row
        assert row["setting"] == best["setting"]
        assert all(len(kind) == 5 for kind in row["scores"]["corrupted"].values())
        assert ("auroc_mutual_information" in row["scores"]) == (row["method"] != "deterministic")
        assert row["train_seconds"] > 0
    assert len(fitted) == len(searched) + len(found)
    again = benchmark("--network", network, "--seeds", 0, "--methods", *names)
    assert len(fitted) == len(searched) + len(found)
    assert again.strip() == (benchmark.out / "tables.md").read_text().strip()
    assert printed.endswith(again.lstrip("\n"))
    assert (benchmark.out / "cost.png").stat().st_size > 10_000


def test_a_given_setting_of_one_network_and_of_ensembles_is_not_searched(benchmark):
    benchmark("--seeds", 0, "--point", 0.2, 3e-3, "--methods", "deterministic", "ensemble-3")
    assert not (benchmark.out / "search.jsonl").exists()
    assert [row["setting"] for row in rows(benchmark.out / "results.jsonl")] == 2 * [{"prior_scale": 0.2, "lr": 3e-3}]


@pytest.mark.nightly
def test_an_interrupted_run_goes_on_and_networks_are_shared(benchmark, monkeypatch):
    """The ensemble's first network is the deterministic one, and none of them is trained twice."""
    for method in (_methods_list.Deterministic, _methods_list.SmallEnsemble):
        monkeypatch.setattr(method, "grid", lambda network, point, method=method: [method(0.3)])
    trained, original = [], _methods.fit_point

    def fit_point(problem, setting, seed, **options):
        if len(trained) == 3 and not is_resumed:
            raise KeyboardInterrupt
        trained.append(seed)
        return original(problem, setting, seed, **options)

    monkeypatch.setattr(_methods, "fit_point", fit_point)
    is_resumed = False
    arguments = ("--seeds", 1, "--methods", "deterministic", "ensemble")
    with pytest.raises(KeyboardInterrupt):
        benchmark(*arguments)
    assert [row["method"] for row in rows(benchmark.out / "results.jsonl")] == ["deterministic"]
    is_resumed = True
    benchmark(*arguments)
    assert trained == [1000, 1001, 1002, 1003, 1004]
    point, ensemble = rows(benchmark.out / "results.jsonl")
    notes = sorted(benchmark.out.glob("mlp-point-*.json"), key=lambda path: path.stat().st_mtime)
    seconds = [json.loads(note.read_text())["cpu_seconds"] for note in notes]
    assert point["train_seconds"] == seconds[0]
    assert ensemble["train_seconds"] == pytest.approx(sum(seconds))
    assert ensemble["scores"]["num_draws"] == 5


def row(method, seed, accuracy, seconds):
    scores = {"accuracy": accuracy, "nll": 0.5, "ece": 0.1, "brier": 0.2, "num_draws": 1, "predict_seconds": 2.0}
    scores["corrupted"] = {
        kind: [{"accuracy": accuracy - s / 10 - extra, "nll": 1.0, "ece": 0.2} for s in range(1, 6)]
        for kind, extra in (("noise", 0.0), ("blur", 0.2))
    }
    return {"method": method, "seed": seed, "setting": {}, "train_seconds": seconds, "scores": scores}


def test_tables_have_means_over_seeds_with_standard_errors_and_costs_beside_the_same_seed():
    some = [row("deterministic", 0, 0.8, 2.0), row("deterministic", 1, 0.9, 4.0), row("natural", 1, 0.7, 8.0)]
    text = _methods_tables.report(some, [])
    assert "| plain network (MAP) | 0, 1 | 85.00 ± 5.00 | 0.5000 ± 0.0000 |" in text
    assert re.search(r"\| natural gradients \| 1 \| 70.00 \| .* \| 2.00 \| 2.0 \| 1 \|", text)
    assert "| natural gradients | 50.00 | 40.00 | 30.00 | 20.00 | 10.00 |" in text


def test_a_network_of_another_budget_is_not_taken(benchmark, monkeypatch):
    monkeypatch.setattr(_methods_list.Deterministic, "grid", lambda *_: [_methods_list.Deterministic(0.3)])
    benchmark("--seeds", 0, "--methods", "deterministic")
    with pytest.raises(ValueError, match="was made with other settings; choose another --out, or delete it"):
        benchmark("--seeds", 0, "--methods", "deterministic", "--epochs", 1)


def test_methods_of_a_picture_are_in_the_order_of_the_first_number(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(_dots, "save_small", lambda ax, path, table: drawn.append(ax.figure))
    some = [row("natural", 0, 0.7, 8.0), row("deterministic", 0, 0.8, 2.0)]
    some[0]["scores"]["nll"] = 0.4
    _methods_tables.picture(some, "a network on some data", tmp_path / "cost.png")
    (figure,) = drawn
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["natural gradients", "plain network (MAP)"]
    assert figure.legends[0].get_title().get_text() == "a network on some data; smaller is better"
    assert [ax.lines[-1].get_xdata()[0] for ax in figure.axes] == pytest.approx([0.5, 20.0, 1.0])  # the dashed lines
    for ax in figure.axes:
        method, reference, dashed = (line.get_color() for line in ax.lines)
        assert method != reference == dashed


def test_bars_of_a_picture_are_whole(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(_dots, "save_small", lambda ax, path, table: drawn.append(ax))
    points = {"SWAG": [(1.0, 0.5)], "SGHMC": [(2.0, 3.0)], "plain network (MAP)": [(3.0, None)]}
    _dots.draw(points, [_dots.Panel("NLL")], tmp_path / "cost.png", title="three methods", reference="SWAG")
    low, high = drawn[0].get_xlim()
    assert low < -1.0
    assert high > 5.0
    assert [text.get_text() for text in drawn[0].figure.legends[0].get_texts()] == [_dots.ONE, _dots.PLAIN]
    (band,) = drawn[0].patches  # the reference and its error
    assert (band.get_x(), band.get_width()) == (0.5, 1.0)


def test_methods_of_several_networks_have_another_mark(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(_dots, "save_small", lambda ax, path, table: drawn.append(ax))
    points = {"ensemble of five": [(1.0, 0.5)], "SWAG": [(2.0, 0.5)]}
    several = _methods_tables.several(points)
    _dots.draw(points, [_dots.Panel("NLL")], tmp_path / "cost.png", title="two methods", several=several)
    assert [line.get_marker() for line in drawn[0].lines] == ["D", "o"]
    assert [text.get_text() for text in drawn[0].figure.legends[0].get_texts()] == [_dots.ONE, _dots.SEVERAL]


def test_about_half_of_the_images_of_a_pass_are_mirrored_anew():
    x = torch.rand(400, 28, 28)
    problem = _methods.Problem(_methods.NETWORKS["lenet-mirrored"], x, torch.arange(400), seed=0)
    loader = problem.batches(64, seed=0)["data"]
    passes = []
    for _ in range(2):
        images, rows = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert sorted(rows.tolist()) == list(range(400))
        is_mirrored = (images == x[rows].flip(-1)).flatten(1).all(1)
        assert torch.equal(images[~is_mirrored], x[rows][~is_mirrored])
        assert 150 <= int(is_mirrored.sum()) <= 250  # five standard errors
        passes.append(is_mirrored[rows.argsort()])
    assert not torch.equal(*passes)


def test_mirrored_images_are_predicted_in_both_views():
    """Averaged within each draw, so that a network which is sure of each view is unsure of both, not of its weights."""
    x, net = torch.rand(30, 28, 28), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 2))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=30)
    fit = _methods.Fit(model, pb.GuidePosterior(pb.MeanFieldGuide(model)), 4, 0.0)
    y = torch.arange(30) % 2
    scores = {}
    for is_mirrored in (False, True):
        pictures = _methods_scores.Pictures(x, y, x, y, torch.rand(30, 28, 28), 10, is_mirrored)
        scores[is_mirrored] = _methods_scores.evaluate(fit, pictures, {"seed": 0})
    draws = [
        pb.predict(model, fit.posterior, v, num_samples=4, keep_draws=True, seed=0).logits for v in (x, x.flip(-1))
    ]
    probs = torch.stack(draws).exp().mean((0, 1))
    assert scores[True]["nll"] == pytest.approx(float(-probs.log()[torch.arange(30), y].mean()))
    assert scores[True]["one_view"]["nll"] == pytest.approx(scores[False]["nll"])
    assert scores[True]["nll"] < scores[False]["nll"]
    table = _methods_tables.scores([{**row("natural", 0, 0.8, 2.0), "scores": {**scores[True], "num_draws": 4}}])
    assert table.splitlines()[0].endswith("| accuracy, %, one view | NLL, one view | draws |")
