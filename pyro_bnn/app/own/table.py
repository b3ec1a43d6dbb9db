"""Rows of a table as inputs of a network, in training and later."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .cells import listed, training_without
from .features import NUM_HASHED, Feature, learned_feature
from .reading import Table

__all__ = ["TableEncoding", "checksum", "complete_rows", "feature_names", "learned_encoding"]


@dataclass(frozen=True)
class TableEncoding:
    """How rows of a table become inputs.

    Args:
        features: The columns that are used, in the order of the inputs.
    """

    features: list[Feature]

    @property
    def names(self) -> list[str]:
        """Names of the columns that are used."""
        return [feature.name for feature in self.features]

    @property
    def never_missing(self) -> list[str]:
        """Names of the columns that lacked no value in training."""
        return [feature.name for feature in self.features if not feature.has_missing]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return sum(feature.width for feature in self.features)

    def inputs(self, table: Table) -> Tensor:
        """The inputs of a table's rows, shape (N, D); an unseen category has no indicator.

        Raises:
            ValueError: If a column is missing, or a cell is not what it was in training.
        """
        table.require(self.names)
        parts = [feature.encoded(table.column(feature.name)) for feature in self.features]
        return torch.tensor(np.concatenate(parts, 1), dtype=torch.get_default_dtype())

    def unseen(self, table: Table) -> dict[str, list[str]]:
        """Categories in a table that training did not have, by column."""
        found = {feature.name: feature.unseen(table.column(feature.name)) for feature in self.features}
        return {name: categories for name, categories in found.items() if categories}

    def written_otherwise(self, table: Table) -> dict[str, str]:
        """How numbers are written in columns where that is not as in training, by column."""
        numbers = [feature for feature in self.features if feature.kind == "number"]
        found = {feature.name: table.column(feature.name).numbers(feature.written) for feature in numbers}
        return {
            feature.name: read[1]
            for feature in numbers
            if (read := found[feature.name]) is not None and read[1] != feature.written
        }


def learned_encoding(
    table: Table, names: Sequence[str], training: Sequence[int], *, wanted: Sequence[str]
) -> tuple[TableEncoding, list[str]]:
    """How rows become inputs, and sentences for the user on what was decided.

    Args:
        table: The table.
        names: The columns to predict from.
        training: Numbers of the training rows, from 0.
        wanted: Names of columns that the user wants, even if they only name or count the rows.

    Raises:
        ValueError: If a column cannot be an input, or none is left.
    """
    found = {name: learned_feature(table.column(name), training, is_wanted=name in wanted) for name in names}
    left_out = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    features = [feature for feature in found.values() if isinstance(feature, Feature)]
    notes = [f"Column {name!r} {reason}: it is left out." for name, reason in left_out.items()]
    if any("new ones" in reason for reason in left_out.values()):
        notes.append("To use a column nevertheless, name it among --features.")
    if not features:
        raise ValueError(f"{table.shown} has no column to predict from. {' '.join(notes)}")
    said = {
        "Missing values in {} become the mean or no category, and one more input says so.": [
            feature.name for feature in features if feature.has_missing
        ],
        "Dates in {} become days, and the time of year, week and day.": _of_kind(features, "date"),
        f"Texts in {{}} have many values: their letters become {NUM_HASHED} numbers.": _of_kind(features, "text"),
    }
    notes += [sentence.format(listed(columns)) for sentence, columns in said.items() if columns]
    return TableEncoding(features), notes


def feature_names(table: Table, *, target: str, features: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """The columns to predict from: those named, or all but the target, and without the ignored ones.

    Raises:
        ValueError: If a name is wrong, or no column is left.
    """
    table.require([target, *features, *ignore])
    names = [name for name in features or table.names if name != target and name not in ignore]
    if target in features:
        raise ValueError(f"the target {target!r} cannot be among --features; leave it out.")
    if not names:
        raise ValueError(
            f"{table.shown} has no column to predict {target!r} from; its columns are {listed(table.names)}."
        )
    return names


def complete_rows(table: Table, names: Sequence[str], *, drop: bool) -> np.ndarray:
    """Which rows have a value in all of the columns, shape (N,).

    Args:
        table: The table.
        names: The columns.
        drop: Whether rows may lack one.

    Raises:
        ValueError: If rows lack a value and may not, or all do.
    """
    missing = {name: table.column(name).is_missing for name in names}
    lacking = np.any([np.zeros(len(table), dtype=bool), *missing.values()], axis=0)
    where = [name for name in names if missing[name].any()]
    empty = [name for name in where if missing[name].all()]
    columns = f"column{'s' if len(empty or where) > 1 else ''} {listed(empty or where)}"
    if empty:
        raise ValueError(f"{table.shown} has no value in {columns}; fill some in, or {training_without(empty)}.")
    if lacking.any() and not drop:
        row = table.frame.index[lacking.argmax()]
        raise ValueError(
            f"{table.shown} lacks values in {columns}, in {lacking.sum()} of {len(table)} rows (the first is row "
            f"{row}), where training lacked none; fill them in, leave those rows out by --drop-missing, or "
            f"{training_without(where)}."
        )
    if lacking.all():
        raise ValueError(f"every row of {table.shown} lacks a value; fill some in, or {training_without(where)}.")
    return ~lacking


def checksum(table: Table, names: Sequence[str]) -> str:
    """SHA-256 of the names and cells of columns, as hexadecimal digits."""
    digest = hashlib.sha256()
    for name in names:
        cells = table.column(name)
        texts = "\x1e".join(cells.texts.where(~cells.is_missing, ""))
        digest.update(f"{name}\x1f{texts}\x1d".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _of_kind(features: Sequence[Feature], kind: str) -> list[str]:
    return [feature.name for feature in features if feature.kind == kind]
