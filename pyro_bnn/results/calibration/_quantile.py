"""The quantile of split conformal prediction."""

import math

from torch import Tensor

from ..._core import checks as _checks


def rank_of(level: float, num_rows: int) -> int:
    r"""The rank among the scores of n calibration rows that bounds a new score: :math:`\lceil (n + 1) \ell \rceil`.

    The probability that a new score does not exceed it is this rank divided by n + 1, if all scores differ.

    Args:
        level: Probability :math:`\ell`, strictly between 0 and 1.
        num_rows: Number of calibration rows, n.

    Raises:
        ValueError: If there are fewer than `level` / (1 - `level`) rows: any finite value would be too small.
    """
    level = _checks.between_zero_and_one("level", level)
    rank = max(math.ceil((num_rows + 1) * level - 1e-9), 1)  # 0.9 is not 9 / 10
    if rank > num_rows:
        raise ValueError(
            f"`level` {level} needs at least {fewest_rows(level)} calibration rows, got {num_rows}; use more rows or a "
            "lower level."
        )
    return rank


def fewest_rows(level: float) -> int:
    """The smallest number of calibration rows with which a level is possible."""
    return math.ceil(level / (1 - level) - 1e-9)


def conformal_quantile(scores: Tensor, level: float) -> Tensor:
    """The smallest value that at least (n + 1) `level` of n scores do not exceed; see :func:`rank_of`.

    Args:
        scores: Scores, shape ``(n, *O)``.
        level: Probability, strictly between 0 and 1.

    Returns:
        The value, shape ``(*O)``.
    """
    return scores.sort(0).values[rank_of(level, len(scores)) - 1]
