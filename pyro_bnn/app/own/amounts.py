"""Numbers with a constant text around them, such as $1,990.00, 37% or 12 kg, and times of day such as 09:30."""

import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd

from .cells import Cells

MOST = 0.9  # heuristic: if so many of a column's cells are amounts or times, the others are worth a warning
TIME = "09:30"  # format of times of day, which become hours
CODES = "AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|NZD|PLN|RUB|SEK|SGD|TRY|USD|ZAR"
SIGN = r"[$\u00a2-\u00a5\u20a0-\u20cf]"  # currency signs
CURRENCY = rf"[A-Z]{{0,3}}{SIGN}|{CODES}"
UNIT = r"[%\u2030\u00b0\u00b5/\u00b2\u00b3a-zA-Z]{1,5}[23]?"  # heuristic: longer words are parts of texts, not units
BLANKS = r"[ \u00a0\u202f]*"
AMOUNT = (
    rf"(?P<minus>[+-]?)(?P<before>(?:(?:{CURRENCY}){BLANKS})?)(?P<number>[+-]?\d(?:[\d.,' \u2019\u00a0\u202f]*\d)?)"
    rf"(?P<after>(?:{BLANKS}(?:{CURRENCY}|{UNIT}))?)"
)
CLOCK = r"(\d{1,2}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?"
FORMAT = r"(?P<before>.*?)(?P<form>1[., ]?234[.,]5)(?P<after>.*)"  # in which a number is written, with its surroundings


def numbers_or_amounts(cells: Cells, preferred: str = "") -> tuple[np.ndarray, str] | None:
    """Return the cells as numbers, and their format; None if some cells are neither numbers nor amounts nor times.

    The format of times is `TIME`. Other formats are those of :meth:`Cells.numbers`, with the sign or unit of amounts,
    as in "$1,234.5". If `preferred` has a sign or a unit, cells with another one are not read.
    """
    known = re.fullmatch(FORMAT, preferred)
    form = preferred if known is None else known["form"].replace("1234.5", "")
    if (found := cells.numbers(form)) is not None:
        return found
    parts = _parts(cells)
    around = _around(parts)
    if preferred != TIME and len(around) == 1 and not parts.isna().to_numpy().any():
        has_unit = parts["before"] + parts["after"] != ""
        before, after = parts.loc[has_unit, ["before", "after"]].iloc[0]
        texts = (parts["minus"] + parts["number"]).reindex(cells.texts.index).astype(object)
        texts = texts.mask(texts.isna(), None)
        if known is not None and (known["before"].strip(), known["after"].strip()) != (before.strip(), after.strip()):
            return None
        is_money = re.fullmatch(CURRENCY, (before + after).strip()) is not None
        form = form or (_groups(texts.dropna()) if is_money else "")
        with suppress(ValueError):  # they are written in several ways
            if found := replace(cells, texts=texts).numbers(form):
                return found[0], f"{before}{found[1] or '1234.5'}{after}"
        return None
    return (hours, TIME) if (hours := _hours(cells)) is not None and known is None else None


def _parts(cells: Cells) -> pd.DataFrame:
    """Return the parts of each present cell by their names in `AMOUNT`; NaN for a cell that is no amount."""
    return cells.present.astype(str).str.extract(f"^{AMOUNT}$")


def _around(parts: pd.DataFrame) -> pd.Series:
    """Count the cells for each pair of texts before and after the numbers. Cells without texts do not count."""
    pairs = parts[["before", "after"]].dropna().apply(lambda column: column.str.strip())
    return pairs[(pairs["before"] + pairs["after"]) != ""].value_counts()


def _groups(texts: pd.Series) -> str:
    """Return the format of amounts of money if their dots or commas separate thousands in all cells, or ""."""
    for mark, form in ((",", "1,234.5"), (".", "1.234,5")):
        is_grouped = texts.str.fullmatch(rf"[+-]?(?:\d{{1,3}}|[1-9]\d{{0,2}}(?:[{mark}]\d{{3}})+)")
        if is_grouped.all() and texts.str.contains(mark, regex=False).any():
            return form
    return ""


def _hours(cells: Cells) -> np.ndarray | None:
    """Return times of day as hours, NaN for missing cells; None if a cell is no time."""
    parts = cells.present.astype(str).str.extract(f"^{CLOCK}$")
    if not len(parts) or parts[0].isna().any():
        return None
    numbers = parts.fillna("0").astype(float)
    hours = numbers[0] + numbers[1] / 60 + numbers[2] / 3600
    return hours.reindex(cells.texts.index).to_numpy(dtype=float)


def almost(cells: Cells) -> str:
    """If most cells of a column of texts are amounts or times, say which cell is neither; otherwise return ""."""
    parts, present = _parts(cells), cells.present.astype(str)
    around = _around(parts)
    are_amounts = pd.Series(False, index=present.index)
    if len(around):
        before, after = around.index[0]
        are_amounts = (parts["before"].str.strip() == before) & (parts["after"].str.strip() == after)
    are_times = present.str.fullmatch(CLOCK)
    kind, fits = ("times", are_times) if are_times.sum() > are_amounts.sum() else ("numbers with a unit", are_amounts)
    if not MOST * len(fits) <= fits.sum() < len(fits):
        return ""
    return (
        f"Most cells of column {cells.name!r} are {kind}, such as {present[fits].iloc[0]!r}, but not "
        f"{present[~fits].iloc[0]!r} in {cells.place(present.index[~fits][0])}"
    )


def said_of(form: str, names: str) -> str:
    """Return a sentence on the columns `names` (in quotes), whose cells have the format `form`."""
    if form == TIME:
        return f"Times in {names} are read as hours: {TIME} is 9.5."
    return f"Numbers in {names} are read as in this example: {form} is 1234.5."


def shown_form(written: str) -> str:
    """Return the format in which numbers were written in training, in parentheses; "" for the usual format."""
    return f" ({written})" if written else ""


def on_lost_unit(name: str, preferred: str, written: str) -> str:
    """Return a note if the numbers in column `name` had a sign or unit in training and lack it now, or else ""."""
    known = re.fullmatch(FORMAT, preferred)
    around = "" if known is None else (known["before"] + known["after"]).strip()
    present = re.fullmatch(FORMAT, written)
    lacks = written == "" or (present is not None and not present["before"] + present["after"])
    if not around or not lacks:
        return ""
    return f"Numbers in {name!r} lack {around!r}, which they had in training: they are read as if they had it."
