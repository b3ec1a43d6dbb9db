"""Numbers in words."""

import math

__all__ = ["count", "interval", "percent", "plural"]

TWO_SIDED_95 = 1.959964
"""Quantile 0.975 of the standard normal distribution."""


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent.

    Example:
        >>> percent(0.9721)
        '97.2 %'
    """
    return f"{100 * share:.{digits}f} %"


def count(number: int) -> str:
    """A whole number with commas.

    Example:
        >>> count(10000)
        '10,000'
    """
    return f"{number:,d}"


def plural(number: int, name: str) -> str:
    """A number of things.

    Example:
        >>> plural(1, "epoch"), plural(3, "epoch")
        ('1 epoch', '3 epochs')
    """
    return f"{count(number)} {name}{'' if number == 1 else 's'}"


def interval(share: float, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability.

    Args:
        share: Observed share.
        total: Number of observations, at least 1.

    References:
        Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953.

    Example:
        >>> low, high = interval(1.0, 100)
        >>> round(low, 3), round(high, 3)
        (0.963, 1.0)
    """
    z2 = TWO_SIDED_95**2
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = TWO_SIDED_95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)
