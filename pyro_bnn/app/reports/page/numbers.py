"""Numbers in words."""

from scipy.stats import binomtest

__all__ = ["count", "percent", "plural", "wilson"]


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent. Only all are 100 %, and only none are 0 %: others get more digits.

    Example:
        >>> percent(0.9721), percent(0.99996), percent(1.0), percent(0.5, 0)
        ('97.2 %', '99.996 %', '100.0 %', '50 %')
    """
    shown = f"{100 * share:.{digits}f}"
    is_edge = float(shown) in (0.0, 100.0) and 0 < share < 1
    return percent(share, digits + 1) if is_edge and digits < 4 else f"{shown} %"


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


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability.

    Args:
        hits: Number of observations in which it happened.
        total: Number of observations, at least 1.

    Example:
        >>> low, high = wilson(100, 100)
        >>> round(low, 3), round(high, 3)
        (0.963, 1.0)
    """
    found = binomtest(hits, total).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)
