"""The UCI benchmark: figures in units of the target, finished fits are not repeated, no choice uses test rows."""

import json
import math
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pyro.distributions as dist
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

import pyro_bnn as pb
from benchmarks import _regression, uci
from benchmarks._regression import Budget, Problem, Setting, held_out, score, timed
from benchmarks._regression_methods import Linearised, Map, MeanField, Nuts
from benchmarks._uci_tables import NAMES, PUBLISHED, leads, table
from benchmarks._yardsticks import YARDSTICKS, GaussianProcess, Ridge
from pyro_bnn.data import Regression, load_uci
from pyro_bnn.inference.svi import NonFiniteError
from tests.test_data import write_uci
from tests.tolerances import IDENTITY, STANDARD_ERRORS

ROOT = Path(__file__).parent.parent
TINY = Budget(steps=3, draws=4, predictive_draws=6, depth=2, chains=2, compile=False)
SHORT = ["--datasets", "yacht", "--steps", "8", "--draws", "4", "--depth", "2", "--chains", "2", "--no-compile"]


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
    for method in (MeanField(), Ridge()):
        first, second = (method.evaluate(Problem.of(part), Setting(), TINY, 0) for part in (data, scaled))
        assert second.rmse == pytest.approx(1000 * first.rmse, rel=1e-6)
        assert second.noise == pytest.approx(1000 * first.noise, rel=1e-6)
        assert second.log_likelihood == pytest.approx(first.log_likelihood - math.log(1000), rel=1e-6)
        assert second.coverage == first.coverage


def linear_data(num_rows=400):
    x = torch.randn(2 * num_rows, 2) * 30
    y = 100 + x @ torch.tensor([[2.0], [-1.0]]) + 5.0 * torch.randn(2 * num_rows, 1)
    return Regression(x[:num_rows], y[:num_rows], x[num_rows:], y[num_rows:])


@pytest.mark.parametrize("method", [Ridge(), GaussianProcess()], ids=lambda method: method.name)
def test_a_yardstick_scores_on_linear_data_what_the_noise_allows(method):
    result = method.evaluate(Problem.of(linear_data()), Setting(), TINY, 0)
    error = 5.0 / math.sqrt(2 * 400)  # of a standard deviation from 400 values
    assert abs(result.rmse - 5.0) < STANDARD_ERRORS * error + 0.1
    assert abs(result.noise - 5.0) < STANDARD_ERRORS * error + 0.1
    entropy = 0.5 * math.log(2 * math.pi * math.e * 25.0)
    assert abs(result.log_likelihood + entropy) < STANDARD_ERRORS * math.sqrt(0.5 / 400) + 0.02
    assert abs(result.coverage - 0.95) < STANDARD_ERRORS * math.sqrt(0.95 * 0.05 / 400)


def test_boosted_trees_are_those_of_scikit_learn_and_their_scale_is_that_of_their_errors():
    (trees,) = (method for method in YARDSTICKS if method.name == "boosted trees")
    data = linear_data()
    x, y, x_test, y_test = (part.numpy() for part in (data.x_train, data.y_train, data.x_test, data.y_test))
    errors = HistGradientBoostingRegressor(random_state=0).fit(x, y.ravel()).predict(x_test) - y_test.ravel()
    result = trees.evaluate(Problem.of(data), trees.grid[0], TINY, 0)
    assert result.rmse == pytest.approx(math.sqrt((errors**2).mean()), rel=1e-3)
    assert result.noise == pytest.approx(result.rmse, rel=0.3)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ArviZ on four draws
def test_chains_are_judged_by_output_and_noise_as_their_own_diagnostics_do_it():
    problem = Problem.of(small_data())
    model, posterior = Nuts().fit(problem, Setting(), TINY, 0)
    result = score(problem, (model, posterior), 4, 0)
    expected = posterior.diagnose(model, problem.x_test).predictions
    assert result.r_hat == pytest.approx(expected.worst_r_hat, rel=1e-9)
    assert result.ess == pytest.approx(expected.worst_ess, rel=1e-9)
    assert Map().evaluate(problem, Setting(), TINY, 0).r_hat is None


@pytest.mark.nightly
def test_the_last_layer_alone_is_random_and_everything_else_is_that_of_the_point():
    problem = Problem.of(small_data())
    _, point = Map().fit(problem, Setting(), TINY, 0)
    model, posterior = Linearised("last layer", "full", "net.2.*").fit(problem, Setting(), TINY, 0)
    draws = posterior.sample(2, seed=0)
    assert [name for name, value in draws.items() if not torch.equal(value[0], value[1])] == [
        "net.2.weight",
        "net.2.bias",
    ]
    prediction = pb.predict(model, posterior, problem.x_test, num_samples=5000, seed=0)
    values = point.median()
    hidden = torch.tanh(problem.x_test @ values["net.0.weight"].T + values["net.0.bias"])
    torch.testing.assert_close(prediction.aleatoric.mean().sqrt(), values["likelihood.scale"])
    error = STANDARD_ERRORS * (prediction.epistemic / 5000).sqrt()
    expected = hidden @ values["net.2.weight"].T + values["net.2.bias"]
    assert bool(((prediction.mean - expected).abs() < error).all())


