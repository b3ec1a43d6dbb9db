"""Numbers in words: the same rules for printed tables and for the page."""

import math

LARGE, SMALL = 1e7, 1e-4
"""Numbers of at least the first size, or below the second, are shown as powers of ten."""


def percent(share: float, digits: int = 1) -> str:
    """Return a share in per cent. A share close to 0 or 1 gets more digits, so that only 0 is 0 % and only 1 is 100 %.

    Example:
        >>> from pyro_bnn.app.reports.numbers import percent
        >>> percent(0.9721), percent(0.99996), percent(1.0), percent(0.5, 0)
        ('97.2 %', '99.996 %', '100.0 %', '50 %')
    """
    shown = f"{100 * share:.{digits}f}"
    is_edge = float(shown) in (0.0, 100.0) and 0 < share < 1
    return percent(share, digits + 1) if is_edge and digits < 4 else f"{shown} %"


def number(value: float, sign: str = "") -> str:
    """Return a number with four significant digits. Whole digits are never cut.

    If `sign` is "+", the number begins with + or -.

    Example:
        >>> from pyro_bnn.app.reports.numbers import number
        >>> number(2.91), number(123456.0), number(0.25, "+"), number(5.88e-6)
        ('2.910', '123456', '+0.2500', '5.880e-06')
    """
    if value and not SMALL <= abs(value) < LARGE:
        return f"{value:{sign}.3e}"
    return f"{value:{sign}.{max(0, 3 - _magnitude(value))}f}"


def with_error(value: float, error: float, sign: str = "") -> str:
    """Return a number ± its standard error.

    The number and its error have the same decimal places. The number has four significant digits, as from
    :func:`number`, unless the error would then have fewer than two or more than three significant digits. Whole digits
    are never cut.

    Example:
        >>> from pyro_bnn.app.reports.numbers import with_error
        >>> with_error(1.112, 0.113), with_error(-0.00043, 0.00102, "+")
        ('1.112 ± 0.113', '-0.00043 ± 0.00102')
    """
    if not (math.isfinite(error) and error >= 1e-12):
        return f"{number(value, sign)} ± {number(error)}"
    fewest, most = 1 - _magnitude(error), 2 - _magnitude(error)
    digits = max(0, min(max(3 - _magnitude(value), fewest), most))
    value = round(value, digits) + 0.0  # no minus sign before 0
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"


def _magnitude(value: float) -> int:
    """Return the exponent of a number in scientific notation, such as 2 for 345; 0 for 0, infinity and NaN."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def together(text: str) -> str:
    """Make the spaces before `%` and around `±` non-breaking, so that numbers stay on one line."""
    return text.replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")
