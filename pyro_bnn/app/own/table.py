"""Rows of a table as inputs of a network, in training and later."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .columns import Feature, missing_rows, training_without
from .reading import Table, listed

__all__ = ["TableEncoding", "checksum", "complete_rows", "feature_names"]


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
    def width(self) -> int:
        """Number of inputs."""
        return sum(feature.width for feature in self.features)

    def inputs(self, table: Table) -> Tensor:
        """The inputs of a table's rows, shape (N, D); an unseen category has no indicator.

        Raises:
            ValueError: If a column is missing, or a cell is not what it was in training.
        """
        table.require(self.names)
        parts = np.concatenate([feature.encoded(table) for feature in self.features], 1)
        inputs = torch.tensor(parts, dtype=torch.get_default_dtype())
        if not bool(inputs.isfinite().all()):
            raise ValueError(f"{table.shown} holds numbers that are much larger than in training; mend them.")
        return inputs

    def unseen(self, table: Table) -> dict[str, list[str]]:
        """Categories in a table that training did not have, by column."""
        found = {feature.name: feature.unseen(table) for feature in self.features}
        return {name: categories for name, categories in found.items() if categories}


def feature_names(table: Table, *, target: str, features: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """The columns to predict from: those named, or all but the target, and without the ignored ones.

    Raises:
        ValueError: If a name is wrong, or no column is left.
    """
    table.require([target, *features, *ignore])
    names = [name for name in features or table.columns if name != target and name not in ignore]
    if target in features:
        raise ValueError(f"the target {target!r} cannot be among --features; leave it out.")
    if not names:
        raise ValueError(f"{table.shown} has no column to predict {target!r} from; its columns are "
                         f"{listed(list(table.columns))}.")  # fmt: skip
    return names


def complete_rows(table: Table, names: Sequence[str], *, drop: bool) -> list[int]:
    """Numbers of the rows, from 0, that have a value in all of the columns.

    Args:
        table: The table.
        names: The columns.
        drop: Whether rows may lack one.

    Raises:
        ValueError: If rows lack a value and may not, or all do.
    """
    empty = [name for name in names if all(text is None for text in table.column(name))]
    if empty:
        raise ValueError(
            f"{table.shown} has no value in {'columns' if len(empty) > 1 else 'column'} {listed(empty)}; fill some in, "
            f"or {training_without(empty)}."
        )
    lacking = missing_rows(table, names)
    where = [name for name in names if any(text is None for text in table.column(name))]
    if lacking and not drop:
        raise ValueError(
            f"{table.shown} lacks values in {'columns' if len(where) > 1 else 'column'} {listed(where)}, in "
            f"{len(lacking)} of {len(table)} rows (the first is row {lacking[0] + 1}); fill them in, leave those rows "
            f"out by --drop-missing, or {training_without(where)}."
        )
    if len(lacking) == len(table):
        raise ValueError(f"every row of {table.shown} lacks a value; fill some in, or {training_without(where)}.")
    incomplete = {*lacking}
    return [row for row in range(len(table)) if row not in incomplete]


def checksum(table: Table, names: Sequence[str]) -> str:
    """SHA-256 of the names and cells of columns, as hexadecimal digits."""
    digest = hashlib.sha256()
    for name in names:
        cells = "\x1e".join("" if text is None else text for text in table.column(name))
        digest.update(f"{name}\x1f{cells}\x1d".encode(errors="surrogatepass"))
    return digest.hexdigest()
