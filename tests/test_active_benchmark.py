"""The benchmark of active learning: what it prints and stores, and that it continues where it was."""

import json
import sys

import pytest
import torch

import pyro_bnn as pb
from benchmarks import active


@pytest.fixture
def short(monkeypatch):
    """A few updates and draws, and small pools and test sets."""
    whole = active.load_images
    for name, value in {"NUM_UPDATES": 3, "NUM_POOL": 40, "NUM_TARGETS": 5, "NUM_DRAWS": 4}.items():
        monkeypatch.setattr(active, name, value)

    def few(*arguments, **options):
        data = whole(*arguments, **options)
        return pb.data.Images(
            data.x_train[:2000], data.y_train[:2000], data.x_test[:100], data.y_test[:100], data.classes
        )

    monkeypatch.setattr(active, "load_images", few)
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["active", *map(str, arguments)])
    active.main()
    return capsys.readouterr().out


@pytest.mark.nightly
def test_runs_continue_and_label_each_image_once(real_data, short, monkeypatch, capsys, tmp_path):
    options = ("--data", real_data, "--seeds", 1)
    run(monkeypatch, capsys, *options, "--out", tmp_path / "parts", "--images", 30)
    printed = run(monkeypatch, capsys, *options, "--out", tmp_path / "parts", "--images", 40)
    run(monkeypatch, capsys, *options, "--out", tmp_path / "once", "--images", 40)

    def steps(folder):
        rows = [json.loads(line) for line in (tmp_path / folder / "active.jsonl").read_text().splitlines()]
        return {(row["method"], row["images"]): (row["next"], row["error"], row["nll"]) for row in rows}

    found = steps("parts")
    assert found == steps("once")  # as without the interruption
    assert {count for _, count in found} == {20, 30, 40}
    for method in active.METHODS:
        chosen = [number for (name, _), (rows, _, _) in found.items() if name == method for number in rows]
        assert len(set(chosen)) == len(chosen) == 30
        assert f"| {method} | 1 | > 40 | > 40 |" in printed
    assert len({tuple(rows) for (_, count), (rows, _, _) in found.items() if count == 20}) > 2
    assert (tmp_path / "parts" / "active_learning.png").stat().st_size > 10_000


def test_the_start_has_two_images_of_each_class():
    y = torch.arange(10).repeat(5)
    start = active.start(y, 0)
    assert sorted(y[start].tolist()) == sorted([*range(10)] * 2)
    assert active.start(y, 0) == start != active.start(y, 1)


@pytest.mark.nightly
def test_a_draw_is_one_dropout_mask_for_all_images():
    """The mean weights are those of the trained network; each draw keeps or drops each unit."""
    model, posterior = active.trained(torch.rand(20, 28, 28), torch.arange(20) % 10, 0)
    weights = posterior.samples["net.last.weight"]
    ratio = weights / weights.abs().amax(0).clamp_min(1e-30)
    assert set(ratio.abs().round(decimals=5).unique().tolist()) == {0.0, 1.0}
    share = float((weights != 0).double().mean())
    assert abs(share - 0.5) < 5 * (0.25 / (100 * 128)) ** 0.5
    assert not model.net.dropout.training or model.net.dropout.p == 0.5


def test_numbers_of_images_are_the_first_below_an_error():
    rows = [
        {"method": "BALD", "seed": seed, "images": count, "error": error}
        for seed, errors in enumerate(([0.3, 0.09, 0.12], [0.3, 0.2, 0.1]))
        for count, error in zip((20, 30, 40), errors, strict=True)
    ]
    line = list(active.table(rows, [20, 40, 50]))[-1]
    assert line == "| BALD | 2 | 35 ± 5 | > 40 | 30.0 ± 0.0 | 11.0 ± 1.0 |  | 145, 335 |"


def test_a_panel_shows_a_method_beside_random_choice_up_to_the_last_number_of_images(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(active, "save_small", lambda ax, path: drawn.append(ax.figure))
    points = {name: {20: (40.0, 2.0), 30: (8.0, None), 300: (1.0, 0.1)} for name in active.METHODS}
    active.picture(points, tmp_path / "active.png")
    (figure,) = drawn
    assert [ax.get_title() for ax in figure.axes] == [*active.PANELS]
    assert [[*line.get_xdata()] for line in figure.axes[1].lines] == [[20, 30]] * 2
    assert len(figure.legends[0].get_texts()) == 3
