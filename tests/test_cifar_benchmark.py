"""The benchmark of ResNet-20, on a few tiny images packed here."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks import _residual, _residual_scores, cifar

from .test_image_files import encode, pack
from .tolerances import assert_identical

SIZE = 8


@pytest.fixture
def benchmark(monkeypatch, capsys, tmp_path):
    """Runs `cifar` on images whose class is their brightest colour; returns what it prints."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 90), ("test", 30)):
        labels = torch.arange(count) % 3
        x = torch.randint(0, 100, (count, 3, SIZE, SIZE), generator=generator)
        x[torch.arange(count), labels] += 150
        pack(tmp_path / f"{part}.npz", [encode(image.byte()) for image in x], labels.numpy())

    small = {name: replace(setting, batch_size=15) for name, setting in cifar.SETTINGS.items()}
    monkeypatch.setattr(cifar, "SETTINGS", small)

    def run(*arguments):
        torch.set_default_dtype(torch.float32)
        options = ("--data", tmp_path, "--out", tmp_path / "out", "--width", 2, "--samples", 3)
        try:
            cifar.main([str(argument) for argument in (*options, *arguments)])
        finally:
            torch.set_default_dtype(torch.float64)
        return capsys.readouterr().out

    run.out = tmp_path / "out"
    return run


def test_a_crop_is_a_part_of_the_framed_image_or_its_mirror_image():
    x = torch.randint(1, 256, (200, 2, 3, 5), dtype=torch.uint8)
    found = _residual.crops(x)
    framed = F.pad(x, (4, 4, 4, 4))
    counts = torch.zeros(9, 9, 2)
    for image, frame in zip(found, framed, strict=True):
        parts = {
            (i, j, flip): (frame.flip(-1) if flip else frame)[:, i : i + 3, j : j + 5]
            for i in range(9)
            for j in range(9)
            for flip in (0, 1)
        }
        places = [place for place, part in parts.items() if torch.equal(image, part)]
        assert places
        for place in places:
            counts[place] += 1 / len(places)
    assert (counts.sum((1, 2)) > 0).all()
    assert (counts.sum((0, 2)) > 0).all()
    assert 60 < float(counts[..., 1].sum()) < 140


METHODS = ("last-layer", "laplace", "map", "natural-refreshed", "natural", "swag")


@pytest.mark.nightly
def test_methods_are_trained_and_measured_side_by_side(benchmark):
    options = ("--epochs", 8, "--methods", *METHODS)
    printed = benchmark(*options)
    tables = printed.partition("Trained on")[2]
    rows = [line.partition(" |")[0] for line in tables.splitlines() if line.startswith("| ")]
    names = ["| network", *(f"| {name}" for name in METHODS)]
    kinds = ("fit", "mean weights", "mean over draws", "each draw", "fit, mean weights alone")
    norms = [f"| {name}: {kind}" for name in ("natural", "swag") for kind in kinds]
    assert rows == [*names, *names, "| statistics of batch normalisation", *norms]
    for method in METHODS:
        record = json.loads((benchmark.out / f"{method}-seed0.json").read_text())
        assert record["scores"]["accuracy"] > 0.6
        assert record["training"]["cpu_seconds"] > 0
        assert len(record["scores"]["corrupted"]["blur"]) == 3
        assert not (benchmark.out / f"{method}-seed0.fit").exists()
    assert (benchmark.out / "table.md").read_text() in printed
    again = benchmark(*options)
    assert "part" not in again.partition("Trained on")[0]
    assert again.partition("Trained on")[2] == tables


@pytest.mark.nightly
def test_an_ensemble_is_the_mean_of_its_points(benchmark):
    printed = benchmark("--epochs", 2, "--methods", "map", "--seeds", 0, 1, "--ensemble", "map")
    images = _residual.load(benchmark.out.parent, num_train=None, validation=0)
    torch.set_default_dtype(torch.float32)
    probs = []
    try:
        for seed in (0, 1):
            problem = _residual.build(cifar.SETTINGS["map"], images, _residual.network(images, 2, seed))
            point = cifar.pb.load_posterior(benchmark.out / f"map-seed{seed}.pt", problem.model)
            probs.append(cifar.pb.predict(problem.model, point, problem.inputs(images.x_test), num_samples=1).probs)
    finally:
        torch.set_default_dtype(torch.float64)
    assert any(row.startswith("| map, ensemble | 0, 1 | 2 |") for row in printed.splitlines())
    found = json.loads((benchmark.out / "map-ensemble-of-2.json").read_text())["scores"]
    expected = _residual_scores.quality(torch.stack(probs).mean(0), images.y_test)
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-4)
    assert found["nll"] != pytest.approx(_residual_scores.quality(probs[0], images.y_test)["nll"], rel=1e-3)