def test_a_validation_part_is_a_fifth_of_the_training_rows_and_the_test_rows_stay_out():
    data = small_data()
    part = held_out(data, 3)
    assert (len(part.x_train), len(part.x_test)) == (24, 6)
    rows = torch.cat([torch.cat([part.x_train, part.y_train], 1), torch.cat([part.x_test, part.y_test], 1)])
    expected = torch.cat([data.x_train, data.y_train], 1)
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    assert torch.equal(held_out(data, 3).x_test, part.x_test)
    assert not torch.equal(held_out(data, 4).x_test, part.x_test)


@pytest.mark.nightly
def test_what_is_chosen_does_not_depend_on_the_test_rows(tmp_path, monkeypatch):
    data = small_data()
    elsewhere = Regression(data.x_train, data.y_train, data.x_test + 1000, -data.y_test)
    rows = []
    for part in (data, elsewhere):
        monkeypatch.setattr(uci, "load_uci", lambda name, split, root, part=part: part)
        cells = uci.Table(tmp_path / str(len(rows)), None, TINY, 0)
        cells.choose("yacht", MeanField())
        rows.append([{**row, "seconds": 0} for row in cells.searched])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3 * len(MeanField.grid)


def test_the_setting_with_the_largest_mean_validation_log_likelihood_is_taken(tmp_path, monkeypatch):
    """The second setting is chosen: not the best one on the first split, nor one whose fit failed."""
    values = {0.5: [5.0, 0.0, None], 1.0: [2.0, 2.0, 2.0], 2.0: [1.0, 1.0, 1.0]}
    monkeypatch.setattr(uci, "load_uci", lambda name, split, root: small_data())
    monkeypatch.setattr(
        uci, "timed", lambda method, problem, setting, budget, seed: (known_score(values[setting.gain][seed]), 1.0)
    )
    assert uci.Table(tmp_path, None, TINY, 0).choose("yacht", Map()) == Setting(gain=1.0)


def known_score(value):
    return None if value is None else _regression.Score(1.0, value, 1.0, 1.0)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ArviZ on four draws
@pytest.mark.filterwarnings("ignore:The predicted standard deviation:UserWarning")  # after 18 rows
def test_all_methods_run_resume_and_end_in_a_table_of_what_the_lines_say(tmp_path, monkeypatch, capsys):
    write_uci(tmp_path, "yacht", num_rows=20)
    monkeypatch.setattr(_regression.Method, "most_searched", 1)
    for method in uci.METHODS[2:]:  # a search of two methods is enough to see it resume
        monkeypatch.setattr(method, "grid", method.grid[:1], raising=False)
    command = ["uci", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--splits", "1", *SHORT]
    monkeypatch.setattr(sys, "argv", command)
    uci.main()
    first = capsys.readouterr().out
    files = [tmp_path / "out" / name for name in ("results.jsonl", "search.jsonl")]
    lines, searched = (file.read_text().splitlines() for file in files)
    rows = {row["method"]: row for row in map(json.loads, lines)}
    assert list(rows) == [method.name for method in uci.METHODS]
    assert all(math.isfinite(row["rmse"]) and math.isfinite(row["log_likelihood"]) for row in rows.values())
    assert rows["ensemble of five"]["setting"] == rows["plain network (MAP)"]["setting"]
    assert {name for name, row in rows.items() if row["r_hat"] is not None} == {"NUTS", "SGHMC"}
    column = [float(value) for value in re.findall(r"^\| [^|]+ \| \**([-0-9.]+)\** \(1\)[^|]*\|", first, re.MULTILINE)]
    assert column[: len(rows)] == [round(row["rmse"], 3) for row in rows.values()]
    assert (tmp_path / "out" / "tables.md").read_text() in first

    uci.main()
    assert [file.read_text().splitlines() for file in files] == [lines, searched]
    assert "# yacht 0" not in capsys.readouterr().out
    files[0].write_text("\n".join(lines[1:]) + "\n")
    files[1].write_text("\n".join(searched[1:]) + "\n")
    uci.main()
    again = [json.loads(file.read_text().splitlines()[-1]) for file in files]
    expected = [json.loads(some[0]) for some in (lines, searched)]
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in expected]


def test_lines_of_another_budget_or_seed_are_left_out_and_those_of_another_program_are_seen(tmp_path):
    """Other numbers of NUTS draws are not another budget, since they are set for each data set."""
    file = tmp_path / "results.jsonl"
    deeper = replace(TINY, draws=100, depth=8)
    budgets = [(0, TINY), (0, Budget()), (1, TINY), (1, Budget()), (1, deeper)]
    rows = [{"split": n, "seed": seed, "budget": asdict(budget)} for n, (seed, budget) in enumerate(budgets)]
    lines = uci.Lines(file, ("split",), seed=1, budget=TINY)
    assert list(lines) == []
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(lines) == [rows[2], rows[4]]
    assert lines.get(split=3) is None
    assert lines.add({"split": 7}) == {"split": 7, "seed": 1, "budget": asdict(TINY)} == lines.get(split=7)


