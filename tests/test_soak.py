"""The soak run does all of its jobs, and detects growth."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import soak

from .tolerances import assert_identical

ROOT = Path(__file__).parent.parent


@pytest.mark.nightly
def test_the_quick_run_does_every_job_but_the_compiled_one_and_prints_what_it_measures(tmp_path):
    command = [sys.executable, "-m", "benchmarks.soak", "--quick", "--json", str(tmp_path / "trends.json")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode in (0, 1), finished.stderr  # so few rounds cannot tell a leak of memory from warm-up
    trends = json.loads((tmp_path / "trends.json").read_text())
    assert [found["name"] for found in trends] == list(soak.measure())
    for found in trends:
        assert f"| {found['name']} |" in finished.stdout
        assert found["is_flat"] or "memory" in found["name"], finished.stdout


def test_a_slope_has_the_error_of_least_squares():
    """Slope and standard error of 0, 1, 2, 3 with 0, 1, 1, 2: by hand, 0.6 and sqrt(0.2 / 2 / 5)."""
    assert_identical(torch.tensor(soak.slope([0, 1, 1, 2])), torch.tensor([0.6, (0.2 / 2 / 5) ** 0.5]))


MEMORY = "resident memory (kB)"
NOISE = [3, -1, 4, -1, -5, 9, -2, -6, 5, -3, 5, -8] * 4


@pytest.mark.parametrize(
    ("name", "values", "is_flat"),
    [
        (MEMORY, [900_000 + noise for noise in NOISE], True),
        (MEMORY, [900_000 + 10 * noise + 0.1 * i for i, noise in enumerate(NOISE)], True),  # within 3 errors
        (MEMORY, [900_000 + 100 * i for i in range(48)], True),  # 3.2 MB in all
        (MEMORY, [900_000 + 1000 * i + noise for i, noise in enumerate(NOISE)], False),
        (MEMORY, [900_000 + 9000 * min(i, 16) for i in range(48)], True),  # only in the warm-up
        ("file descriptors", [6] * 12, True),
        ("file descriptors", [6, 7] * 6, True),
        ("file descriptors", [6] * 11 + [7], False),
    ],
)
def test_growth_is_told_from_noise(name, values, is_flat):
    assert soak.trend(name, values).is_flat is is_flat


@pytest.mark.nightly
def test_what_a_job_leaves_open_or_keeps_is_seen(capsys):
    kept, opened = [], []

    def leak(folder):
        kept.append(b"x" * 60_000_000)  # zeros would take no memory
        kept.append(torch.zeros(1))
        opened.append((folder / "file").open("w"))

    try:
        for job, grows in ((leak, {MEMORY, "file descriptors", "live tensors"}), (lambda folder: None, set())):
            trends = soak.soak({"job": job}, seconds=0)
            assert {found.name for found in trends if not found.is_flat} == grows
    finally:
        for file in opened:
            file.close()
    assert f"{soak.LEAST_ROUNDS} rounds" in capsys.readouterr().out