@pytest.mark.nightly
def test_a_last_layer_stands_on_the_network_that_was_trained(benchmark):
    """With almost no noise, the predictions are those of the point estimate, and the body does not change."""
    benchmark("--epochs", 2, "--methods", "map")
    images = _residual.load(benchmark.out.parent, num_train=None, validation=0)
    last, point = cifar.SETTINGS["last-layer"], cifar.SETTINGS["map"]
    torch.set_default_dtype(torch.float32)
    try:
        below = _residual.build(point, images, _residual.network(images, 2, 0))
        found = cifar.pb.load_posterior(benchmark.out / "map-seed0.pt", below.model)
        net = _residual.network(images, 2, 1)
        below.give_weights(found, net)
        head = _residual.build(last, images, net)
        assert head.model.site_names == ("net.weight", "net.bias")
        before = {name: value.clone() for name, value in head.body.state_dict().items()}
        for parameter in head.guide.rho.parameters():
            parameter.data.fill_(-30.0)
        scores = [
            _residual_scores.evaluate(posterior, setting, problem, images, num_samples=2, seed=0)
            for posterior, setting, problem in (
                (found, point, below),
                (cifar.pb.GuidePosterior(head.guide), last, head),
            )
        ]
        checkpoint, head = benchmark.out / "fit", _residual.build(last, images, net)
        _residual.train(last, head, images, seed=0, checkpoint=checkpoint, echo=lambda history: None)
    finally:
        torch.set_default_dtype(torch.float64)
    assert scores[0]["nll"] == pytest.approx(scores[1]["nll"], rel=1e-4)
    for name, value in head.body.state_dict().items():
        assert_identical(value, before[name])


@pytest.mark.nightly
def test_an_interrupted_run_goes_on_in_the_middle(benchmark, monkeypatch, tmp_path):
    """The second epoch is interrupted. Later output is as without the interruption, except for times."""
    whole = benchmark("--epochs", 3, "--methods", "adam", "--out", tmp_path / "whole")
    seconds = 0

    class Interrupting(_residual.Meter):
        def __call__(self, history):
            super().__call__(history)
            if len(history.epochs) == 2 and not seconds:
                raise KeyboardInterrupt

    monkeypatch.setattr(_residual, "Meter", Interrupting)
    monkeypatch.setattr(_residual.pb, "Checkpoint", lambda path, minutes: path if seconds else str(path))
    with pytest.raises(KeyboardInterrupt):
        benchmark("--epochs", 3, "--methods", "adam")
    assert (benchmark.out / "adam-seed0.fit").exists()
    seconds = 1
    benchmark("--epochs", 3, "--methods", "adam")
    records = [json.loads((folder / "adam-seed0.json").read_text()) for folder in (benchmark.out, tmp_path / "whole")]
    for name in ("accuracy", "nll", "ece"):
        assert records[0]["scores"][name] == records[1]["scores"][name]
    assert records[0]["training"]["train_nll"] == records[1]["training"]["train_nll"]
    assert "| adam |" in whole


def test_images_can_be_set_aside_and_left_out(benchmark, capsys):
    printed = benchmark("--epochs", 1, "--methods", "adam", "--train", 20, "--validation", 10)
    assert "Trained on 20 training images, measured on 10 images set aside" in printed
    folder = benchmark.out.parent
    images = _residual.load(folder, num_train=20, validation=10)
    whole = _residual.load(folder, num_train=None, validation=0)
    assert (len(images.x_train), len(images.x_test)) == (20, 10)
    kept = {image.numpy().tobytes() for image in images.x_train}
    assert not kept & {image.numpy().tobytes() for image in images.x_test}
    assert kept <= {image.numpy().tobytes() for image in whole.x_train}
    with pytest.raises(SystemExit):
        benchmark("--epochs", 2, "--methods", "adam", "--train", 20, "--validation", 10)
    assert "was made with other settings; choose another --out, or delete it" in capsys.readouterr().err


def test_pixels_keep_their_places():
    x = torch.from_numpy(np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5))
    assert_identical(_residual.pixels(x), x.float() / 255)


def test_grey_images_are_resized_and_coloured():
    x = torch.zeros(2, 28, 28)
    x[1] = 1
    found = _residual.in_colour(x, 32, 30)
    assert (found.shape, found.dtype) == ((2, 3, 32, 30), torch.uint8)
    assert (found[0] == 0).all()
    assert (found[1] == 255).all()


def test_some_rows_of_a_file_that_is_sorted_by_class_have_all_classes():
    y = torch.arange(10).repeat_interleave(1000)
    for count in (10, 500, 999, 10_000):
        rows = _residual_scores.spread(len(y), count)
        assert len(rows) == len(set(rows.tolist())) == count
        counts = y[rows].bincount(minlength=10)
        assert int(counts.max() - counts.min()) <= 1
    assert _residual_scores.spread(30, 500).tolist() == list(range(30))
