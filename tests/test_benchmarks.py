"""The benchmarks run, and print what they promise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_benchmark_of_nuts_prints_and_writes_its_rows(tmp_path):
    command = [sys.executable, "-m", "benchmarks.nuts", "--draws", "20", "--repeats", "2"]
    options = ["--only", "fit_nuts, 4 chains", "--json", str(tmp_path / "rows.json")]
    printed = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["sampler"] == "fit_nuts, 4 chains"
    assert row["repeats"] == 2
    assert row["us per leapfrog"] > 0
    assert row["z"] == 0  # beside itself
    assert "| fit_nuts, 4 chains |" in printed
