"""Rows to train on and rows to test on."""

from collections.abc import Hashable, Sequence

import torch

__all__ = ["split_rows"]


def split_rows(
    num_rows: int, fraction: float, *, seed: int, labels: Sequence[Hashable] | None = None
) -> tuple[list[int], list[int]]:
    """Divide rows at random into training rows and test rows, each in their first order.

    Args:
        num_rows: Number of rows.
        fraction: Share of the test rows, at least 0 and below 1.
        seed: Seed of the choice.
        labels: Classes of the rows: the share is then taken of each class, and one row of it stays for training.

    Returns:
        Numbers of the training rows and of the test rows, from 0.

    Raises:
        ValueError: If there are too few rows.
    """
    if num_rows < 4:
        raise ValueError(f"there are too few rows to learn from: at least 4 are needed, got {num_rows}.")
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).tolist()
    groups: dict[Hashable, list[int]] = {}
    for row in order:
        groups.setdefault(None if labels is None else labels[row], []).append(row)
    test: list[int] = []
    owed = 0.0  # shares of small classes add up
    for rows in groups.values():
        owed += fraction * len(rows)
        taken = min(round(owed), len(rows) - 1)
        owed -= taken
        test += rows[:taken]
    chosen = {*test}
    return [row for row in range(num_rows) if row not in chosen], sorted(chosen)
