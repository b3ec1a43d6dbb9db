"""Turn the cells of a column from text into numbers, dates or labels."""

import re
import shlex
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

MOST_NAMED = 3  # largest number of wrong cells in a message
MOSTLY = 0.5  # heuristic: if more than this share of a column's cells are numbers or dates, the others are mistakes
BLANKS = " '\u2019\u00a0\u202f"
NUMBERS = {
    "1234,5": ("", ","),
    "1.234,5": (".", ","),
    "1,234.5": (",", "."),
    "1 234,5": (BLANKS, ","),
    "1 234.5": (BLANKS, "."),
}
"""Formats of numbers. The key is a number in the format. The value has the characters that may separate groups of
digits, and the decimal mark."""

POWER = r"[+-]?[0-9]\.0+e[+-]00"  # a whole number of one digit as a power of ten, as numpy.savetxt writes it

DATES = {
    "year first": (r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?=$|[ T])", r"\1-\2-\3"),
    "day first": (r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})(?=$|[ T])", r"\3-\2-\1"),
    "month first": (r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})(?=$|[ T])", r"\3-\1-\2"),
}
"""Formats of dates. Each format has a pattern that matches a date, and a replacement text that puts the year first."""

DATE_LIKE = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2}))(?:[ T].*)?"
MONTH = r"(?:jan|feb|m[aä]r|apr|ma[iy]|june?|jul|aug|sept?|o[ck]t|nov|de[cz])(?:r?uary?|ch|il|[isyz]|ust|t?ember|ober)?"
NAMES_MONTH = rf"(?i)(?:\d{{1,2}}[-. ]+)?{MONTH}[-., ]+(?:\d{{1,2}},? +)?\d{{2,4}}"  # such as 31 Dec 2024 or Dec-24


