"""`python -m benchmarks.coverage`: what is measured on a split, and what is made of the splits."""

import pytest
import torch
from PIL import Image

from benchmarks.coverage import KINDS, measured, pairs_of, picture, table


def test_coverage_of_thirds_is_by_predicted_deviation():
    y, sd = torch.zeros(9, 1), torch.tensor([3.0, 1, 2, 3, 1, 2, 3, 1, 2])[:, None]
    low, high = -torch.ones(9, 1), (sd < 3).double() - 0.5  # targets of the largest deviation are outside
    found = measured(low, high, y + torch.linspace(-0.1, 0.1, 9)[:, None], sd)
    assert found["thirds"] == [1, 1, 0]
    assert found["coverage"] == pytest.approx(6 / 9)


@pytest.mark.nightly
def test_a_table_and_a_picture_are_made_of_the_rows(tmp_path):
    rows = [
        {
            "dataset": name,
            "split": split,
            "intervals": kind,
            "coverage": 0.9 + 0.01 * split,
            "width": 2.0,
            "thirds": [0.95, 0.9, 0.85],
        }
        for name in ("yacht", "energy")
        for split in (0, 1)
        for kind in KINDS
    ]
    lines = [*table(rows)]
    assert len(lines) == 2 + 2 * len(KINDS)
    assert lines[2] == "| yacht | network | 2 | 90.5 ± 0.5 | 2.000 ± 0.000 | 95, 90, 85 |"
    shown = {}
    for expected in (90, 95):
        picture(pairs_of(rows), tmp_path / "coverage.png", {"yacht": expected, "energy": 90}, lines)
        with Image.open(tmp_path / "coverage.png") as drawn:
            assert drawn.width == 1750
            shown[expected] = drawn.convert("RGB").tobytes()
    assert shown[90] != shown[95]  # the expected coverage is drawn
