"""The benchmark of small networks, on a few images and a short series written here."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import _small_series, _small_vision, small_networks

from .test_methods_benchmark import write_images

HOURS = 24 * 40
MISSING = (300, 301, 700)
"""Places of hours that the table leaves out."""


def write_series(root):
    """Counts with a daily rhythm that doubles from the first hour to the last."""
    generator = np.random.default_rng(0)
    place = np.arange(HOURS)
    rate = (1 + place / HOURS) * (30 + 25 * np.sin(2 * np.pi * place / 24))
    times = pd.Timestamp("2011-01-01") + pd.to_timedelta(place, unit="h")
    table = pd.DataFrame({"dteday": times.strftime("%Y-%m-%d"), "hr": times.hour, "workingday": times.day_of_week < 5})
    table["workingday"] = table["workingday"].astype(int)
    for name in ("temp", "hum", "windspeed"):
        table[name] = generator.uniform(size=HOURS).round(2)
    table["weathersit"] = generator.integers(1, 4, HOURS)
    table["cnt"] = generator.poisson(rate)
    (root / "tables").mkdir()
    table.drop(index=[*MISSING]).to_csv(root / "tables" / "bikesharing.csv", index=False)
    return table["cnt"].to_numpy()


@pytest.fixture
def benchmark(monkeypatch, capsys, tmp_path):
    """Runs `small_networks` on these data; returns what it prints."""
    for name in ("FashionMNIST", "MNIST"):
        write_images(tmp_path, name)
    monkeypatch.setattr(_small_vision, "NUM_ASIDE", 30)
    for kind in (_small_vision.VisionTransformer, _small_series.SeriesNetwork):

        def grid(self, method, point, original=kind.grid):
            return original(self, method, point)[: 2 if method.name == "natural" else 1]

        monkeypatch.setattr(kind, "grid", grid)

    def run(*arguments):
        torch.set_default_dtype(torch.float32)
        options = ("--data", tmp_path, "--out", tmp_path / "out", "--epochs", 4, "--draws", 3, "--units", 8)
        try:
            small_networks.main([str(argument) for argument in (*options, *arguments)])
        finally:
            torch.set_default_dtype(torch.float64)
        return capsys.readouterr().out

    run.root = tmp_path
    return run


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.nightly
def test_every_method_of_the_transformer_is_measured_once(benchmark):
    printed = benchmark("--problems", "vision", "--seeds", 0)
    out = benchmark.root / "out" / "vision"
    found = rows(out / "results.jsonl")
    assert [row["method"] for row in found] == [method.name for method in _small_vision.METHODS]
    assert all(0 <= row["scores"]["auroc_entropy"] <= 1 for row in found)
    assert {row["method"] for row in rows(out / "search.jsonl")} == {"natural"}
    again = benchmark("--problems", "vision", "--seeds", 0)
    assert rows(out / "results.jsonl") == found
    assert again.strip() == (out / "tables.md").read_text().strip()
    assert printed.endswith(again.lstrip("\n"))
    assert "| Laplace (Kronecker) |" in again


def test_the_attention_is_that_of_torch():
    ours, theirs = _small_vision.Attention(8, 2), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.inward.weight,
            "in_proj_bias": ours.inward.bias,
            "out_proj.weight": ours.outward.weight,
            "out_proj.bias": ours.outward.bias,
        }
    )
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_the_patches_of_an_image_are_squares():
    net = _small_vision.Transformer(0.0, 1.0, 8)
    seen = []
    net.embed.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    image = torch.zeros(1, 28, 28)
    image[0, 7:14, 21:28] = 1.0  # the second row of patches, and the last column
    net(image)
    assert seen[0].shape == (1, 16, 49)
    assert [*seen[0][0].sum(1)] == [49.0 if place == 7 else 0.0 for place in range(16)]


@pytest.mark.nightly
def test_every_method_and_baseline_of_the_series_is_measured_once(benchmark):
    write_series(benchmark.root)
    printed = benchmark("--problems", "series", "--seeds", 0, 1)
    found = rows(benchmark.root / "out" / "series" / "results.jsonl")
    names = [method.name for method in _small_series.METHODS]
    assert sorted(row["method"] for row in found) == sorted([*names, *names, "seasonal-naive", "boosting"])
    assert all(0 <= row["scores"][f"coverage{half}"] <= 1 for row in found for half in ("", "_late"))
    assert "Later half of the test hours" in printed
    benchmark("--problems", "series", "--seeds", 0, 1)
    assert rows(benchmark.root / "out" / "series" / "results.jsonl") == found


def test_the_windows_see_the_past_only_and_missing_hours_are_no_targets(tmp_path):
    counts = write_series(tmp_path).astype(float)
    windows = _small_series.load(tmp_path, False, None, None)
    checked = _small_series.load(tmp_path, True, None, None)
    first = _small_series.WEEK + _small_series.WINDOW
    places = [place for place in range(first, HOURS) if place not in MISSING]
    assert len(windows.y) + len(windows.y_test) == len(places)
    assert len(checked.y) + len(checked.y_test) == len(windows.y)  # the test hours are not in the validation
    order = np.array(places)[len(windows.y) :]
    torch.testing.assert_close(windows.counts, torch.tensor(counts[order]), rtol=1e-3, atol=1e-3)
    counts[[*MISSING]] = 0
    before = torch.tensor(np.log1p(np.stack([counts[place - _small_series.WINDOW : place] for place in order])))
    seen = windows.x_test[:, 0].double()
    slope = (seen[0, 1] - seen[0, 0]) / (before[0, 1] - before[0, 0])
    torch.testing.assert_close(seen - seen[0, 0], slope * (before - before[0, 0]), rtol=1e-3, atol=1e-3)
    ago = torch.tensor(np.log1p(counts[order - _small_series.WEEK]))
    torch.testing.assert_close(windows.week_ago_test.double() * windows.scale + windows.mean, ago, rtol=1e-3, atol=1e-3)
    late = windows.x_test[:, 1, -1].double()  # the last value of channel 1 is that of a week before the target
    slope = (late[1] - late[0]) / (ago[1] - ago[0])
    torch.testing.assert_close(late - late[0], slope * (ago - ago[0]), rtol=1e-3, atol=1e-3)


def test_scores_of_a_known_forecast(tmp_path):
    write_series(tmp_path)
    windows = _small_series.load(tmp_path, False, None, None)
    y = windows.y_test[:, 0]
    sharp = _small_series.scores(y[None], torch.full_like(y, 0.01)[None], windows, seed=0)
    wide = _small_series.scores(y[None].repeat(4, 1), torch.full((4, len(y)), 0.5), windows, seed=0)
    assert sharp["coverage"] == wide["coverage"] == 1.0
    assert sharp["rmse"] < 1 < wide["width"] / sharp["width"]
    assert sharp["crps"] < wide["crps"]
    expected = -torch.distributions.Normal(0.0, 0.5 * windows.scale).log_prob(torch.tensor(0.0))
    assert wide["nll"] == pytest.approx(float(expected), rel=1e-5)
