"""The UCI benchmark: figures in units of the target, what ran is not run again, and nothing peeks at test rows."""

import json
import math
import re
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pyro.distributions as dist
import pytest
import torch

import pyro_bnn as pb
from benchmarks import uci
from benchmarks._regression import METHODS, Budget, MeanField, Problem, Score, Setting, held_out, score
from pyro_bnn.data import Regression, load_uci
from tests.test_data import write_uci
from tests.tolerances import IDENTITY

ROOT = Path(__file__).parent.parent
NAMES = [method.name for method in METHODS]
TINY = Budget(steps=3, draws=4, predictive_draws=6, depth=2, compile=False)
SHORT = ["--datasets", "yacht", "--splits", "1", "--steps", "2", "--draws", "4", "--no-compile"]


def small_data(num_rows=30):
    x = 5 + 3 * torch.randn(num_rows + 7, 2)
    y = 100 + 40 * x.sum(1, keepdim=True) + torch.randn(num_rows + 7, 1)
    return Regression(x[:num_rows], y[:num_rows], x[num_rows:], y[num_rows:])


class Known(pb.Posterior):
    """A linear network's weights and noise, by hand."""

    def __init__(self, draws):
        self.status, self._draws = pb.Status(True, ""), draws

    def draws(self, num_samples, *args):
        yield from self._draws[:num_samples]


def test_scores_are_those_of_the_gaussian_mixture_in_the_units_of_the_target():
    data = small_data()
    problem = Problem.of(data)
    torch.testing.assert_close(problem.y.std(), torch.ones(()))
    likelihood = pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))
    model = pb.BayesianModel(
        torch.nn.Linear(2, 1), prior=pb.NormalPrior(), likelihood=likelihood, num_data=len(problem.x)
    )
    weights, biases, noises = [[0.5, 0.6], [0.7, 0.8]], [0.1, -0.1], [0.2, 0.4]
    draws = [
        {"net.weight": torch.tensor([w]), "net.bias": torch.tensor([b]), "likelihood.scale": torch.tensor(s)}
        for w, b, s in zip(weights, biases, noises, strict=True)
    ]
    result = score(problem, (model, Known(draws)), num_samples=2, seed=0)

    x_mean, x_scale, y_mean, y_scale = (
        data.x_train.mean(0),
        data.x_train.std(0),
        data.y_train.mean(),
        data.y_train.std(),
    )
    inputs = (data.x_test - x_mean) / x_scale
    means = [y_mean + y_scale * (inputs @ torch.tensor([w]).T + b) for w, b in zip(weights, biases, strict=True)]
    density = sum(
        torch.distributions.Normal(mean, y_scale * s).log_prob(data.y_test).exp() / 2
        for mean, s in zip(means, noises, strict=True)
    )
    assert result.log_likelihood == pytest.approx(float(density.log().mean()), rel=IDENTITY["rtol"])
    error = (sum(means) / 2 - data.y_test).square().mean().sqrt()
    assert result.rmse == pytest.approx(float(error), rel=IDENTITY["rtol"])


def test_scores_do_not_depend_on_the_unit_but_by_it():
    """Metres or millimetres: RMSE a thousand times as large, log-density less by log 1000."""
    data = small_data()
    scaled = Regression(data.x_train, 1000 * data.y_train, data.x_test, 1000 * data.y_test)
    first, second = (uci.run(MeanField(), part, TINY, 0) for part in (data, scaled))
    assert second["rmse"] == pytest.approx(1000 * first["rmse"], rel=1e-6)
    assert second["log_likelihood"] == pytest.approx(first["log_likelihood"] - math.log(1000), rel=1e-6)


def test_a_validation_part_is_a_fifth_of_the_training_rows_and_the_test_rows_stay_out():
    data = small_data()
    part = held_out(data, 3)
    assert (len(part.x_train), len(part.x_test)) == (24, 6)
    rows = torch.cat([torch.cat([part.x_train, part.y_train], 1), torch.cat([part.x_test, part.y_test], 1)])
    expected = torch.cat([data.x_train, data.y_train], 1)
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    assert torch.equal(held_out(data, 3).x_test, part.x_test)
    assert not torch.equal(held_out(data, 4).x_test, part.x_test)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ArviZ on four draws
def test_what_is_chosen_does_not_depend_on_the_test_rows(method):
    data = small_data()
    elsewhere = Regression(data.x_train, data.y_train, data.x_test + 1000, -data.y_test)
    assert uci.choose(method, data, TINY, 0) == uci.choose(method, elsewhere, TINY, 0)


