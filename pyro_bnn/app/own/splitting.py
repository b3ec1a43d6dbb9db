"""Rows to train on and rows to test on."""

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from .cells import Cells


def split_rows(
    num_rows: int, fraction: float, *, seed: int, labels: Sequence[Hashable] | None = None
) -> tuple[list[int], list[int]]:
    """Indices of training rows and of test rows, divided at random, each in their original order.

    With `labels`, each class gives about the same share of its rows to the test, and keeps at least one for training.
    """
    _check_enough(num_rows)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).tolist()
    groups: dict[Hashable, list[int]] = {}
    for row in order:
        groups.setdefault(None if labels is None else labels[row], []).append(row)
    test: list[int] = []
    owed = 0.0  # small classes save up fractions of a row
    for rows in groups.values():
        owed += fraction * len(rows)
        taken = min(round(owed), len(rows) - 1)
        owed -= taken
        test += rows[:taken]
    chosen = {*test}
    return [row for row in range(num_rows) if row not in chosen], sorted(chosen)


def last_rows(cells: Cells, fraction: float) -> tuple[list[int], list[int]]:
    """Indices of the earlier rows, to train on, and of the latest, to test on, each in their original order."""
    _check_enough(len(cells))
    values = cells.numbers() or cells.days()
    if values is None or cells.is_missing.any():
        raise ValueError(f"{cells} must hold a number or a date in each row to split by it; choose another --split-by.")
    order = np.argsort(values[0], kind="stable")
    num_training = min(max(round((1 - fraction) * len(cells)), 1), len(cells))
    return sorted(order[:num_training].tolist()), sorted(order[num_training:].tolist())


def _check_enough(num_rows: int) -> None:
    if num_rows < 4:
        raise ValueError(f"there are too few rows to learn from: at least 4 are needed, got {num_rows}.")
