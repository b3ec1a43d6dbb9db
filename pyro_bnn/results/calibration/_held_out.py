"""Choice of the rows that calibrate."""

import numpy as np

from ..._core import checks as _checks


def set_aside(name: str, num_rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the rows to fit, and of the rows that calibrate, chosen at random; both in ascending order.

    Args:
        name: Name of the argument `share`, for messages.
        num_rows: Number of rows.
        share: Share of the rows that calibrate, strictly between 0 and 1.
        seed: Seed of the choice.

    Raises:
        ValueError: If the share leaves fewer than one row to calibrate, or than two to fit.
    """
    count = round(_checks.between_zero_and_one(name, share) * num_rows)
    if not 1 <= count <= num_rows - 2:
        raise ValueError(f"`{name}` must leave a row to calibrate and two to fit, got {share!r} for {num_rows} rows.")
    order = np.random.default_rng(seed).permutation(num_rows)
    return sorted(order[count:].tolist()), sorted(order[:count].tolist())
