"""Describes the columns of a table: their types, their missing values, and how each becomes inputs of the network."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..._core.summary import counted
from ..config import RunConfig
from ..numbers import percent, six_digits
from .amounts import FORMAT, numbers_or_amounts
from .cells import Cells
from .doubts import doubts_about
from .encoding import Feature, TableEncoding
from .reading import Table
from .targets import Target

MARKED = {
    "number": "missing ones become the mean, and an input marks them",
    "date": "missing ones become the mean, and an input marks them",
    "category": "an input marks missing ones",
    "text": "missing ones become zeros, and an input marks them",
}
DATE_PARTS = ("number of days", *("time of year", "time of week", "time of day") * 2)  # the sines, then the cosines


@dataclass(frozen=True)
class Column:
    """A column of a table, in words for the report on a run."""

    name: str
    kind: str  # number, date, category or text
    missing: float  # share of the rows of the file
    use: str  # how it becomes inputs, or why it is left out
    values: str  # the range of numbers or dates, or the number of categories; empty for a column that is left out
    doubts: list[str] = field(default_factory=list)  # sentences on what may be mistakes in the column

    @property
    def is_left_out(self) -> bool:
        """Whether the network does not use the column."""
        return self.use.startswith("left out")


def describe_columns(
    config: RunConfig, table: Table, encoding: TableEncoding, target: Target, start: str
) -> list[Column]:
    """Describe each column of a run's table, in the order of the file. `start` is what `start_of_tests` returned."""
    features = {feature.name: feature for feature in encoding.features}
    found = []
    for name in table.names:
        cells = table.column(name)
        if name == config.target:
            kind, use = ("category" if target.is_class else "number"), _target_in_words(target)
        elif name in features:
            kind, use = features[name].kind, _use_in_words(features[name])
        else:
            kind, use = _kind_of(cells), _why_left_out(config, encoding.identifiers, cells)
        is_used = name == config.target or name in features
        values = values_in_words(cells, kind) if is_used else ""
        doubts = doubts_about(cells, kind, is_target=name == config.target) if is_used else []
        by = f"; the rows are split by it, test rows: {start}" if name == config.split_by else ""
        found.append(Column(name, kind, float(cells.is_missing.mean()), f"{use}{by}", values, doubts))
    return found


def start_of_tests(cells: Cells, testing: Sequence[int]) -> str:
    """Say how many test rows there are and where they begin, as in "60, from 2024-05-01; dates read day first"."""
    numbers = cells.numbers()
    values, written = numbers or cells.days() or (np.zeros(0), "")
    if not testing:
        return "none"
    if numbers:
        return f"{len(testing):,}, from {values[testing].min():.10g}"
    return f"{len(testing):,}, from {pd.Timestamp(values[testing].min(), unit='D').date()}; dates read {written}"


def values_in_words(cells: Cells, kind: str) -> str:
    """Return the range and the median of numbers, the first and last date, or the number of different texts."""
    if cells.is_missing.all():
        return ""
    with suppress(ValueError):  # the target may have cells in the test rows that are no numbers
        if kind == "number" and (found := numbers_or_amounts(cells)):
            sign = re.fullmatch(FORMAT, found[1]) or {"before": "", "after": ""}
            numbers = (six_digits(float(part)) for part in np.nanquantile(found[0], (0, 0.5, 1)))
            least, middle, most = (f"{sign['before']}{number}{sign['after']}" for number in numbers)
            return f"{least} to {most}, median {middle}"
        if kind == "date" and (found := cells.days()):
            first, last = (str(pd.Timestamp(days, unit="D").date()) for days in np.nanquantile(found[0], (0, 1)))
            return f"{first} to {last}"
    counts = pd.Series(cells.labels[~cells.is_missing]).value_counts()
    often = (
        f", most often “{counts.index[0]}” ({percent(counts.iloc[0] / counts.sum(), 0)})" if counts.iloc[0] > 1 else ""
    )
    return f"{len(counts):,} different{often}"


def _target_in_words(target: Target) -> str:
    if target.is_class:
        return f"target, {counted(len(target.classes), 'class')}"
    is_scaled = target.mean != [0.0] or target.scale != [1.0]
    return "target, standardised" if is_scaled else "target, as it is"


def _use_in_words(feature: Feature) -> str:
    parts = list(dict.fromkeys(DATE_PARTS[part] for part in feature.parts)) if feature.kind == "date" else []
    width = feature.width - feature.has_missing
    use = {
        "number": "standardised",
        "date": f"{counted(width, 'input')}: {', '.join(parts)}",
        "category": f"one-hot with {counted(width, 'value')}",
        "text": f"{width} numbers from its letters",
    }[feature.kind]
    if not width:
        return "an input says whether it is missing"
    return f"{use}; {MARKED[feature.kind]}" if feature.has_missing else use


def _kind_of(cells: Cells) -> str:
    if cells.is_missing.all():
        return "none"
    try:
        return "number" if numbers_or_amounts(cells) else "date" if cells.days() else "text"
    except ValueError:  # some cells do not fit the others, which does not matter here
        return "text"


def _why_left_out(config: RunConfig, identifiers: Sequence[str], cells: Cells) -> str:
    if cells.name in config.ignore:
        return "left out by --ignore"
    if config.features and cells.name not in config.features:
        return "left out, since it is not in --features"
    if cells.name in identifiers:
        return "left out: it names or counts the rows"
    return "left out: it holds no value" if cells.is_missing.all() else "left out: the same in all training rows"
