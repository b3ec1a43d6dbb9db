"""The cells of a column of texts, as numbers, as times or as labels."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

MOSTLY = 0.5
"""Heuristic: if this share of a column is numbers or dates, its other cells are taken for mistakes."""


def _number(groups: str, decimal: str) -> re.Pattern[str]:
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:[{groups}]\d{{3}})+)" if groups else r"\d+"
    return re.compile(rf"[+-]?{whole}(?:[{decimal}]\d+)?(?:[eE][+-]?\d+)?")


BLANKS = " '\u2019\u00a0\u202f"
NUMBERS = {
    written: (_number(groups, decimal), groups, decimal)
    for written, groups, decimal in (
        ("1234,5", "", ","),
        ("1.234,5", ".", ","),
        ("1,234.5", ",", "."),
        ("1 234,5", BLANKS, ","),
        ("1 234.5", BLANKS, "."),
    )
}
"""How numbers may be written, by an example: the pattern, what groups their digits, and what is before decimals."""

DATES = {
    "year first": (re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?=$|[ T])"), r"\1-\2-\3"),
    "day first": (re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})(?=$|[ T])"), r"\3-\2-\1"),
    "month first": (re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})(?=$|[ T])"), r"\3-\1-\2"),
}
"""How dates may be written: the pattern, and how the parts are put in order."""

DATE_LIKE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([ T].*)?")


@dataclass(frozen=True)
class Cells:
    """The cells of a column.

    Args:
        name: Name of the column.
        shown: Where they are from, for messages.
        texts: The cells, shape (N,), by the number of the row in the file; missing ones are None.
        separator: What separates the cells in their file.
    """

    name: str
    shown: str
    texts: pd.Series
    separator: str = ","

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        return f"column {self.name!r} of {self.shown}"

    @cached_property
    def is_missing(self) -> np.ndarray:
        """Whether each cell is missing, shape (N,)."""
        return self.texts.isna().to_numpy()

    @property
    def present(self) -> list[str]:
        """The cells that are not missing."""
        return list(self.texts[~self.is_missing])

    @property
    def labels(self) -> np.ndarray:
        """The cells as names of classes, where truth values are written in one way; missing ones are empty."""
        truth = {"true": "True", "false": "False"}
        return np.array(
            [truth.get(text.lower(), text) for text in self.texts.where(~self.is_missing, "")], dtype=object
        )

    def row(self, which: np.ndarray) -> int:
        """Row number in the file of the first row that is True in a mask, shape (N,)."""
        return int(self.texts.index[which.argmax()])

    def numbers(self, preferred: str = "") -> tuple[np.ndarray, str] | None:
        """The cells as numbers, NaN for missing ones, and how they are written; None if they are texts.

        They are read as in `preferred`, a key of `NUMBERS`, if that is possible.
        """
        present = self.present
        plain = pd.to_numeric(pd.Series(present, dtype=object), errors="coerce").to_numpy(dtype=float)
        read = {"": plain} if not np.isnan(plain).any() else {}
        for written, (pattern, groups, decimal) in NUMBERS.items() if preferred or not read else ():
            if all(map(pattern.fullmatch, present)):
                table = str.maketrans(decimal, ".", groups)
                read[written] = np.array([float(text.translate(table)) for text in present])
        if not read:
            patterns = [pattern for pattern, _, _ in NUMBERS.values()]
            are_numbers = np.array([any(pattern.fullmatch(text) for pattern in patterns) for text in present])
            self._check_few(present, are_numbers | ~np.isnan(plain))
            return None
        written = preferred if preferred in read else next(iter(read))
        if written not in ("", preferred) and self.separator == ",":
            for other, values in read.items():
                if (values != read[written]).any():
                    raise ValueError(
                        f"{self} holds numbers such as {next(text for text in present if ',' in text)!r}, which may be "
                        f"written as in {written} or as in {other}; write them with a decimal point, and without "
                        "separators between thousands."
                    )
        numbers = self._filled(read[written])
        if np.isinf(numbers).any():
            row = self.row(np.isinf(numbers))
            raise ValueError(f"{self} holds an infinite number in row {row}; mend or remove it.")
        return numbers, written

    def _filled(self, values: np.ndarray) -> np.ndarray:
        """Numbers for the cells that are there, NaN for the others."""
        filled = np.full(len(self), np.nan)
        filled[~self.is_missing] = values
        return filled

    def _check_few(self, present: list[str], are_numbers: np.ndarray) -> None:
        """Raise if most cells are numbers."""
        if are_numbers.sum() <= MOSTLY * len(present):
            return
        if are_numbers.all():
            kinds = {("," in text, "." in text): text for text in present if not text.lstrip("+-").isdecimal()}
            raise ValueError(
                f"{self} holds numbers that are written in several ways, such as {listed(list(kinds.values())[:2])}; "
                "write them all in one way, as 1234,5 or as 1234.5."
            )
        raise ValueError(
            f"{self} holds numbers, but also texts such as {present[are_numbers.argmin()]!r}; make them numbers or "
            f"empty cells, or {training_without([self.name])}."
        )

    def days(self, preferred: str = "") -> tuple[np.ndarray, str] | None:
        """The cells as days since 1970, NaN for missing ones, and how dates are written; None if they are no dates.

        They are read as in `preferred`, a key of `DATES`, if that is possible.
        """
        present = self.present
        if sum(map(bool, map(DATE_LIKE.fullmatch, present))) <= MOSTLY * len(present):
            return None if present else (self._filled(np.empty(0)), preferred)
        read = {}
        for written, (pattern, parts) in DATES.items():
            texts = [pattern.sub(parts, text) if pattern.match(text) else "" for text in present]
            times = pd.to_datetime(pd.Series(texts), format="ISO8601", utc=True, errors="coerce")
            if not times.isna().any():
                read[written] = ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(dtype=float)
        remedy = "write them as in 2024-12-31 or 2024-12-31 15:30"
        if not read:
            odd = next((text for text in present if not DATES["year first"][0].match(text)), present[0])
            raise ValueError(
                f"{self} holds dates, but not all can be read in one way, such as {odd!r}; {remedy}, or "
                f"{training_without([self.name])}."
            )
        written = preferred if preferred in read else next(iter(read))
        if written != preferred and any((days != read[written]).any() for days in read.values()):
            raise ValueError(f"{self} holds dates such as {present[0]!r}, where day and month are not told; {remedy}.")
        return self._filled(read[written]), written


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in quotes for a message; of more than `most`, the rest are only counted."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def training_without(names: Sequence[str]) -> str:
    """The remedy for columns that cannot be used, for messages of all commands: only `train` has this option."""
    columns = "the columns" if len(names) > 1 else "the column"
    return f"train without {columns} (pyro-bnn train --ignore {shlex.quote(','.join(names))})"
