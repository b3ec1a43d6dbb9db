"""The benchmark of Bayesian optimisation, with methods that cost nothing."""

import math
import re
import sys

import pytest
import torch

from benchmarks import optimise
from benchmarks._results import read_rows


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, arguments)])
    optimise.main()
    return capsys.readouterr().out


@pytest.mark.nightly
def test_methods_of_optimisation_start_from_the_same_points(monkeypatch, capsys, tmp_path):
    """A method that picks the middle of the cube finds Ackley's optimum; an unfinished run goes on."""
    calls = []

    def chosen(model, x, y, seed):
        calls.append(seed)
        return torch.full((optimise.NUM_TOGETHER, x.shape[1]), 0.5, dtype=x.dtype)

    monkeypatch.setattr(optimise, "chosen", chosen)
    monkeypatch.setitem(optimise.METHODS, "network", lambda x, y, seed: None)
    arguments = "--out", tmp_path, "--functions", "Ackley", "Branin", "--methods", "network", "Sobol", "--seeds", "2"
    picture = tmp_path / "picture.png"
    printed = run(monkeypatch, capsys, *arguments, "--picture", picture)
    rows = read_rows(tmp_path / "optimise.jsonl")
    assert len(rows) == 8
    assert picture.stat().st_size
    for name in ("Ackley", "Branin"):
        by_method = {row["method"]: row["regret"] for row in rows if (row["dataset"], row["seed"]) == (name, 1)}
        assert by_method["network"][0] == by_method["Sobol"][0] > 0.1
        assert by_method["Sobol"] == sorted(by_method["Sobol"], reverse=True)
    assert [row["regret"][-1] for row in rows if (row["dataset"], row["method"]) == ("Ackley", "network")] == [
        pytest.approx(0.0, abs=1e-9)
    ] * 2
    assert re.search(r"\| Ackley \| network \| 2 \| [12]\d\.\d+ ± 0\.\d+ \| -?0\.000", printed)
    num_calls = len(calls)
    run(monkeypatch, capsys, *arguments)
    assert len(calls) == num_calls


def test_the_functions_have_their_optimum_where_the_literature_has_it():
    place = torch.tensor([[0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]], dtype=torch.float64)
    hartmann = optimise.PROBLEMS["Hartmann, 24 inert"]
    inert = torch.rand(1, 24, dtype=torch.float64)
    assert hartmann.values(torch.cat([place, inert], 1)) == pytest.approx(0.0, abs=1e-4)
    assert hartmann.values(torch.cat([place + 0.1, inert], 1)) < -0.3
    branin = optimise.PROBLEMS["Branin"].values(torch.tensor([[(math.pi + 5) / 15, 2.275 / 15]], dtype=torch.float64))
    assert branin == pytest.approx(0.0, abs=1e-4)
