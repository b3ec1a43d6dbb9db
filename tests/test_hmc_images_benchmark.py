"""The benchmark that compares methods with HMC on digits, on a few images of 28 x 28 pixels written here."""

import json
import warnings

import pytest
import torch
from PIL import Image

from benchmarks import _hmc_images, _hmc_tables, _methods_tables, hmc_images
from benchmarks._hmc_tables import Predictions, agreement, total_variation
from pyro_bnn.inference.mcmc import _diagnostics

from .test_methods_benchmark import rows, write_images

A = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]])
B = torch.tensor([[0.4, 0.6, 0.0], [0.1, 0.8, 0.1], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0]])


@pytest.fixture
def benchmark(monkeypatch, capsys, tmp_path):
    """Runs `hmc_images` on these images; returns what it prints."""
    for name in ("FashionMNIST", "MNIST"):
        write_images(tmp_path, name)
    monkeypatch.setattr(_hmc_images, "NUM_ASIDE", 20)
    sizes = ("--epochs", 4, "--draws", 4, "--train", 300, "--chains", 2, "--warmup", 2, "--steps", 3, "--dropped", 1)

    def run(*arguments, samples=6):
        torch.set_default_dtype(torch.float32)
        given = ("--data", tmp_path, "--out", tmp_path / "out", *sizes, "--samples", samples, *arguments)
        try:
            hmc_images.main([str(argument) for argument in given])
        finally:
            torch.set_default_dtype(torch.float64)
        return capsys.readouterr().out

    run.out = tmp_path / "out"
    return run


def test_agreement_and_total_variation_of_two_predictions():
    assert agreement(A[1:], B[1:]) == pytest.approx(1 / 3)
    assert total_variation(A, B) == pytest.approx((0.1 + 0.0 + 0.4 + 1.0) / 4)
    assert agreement(A, A) == 1.0
    assert total_variation(A, A) == 0.0


def test_halves_of_the_chains_are_compared_with_the_other_halves():
    entropy = torch.zeros(4)
    chains = [Predictions(p, entropy, p, entropy) for p in (A, A, B, B)]
    found = _hmc_tables.Yardstick(chains, {})
    assert [row["total_variation"] for row in found.halves()] == pytest.approx([1.5 / 4, 0.0, 0.0])
    assert [row["total_variation"] for row in found.singles()] == pytest.approx([1.0 / 4] * 4)
    assert found.whole.compared(chains[0])["total_variation"] == pytest.approx(1.5 / 8)


NAMES = [method.name for method in _hmc_images.METHODS]


@pytest.fixture
def few_quantities(monkeypatch):
    """Statistics of ArviZ, which take a millisecond for each weight, are those of each fiftieth quantity."""
    statistic = _diagnostics._by_quantity

    def of_few(function, values, **options):
        found = statistic(function, values[..., ::50], **options)
        return found.repeat_interleave(50)[: values.shape[-1]]

    monkeypatch.setattr(_diagnostics, "_by_quantity", of_few)


@pytest.mark.usefixtures("few_quantities")
@pytest.mark.nightly
@pytest.mark.parametrize("names", [NAMES, ["deterministic", "mean-field"]], ids=["all", "few"])
def test_every_method_is_compared_with_the_chains_and_measured_once(benchmark, monkeypatch, names):
    """A second run with longer chains continues them, and compares the same fits again."""
    fitted = []
    for method in _hmc_images.METHODS:

        def fit(self, problem, points, original=method.fit):
            fitted.append(self)
            return original(self, problem, points)

        if "fit" in vars(method):
            monkeypatch.setattr(method, "fit", fit)
    grid = _hmc_images.grid
    monkeypatch.setattr(_hmc_images, "grid", lambda method, point: grid(method, point)[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = benchmark("--seeds", 0, "--methods", _hmc_tables.YARDSTICK, *names)
    assert [row["method"] for row in rows(benchmark.out / "results.jsonl")] == names
    assert all(f"| {_methods_tables.TITLES[name]} | " in printed for name in names)
    count = len(fitted)
    record = json.loads((benchmark.out / "hmc.json").read_text())
    assert (record["num_chains"], record["num_draws"]) == (2, 5)
    with Image.open(benchmark.out / "hmc_images.png") as picture:
        table = [line for line in printed.splitlines() if line and not line.startswith("# ")]
        found = [line for line in picture.text["table"].splitlines() if line]
        assert found == table[: len(found)]
        assert len(found) > len(names)

    again = benchmark("--seeds", 0, "--methods", _hmc_tables.YARDSTICK, *names, samples=8)
    assert len(fitted) == count
    assert json.loads((benchmark.out / "hmc.json").read_text())["num_draws"] == 7
    assert again != printed