def test_the_setting_with_the_largest_validation_log_likelihood_is_taken():
    setting, values = uci.choose(MeanField(), small_data(), TINY, 0)
    assert len(values) == len(MeanField.grid)
    assert MeanField.grid[values.index(max(values))] == setting


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ArviZ on four draws
def test_all_methods_run_resume_and_end_in_a_table_of_what_the_lines_say(tmp_path, monkeypatch, capsys):
    write_uci(tmp_path, "yacht", num_rows=20)
    monkeypatch.setattr(sys, "argv", ["uci", "--data", str(tmp_path), "--out", str(tmp_path / "out"), *SHORT])
    uci.main()
    first = capsys.readouterr().out
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["method"] for row in rows] == NAMES
    assert all(math.isfinite(row["rmse"]) and math.isfinite(row["log_likelihood"]) for row in rows)
    by_name = {row["method"]: row for row in rows}
    assert by_name["ensemble"]["setting"] == by_name["map"]["setting"]
    shown = re.search(r"^\| yacht \|(.*)", first, re.MULTILINE).group(1).replace("*", "").split("|")
    assert [float(value) for value in shown[: len(rows)]] == [round(row["rmse"], 3) for row in rows]

    uci.main()
    assert (tmp_path / "out" / "results.jsonl").read_text().splitlines() == lines
    assert "# yacht 0" not in capsys.readouterr().out
    (tmp_path / "out" / "results.jsonl").write_text("\n".join(lines[1:]) + "\n")
    uci.main()
    again = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[-1])
    assert {**again, "seconds": 0} == {**rows[0], "seconds": 0}


def test_lines_of_another_budget_or_seed_are_left_out(tmp_path):
    file = tmp_path / "results.jsonl"
    rows = [{"seed": seed, "budget": asdict(budget)} for seed in (0, 1) for budget in (TINY, Budget())]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert uci.read(file, seed=1, budget=asdict(TINY)) == [rows[2]]
    assert uci.read(tmp_path / "none.jsonl", seed=1) == []


def test_a_table_has_means_standard_errors_and_says_where_splits_are_missing():
    def rows(method, *values):
        return [{"dataset": "energy", "method": method, "rmse": v, "log_likelihood": -v} for v in values]

    some = [*rows("map", 1.0, 2.0, 4.0), *rows("nuts", 0.5, 0.7)]
    line = uci.table(some, "rmse").splitlines()[-1]
    error = statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3)
    assert line == f"| energy | 2.333 ± {error:.3f} | **0.600 ± 0.100** (2) | 0.539 ± 0.014 | 1.120 |"
    assert "**-0.600 ± 0.100** (2) | -1.212 ± 0.006 | -1.580 |" in uci.table(some, "log_likelihood")


def test_where_methods_ran_different_splits_they_are_also_compared_on_the_same_ones():
    ran = {("energy", "map"): [0, 1], ("energy", "nuts"): [0, 1, 2], ("yacht", "nuts"): [5]}
    rows = [{"dataset": name, "method": method, "split": s} for (name, method), splits in ran.items() for s in splits]
    kept = [(row["dataset"], row["method"], row["split"]) for row in uci.common(rows)]
    both = [("energy", method, split) for method in ("map", "nuts") for split in (0, 1)]
    assert kept == [*both, ("yacht", "nuts", 5)]


def test_the_settings_of_a_method_are_read_back_as_they_were_written():
    row = uci.run(MeanField(), small_data(), TINY, 0)
    again = uci.run(MeanField(), small_data(), TINY, 0, json.loads(json.dumps(row)))
    assert again["setting"] == row["setting"] == asdict(Setting(**row["setting"]))


@pytest.mark.slow
def test_the_command_says_what_it_takes():
    command = [sys.executable, "-W", "error", "-m", "benchmarks.uci", "--help"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(name in printed for name in NAMES)


@pytest.mark.slow
def test_mean_field_beats_the_published_mean_field_on_real_data(real_uci):
    """Yacht, two splits: 1.32 and -1.62 by others."""
    torch.set_default_dtype(torch.float32)
    short = Budget(steps=600)
    rows = [uci.run(MeanField(), load_uci("yacht", split, root=real_uci), short, split) for split in (0, 1)]
    torch.set_default_dtype(torch.float64)
    published, _ = uci.PUBLISHED["mean-field, published"]["yacht"]
    assert isinstance(published, Score)
    assert statistics.fmean(row["rmse"] for row in rows) < published.rmse
