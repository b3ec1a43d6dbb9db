"""The benchmarks of tables: with classes, by a published protocol, and with gaps in the inputs."""

import functools
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import coverage, gaps, tables


def run(monkeypatch, capsys, module, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, arguments)])
    module.main()
    return capsys.readouterr().out


def test_a_gap_is_the_middle_third_of_the_values_that_occur():
    values = np.arange(9.0)
    assert np.flatnonzero(gaps.gap(values)).tolist() == [3, 4, 5]
    often = np.array([0.0] * 20 + [1.0, 2.0, 3.0, 4.0])  # of few values, each counts once
    assert often[gaps.gap(often)].tolist() == [2.0]
    assert not gaps.gap(np.array([0.0, 1.0, 1.0])).any()


def test_rows_of_a_gap_are_predicted_from_the_others(real_uci, monkeypatch, capsys, tmp_path):
    options = ("--data", real_uci, "--out", tmp_path, "--datasets", "yacht", "--inputs", 1)
    seen = []

    class Few(gaps.GaussianProcess):
        """The process on the first 20 rows."""

        def evaluate(self, problem, setting, budget, seed):
            seen.append((problem.x, problem.x_test))
            return super().evaluate(replace(problem, x=problem.x[:20], y=problem.y[:20]), setting, budget, seed)

    monkeypatch.setitem(gaps.METHODS, "mean field", Few())
    printed = run(monkeypatch, capsys, gaps, *options, "--methods", "mean field")
    row = json.loads((tmp_path / "gaps.jsonl").read_text())
    (x, x_test), (low, high) = (
        seen[0],
        np.quantile(np.unique(np.concatenate([seen[0][0], seen[0][1]])[:, 0]), [1 / 3, 2 / 3]),
    )
    assert len(x) + len(x_test) == 308
    assert len(x_test) == row["rows"]
    assert ((low < x_test[:, 0]) & (x_test[:, 0] <= high)).all()
    assert not ((low < x[:, 0]) & (x[:, 0] <= high)).any()
    assert f"| yacht | mean field | 1 | {-row['log_likelihood']:.3f} |" in printed
    assert 0 <= row["coverage"] <= 1
    run(monkeypatch, capsys, gaps, *options, "--methods", "mean field")
    assert len(seen) == 1  # what is there is not run again


def test_classes_are_scored_on_the_rows_that_were_held_out(real_uci, monkeypatch, capsys, tmp_path):
    options = ("--data", real_uci, "--out", tmp_path, "--datasets", "heart", "--runs", 1)
    printed = run(monkeypatch, capsys, tables, *options, "--methods", "logistic regression")
    row = json.loads((tmp_path / "tables.jsonl").read_text())
    assert 0.2 < row["nll"] < 0.6
    assert 0.7 < row["accuracy"] < 0.95
    assert f"| heart | logistic regression | 1 | {row['nll']:.3f} |" in printed


def test_other_packages_are_scored_in_units_of_the_targets_deviation(monkeypatch, capsys, tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "tables").mkdir()
    table = random.normal(size=(200, 2)) * [1, 50]
    np.savetxt(tmp_path / "tables" / "airfoil.csv", table, delimiter=",", header="x,y", comments="")
    nothing = lambda x, y, x_test, seed: (np.zeros(len(x_test)), np.ones(len(x_test)))  # noqa: E731
    monkeypatch.setitem(tables.OTHER_PACKAGES, "XGBoost", nothing)
    options = ("--data", tmp_path, "--out", tmp_path, "--datasets", "airfoil", "--runs", 1)
    run(monkeypatch, capsys, tables, *options, "--methods", "XGBoost")
    row = json.loads((tmp_path / "tables.jsonl").read_text())
    assert row["rmse"] == pytest.approx(1, abs=0.25)
    assert row["nll"] == pytest.approx((np.log(2 * np.pi) + row["rmse"] ** 2) / 2)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_intervals_are_scored_in_all_and_by_the_predicted_deviation(real_uci, monkeypatch, capsys, tmp_path):
    quick = functools.partial(coverage.BNNRegressor, (4,), max_iter=20, num_samples=20)
    monkeypatch.setattr(coverage, "BNNRegressor", quick)
    monkeypatch.setattr(
        coverage, "by_mapie", lambda regressor, x, y, x_test: (x_test[:, :1] - 1e9, x_test[:, :1] + 1e9)
    )
    options = ("--data", real_uci, "--out", tmp_path, "--datasets", "yacht", "--splits", 1)
    printed = run(monkeypatch, capsys, coverage, *options)
    rows = {row["intervals"]: row for row in map(json.loads, (tmp_path / "coverage.jsonl").read_text().splitlines())}
    assert [*rows] == ["network", "absolute", "scaled", "quantile", "MAPIE, absolute"]
    assert rows["MAPIE, absolute"]["coverage"] == 1
    for row in rows.values():
        assert row["coverage"] > 0.6 or row["intervals"] == "network"  # whose fit was cut short
        assert np.average(row["thirds"], weights=[11, 10, 10]) == pytest.approx(row["coverage"])
        assert f"| yacht | {row['intervals']} | 1 | {100 * row['coverage']:.1f} | {row['width']:.3f} |" in printed
    before = (tmp_path / "coverage.jsonl").read_text()
    run(monkeypatch, capsys, coverage, *options)
    assert (tmp_path / "coverage.jsonl").read_text() == before  # what is there is not run again