@dataclass(frozen=True)
class Cells:
    """The cells of a column."""

    name: str  # of the column
    shown: str  # name of the file, for messages
    texts: pd.Series  # (N,), indexed by row number in the file; None if missing
    separator: str = ","  # character between the cells in the file
    instead: str = ""  # advice for a user who does not want to correct the cells
    place: Callable[[int], str] = "row {}".format  # says where a row number is in the file, such as "line 3"

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        return f"column {self.name!r} of {self.shown}"

    @cached_property
    def is_missing(self) -> np.ndarray:
        """A mask of the missing cells, shape (N,)."""
        return self.texts.isna().to_numpy()

    @property
    def present(self) -> pd.Series:
        """The cells of the column that are not missing. The index of the series has the row number of each cell."""
        return self.texts.dropna()

    @property
    def first_text(self) -> str:
        """A text such as "'none' in line 12", which shows the first cell that is not a number.

        If all cells are numbers, the text shows the first cell.
        """
        texts = self.present[pd.to_numeric(self.present, errors="coerce").isna()]
        row, text = [*texts.items(), *self.present.items()][0]
        return f"{text!r} in {self.place(row)}"

    @property
    def labels(self) -> np.ndarray:
        """The cells as class labels. TRUE and true become True, 1.0e+00 becomes 1, and a missing cell becomes ""."""
        truth = {"true": "True", "false": "False"}
        texts = [truth.get(text.lower(), text) for text in self.texts.fillna("")]
        return np.array([f"{float(text):.6g}" if re.fullmatch(POWER, text) else text for text in texts], dtype=object)

    def row(self, which: np.ndarray) -> int:
        """Find the first row for which the mask `which`, shape (N,), is true, and return its row number in the file."""
        return int(self.texts.index[which.argmax()])

    def numbers(self, preferred: str = "") -> tuple[np.ndarray, str] | None:
        """Return the cells as numbers, and the format of these numbers; None if most cells are texts.

        Missing cells become NaN. The format is a key of `NUMBERS`, or "" for the usual format.
        """
        present = self.present
        readings = {"": pd.to_numeric(present, errors="coerce").astype(float)}
        for written, (groups, decimal) in NUMBERS.items() if preferred or readings[""].isna().any() else ():
            whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:[{groups}]\d{{3}})+)" if groups else r"\d+"
            fits = present.str.fullmatch(rf"[+-]?{whole}(?:[{decimal}]\d+)?(?:[eE][+-]?\d+)?")
            plain = present.where(fits, "nan").str.translate(str.maketrans(decimal, ".", groups))
            readings[written] = plain.astype(float)
        found = self._read(readings, preferred)
        if found is None:
            self._check_few(present, pd.DataFrame(readings).notna().any(axis=1))
            return None
        numbers, written, others = found
        if others and written not in ("", preferred) and self.separator == ",":
            raise ValueError(
                f"{self} holds numbers such as {next(text for text in present if ',' in text)!r}, which may be "
                f"written as in {written} or as in {others[0]}; write them with a decimal point, and without "
                "separators between thousands."
            )
        if np.isinf(numbers).any():
            row = self.row(np.isinf(numbers))
            raise ValueError(f"{self} holds an infinite number in {self.place(row)}; correct or remove it.")
        return numbers, written

    def _read(self, readings: dict[str, pd.Series], preferred: str) -> tuple[np.ndarray, str, list[str]] | None:
        """Return the values, their format, and other formats that fit but give other values; None if no format fits."""
        complete = [written for written, values in readings.items() if values.notna().all()]
        if not complete:
            return None
        written = preferred if preferred in complete else complete[0]
        values = readings[written]
        others = [other for other in complete if (readings[other] != values).any()]
        return values.reindex(self.texts.index).to_numpy(dtype=float), written, others

    def _check_few(self, present: pd.Series, are_numbers: pd.Series) -> None:
        """Raise if most cells are numbers, but no format fits all cells."""
        if are_numbers.sum() <= MOSTLY * len(present):
            return
        if are_numbers.all():
            kinds = {("," in text, "." in text): text for text in present if not text.lstrip("+-").isdecimal()}
            raise ValueError(
                f"{self} holds numbers that are written in several ways, such as {listed(list(kinds.values())[:2])}; "
                "write them all in one way, as 1234,5 or as 1234.5."
            )
        odd = present[~are_numbers]
        shown = ", ".join(f"{text!r} in {self.place(row)}" for row, text in odd.iloc[:MOST_NAMED].items())
        more = f" and {len(odd) - MOST_NAMED} more" if len(odd) > MOST_NAMED else ""
        limits = odd.str.extract(r"^(<=?\s*(\d+(?:\.\d+)?))$").dropna()
        half = ""
        if len(limits):
            text, limit = limits.iloc[0]
            half = f" (if {text!r} is below a detection limit, often half of it: {float(limit) / 2:g})"
        raise ValueError(
            f"{self} holds numbers, but also texts: {shown}{more}; "
            f"{self._or(f'replace these texts by numbers{half} or empty cells')}."
        )

    def _or(self, remedy: str) -> str:
        return f"{remedy}, or {self.instead}" if self.instead else remedy

    def days(self, preferred: str = "") -> tuple[np.ndarray, str] | None:
        """Return dates as days since 1970, and their format in `DATES`; None if most cells are not dates.

        Missing dates become NaN.
        """
        present = self.present
        if len(present) and present.str.fullmatch(DATE_LIKE).sum() <= MOSTLY * len(present):
            return None
        readings = {}
        for written, (pattern, parts) in DATES.items():
            texts = present.where(present.str.match(pattern), "").str.replace(pattern, parts, regex=True)
            times = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
            readings[written] = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        found = self._read(readings, preferred)
        remedy = "write them as in 2024-12-31 or 2024-12-31 15:30"
        if found is None:
            row, odd = [*present[readings["year first"].isna()].items(), *present.items()][0]
            raise ValueError(
                f"{self} holds dates, but not all can be read in one way, such as {odd!r} in {self.place(row)}; "
                f"{self._or(remedy)}."
            )
        days, written, others = found
        if others and written != preferred:
            raise ValueError(
                f"{self} holds dates such as {present.iloc[0]!r}, where day and month are ambiguous; {remedy}."
            )
        return days, written


def without_marks(name: str) -> str:
    """Return a name in lower case without the marks above its letters, and with "u" in place of "ü" and of "ue"."""
    letters = unicodedata.normalize("NFKD", name)
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub("([aou])e", r"\1", plain.replace("ß", "ss"))


def listed(names: Sequence[object], most: int = 8) -> str:
    """Return a text that lists names (in quotes) or numbers. After `most` items, the text only counts the others."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def training_without(names: Sequence[str]) -> str:
    """Return advice to train without the columns `names`. The advice contains a command for the user to type."""
    columns = "the columns" if len(names) > 1 else "the column"
    return f"train without {columns} (pyro-bnn train --ignore {shlex.quote(','.join(names))})"