def test_nuts_has_the_sizes_of_the_data_set_unless_they_are_given_and_rows_say_which(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(uci, "load_uci", lambda name, split, root: small_data())
    monkeypatch.setattr(
        uci, "timed", lambda method, problem, setting, budget, seed: (seen.append(budget), (known_score(1.0), 1.0))[1]
    )
    for given in (Budget(), Budget(depth=3)):
        row = uci.Table(tmp_path / str(given.depth), None, given, 0).run("concrete", Map(), 0)
        draws, depth = _regression.NUTS_SIZES["concrete"]
        assert (seen[-1].draws, seen[-1].depth) == (draws, given.depth or depth)
        assert row["budget"] == asdict(seen[-1])
    assert set(_regression.NUTS_SIZES) == set(NAMES)


def test_a_method_is_left_out_where_there_are_more_rows_than_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(uci, "load_uci", lambda name, split, root: small_data())
    monkeypatch.setattr(uci, "timed", lambda *given: (known_score(1.0), 1.0))
    method = Map()
    table = uci.Table(tmp_path, None, TINY, 0)
    method.most_rows = 29
    assert table.run("yacht", method, 0) is None
    method.most_rows = 30
    assert table.run("yacht", method, 0)["method"] == "plain network (MAP)"


def rows_of(method, *values, dataset="energy", sign=-1):
    scores = [{"split": split, "rmse": v, "log_likelihood": sign * v} for split, v in enumerate(values)]
    return [{"dataset": dataset, "method": method, "r_hat": None, **score} for score in scores]


def test_a_table_has_means_standard_errors_and_says_where_splits_are_missing():
    some = [*rows_of("plain network (MAP)", 1.0, 2.0, 4.0), *rows_of("NUTS", *[0.5, 0.7] * 10)]
    lines = table(some, "rmse", uci.METHODS).splitlines()
    error = statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3)
    assert lines[2] == f"| plain network (MAP) |  | 2.333 ± {error:.3f} (3) |  |  |  |  |"
    assert lines[3].startswith("| NUTS |  | **0.600 ± 0.023** |  |")
    assert "| 0.666 ± 0.050 | 0.539 ± 0.014 |" in lines[4]
    assert "**0.600 ± 0.023**" in table(some, "nll", uci.METHODS)
    assert "**" not in table([{**row, "coverage": 0.9} for row in some], "coverage", uci.METHODS)
    assert set(PUBLISHED["mean field, published"]) == set(NAMES)


def test_bold_is_only_what_is_ahead_by_more_than_the_standard_error_of_the_differences():
    """Both lead by 0.1 on average: one on every split alike, the other by chance."""
    other = dict(enumerate([1.0, 2.0, 3.0]))
    assert leads(dict(enumerate([0.9, 1.9, 2.9001])), other)
    assert not leads(dict(enumerate([0.2, 2.0, 3.5])), other)
    assert not leads(other, dict(enumerate([0.9, 1.9, 2.9001])))
    some = [*rows_of("plain network (MAP)", 1.0, 2.0, 3.0), *rows_of("NUTS", 0.2, 2.0, 3.5)]
    assert "**" not in table(some, "rmse", uci.METHODS)


def test_chains_that_disagree_on_one_split_are_never_named_best_and_have_a_star():
    some = [*rows_of("plain network (MAP)", 1.0, 2.0, 3.0), *rows_of("NUTS", 0.5, 1.4, 2.5)]
    agreeing = [{**row, "r_hat": 1.005} for row in some[3:]]
    assert "**1.467" in table([*some[:3], *agreeing], "rmse", uci.METHODS)
    shown = table([*some[:3], *agreeing[:2], {**agreeing[2], "r_hat": 1.015}], "rmse", uci.METHODS)
    assert re.search(r"\| 1.467 ± [.0-9]+ \(3\)\\\* \|", shown)
    assert "**" not in shown


def test_a_fit_whose_numbers_leave_the_range_is_a_failure_and_no_score():
    class Failing(Map):
        def fit(self, problem, setting, budget, seed):
            raise NonFiniteError("loss", "here", "")

    result, seconds = timed(Failing(), Problem.of(small_data()), Setting(), TINY, 0)
    assert result is None
    assert seconds >= 0


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_says_what_it_takes():
    command = [sys.executable, "-W", "error", "-m", "benchmarks.uci", "--help"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(method.name in " ".join(printed.split()) for method in uci.METHODS)


@pytest.mark.nightly
@pytest.mark.slow
def test_mean_field_beats_the_published_mean_field_on_real_data(real_uci):
    """Yacht, two splits: an RMSE of 1.32 by others."""
    torch.set_default_dtype(torch.float32)
    problems = [Problem.of(load_uci("yacht", split, root=real_uci)) for split in (0, 1)]
    scores = [MeanField().evaluate(problem, Setting(kl_weight=0.1), Budget(steps=600), 0) for problem in problems]
    torch.set_default_dtype(torch.float64)
    published, _ = PUBLISHED["mean field, published"]["yacht"]["rmse"]
    assert statistics.fmean(score.rmse for score in scores) < published
