"""Numbers and lists as text, by the same rules in printed tables and on the report's page."""

import math
from collections.abc import Sequence

LARGE, SMALL = 1e7, 1e-4  # numbers of at least the first size, or below the second, are shown as powers of ten
MOST_WRITTEN = 1e12  # the same for `six_digits`


def percent(share: float, digits: int = 1) -> str:
    """Return a share in per cent, such as 97.2 % or 1,002.0 %.

    Shares near 0 and 1 get more digits, so that only 0 is shown as 0 %, and only 1 is shown as 100 %.
    """
    shown = f"{100 * share:,.{digits}f}"
    is_edge = float(shown.replace(",", "")) in (0.0, 100.0) and 0 < share < 1
    return percent(share, digits + 1) if is_edge and digits < 4 else f"{shown} %"


def number(value: float, sign: str = "") -> str:
    """Return a number with at least four significant digits (three below 1), and all digits before the point.

    `sign="+"` also shows a plus sign.
    """
    if value and not SMALL <= abs(value) < LARGE:
        return f"{value:{sign}.3e}"
    return f"{value:{sign},.{max(0, (3 if abs(value) >= 1 else 2) - _magnitude(value))}f}"


def decimals_of(value: float, error: float) -> int:
    """Return how many decimals show two or three digits of an error, and if possible four digits of the number."""
    fewest, most = 1 - _magnitude(error), 2 - _magnitude(error)
    return max(0, min(max(3 - _magnitude(value), fewest), most))


def with_error(value: float, error: float, sign: str = "", *, digits: int | None = None) -> str:
    """Return a number ± its standard error, both with `digits` decimals, by default :func:`decimals_of`."""
    if not (math.isfinite(error) and error >= 1e-12):
        return f"{number(value, sign)} ± {number(error)}"
    digits = decimals_of(value, error) if digits is None else digits
    value = round(value, digits) + 0.0  # no minus sign before 0
    return f"{value:{sign},.{digits}f} ± {error:,.{digits}f}"


def six_digits(value: float) -> str:
    """Return a number with commas between thousands, decimals only up to the sixth digit, and no zeros at the end."""
    if value and not SMALL <= abs(value) < MOST_WRITTEN:
        return f"{value:.6g}"
    text = f"{value:,.{max(0, 5 - _magnitude(value))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _magnitude(value: float) -> int:
    """Return the exponent of a number in scientific notation, such as 2 for 345; 0 for 0, infinity and NaN."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def together(text: str) -> str:
    """Make the spaces before `%` and around `±` non-breaking, so that numbers stay on one line."""
    return text.replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")


def in_series(words: Sequence[str]) -> str:
    """Join words by commas, with "and" before the last one."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
