"""The data of runs, from wherever they are: image sets, tables, arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import images
from .config import RunConfig
from .datasets import Dataset, Facts
from .own.arrays import array_checksum, array_labels, learned_arrays, numeric_targets, read_arrays
from .own.columns import has_decimal_commas, labels_of, learned_features, numbers_of
from .own.reading import Table, listed, read_table
from .own.splitting import split_rows
from .own.table import TableEncoding, checksum, complete_rows, feature_names
from .own.targets import Target, guessed, learned_classes, learned_numbers

__all__ = ["Look", "Sample", "first_look", "load", "read_sample", "trained_on"]


def load(
    config: RunConfig, *, root: str | Path | None = None, download: bool = False, facts: Facts | None = None
) -> Dataset:
    """The data of a run.

    Args:
        config: The run.
        root: Of an image set the folder, as for :func:`~pyro_bnn.data.load_images`; of a table or of arrays the file,
            if it is not where it was.
        download: Whether to fetch missing files of an image set.
        facts: What the run's folder says of the data; None for a new run, which learns means, scales and categories.

    Raises:
        FileNotFoundError: If there are no data.
        ValueError: If something is wrong with them.
    """
    if config.kind == "images":
        return images.load_data(config, root=root, download=download)[0]
    path = Path(config.dataset if root is None else root)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file {path}; pass the file of the run's data where it is now (--data FILE)."
        )
    return (_load_table if config.kind == "table" else _load_arrays)(config, path, facts)


def trained_on(config: RunConfig, data: Dataset) -> str:
    """A sentence on the training rows."""
    if config.kind == "images":
        held_out = f" (classes {', '.join(map(str, config.hold_out))} are held out)" if config.hold_out else ""
        return f"Trained on {len(data.x_train)} images of {len(data.classes)} classes{held_out}."
    shape = " x ".join(map(str, data.facts.input_shape))
    what = (
        f"{len(data.classes)} classes of {data.facts.target.name!r}" if data.classes else f"{data.facts.target.name!r}"
    )
    return f"Trained on {len(data.x_train)} rows of {shape} inputs for {what}; {len(data.x_test)} rows are set aside."


# --- tables -----------------------------------------------------------------------------------------------------------


def _load_table(config: RunConfig, path: Path, facts: Facts | None) -> Dataset:
    table = read_table(path)
    names = feature_names(table, target=config.target, features=config.features, ignore=config.ignore)
    used = [*names, config.target]
    kept = complete_rows(table, used, drop=config.drop_missing)
    notes = [] if len(kept) == len(table) else [f"Rows left out because they lack a value: {len(table) - len(kept)}."]
    table = table.rows(kept) if len(kept) < len(table) else table
    texts, shown = table.column(config.target), table.shown
    is_class = config.likelihood == "categorical"
    labels = labels_of(texts) if is_class else None
    training, testing = split_rows(len(table), config.test_fraction, seed=config.split_seed, labels=labels)
    if facts is None:
        features, constant = learned_features(table, names, training)
        notes += [f"Column {name!r} is the same in all training rows and is left out." for name in constant]
        notes += [
            f"Column {name!r} counts the rows, and says nothing of new ones: leave it out by --ignore {name}."
            for name in names
            if _counts_rows(table, name)
        ]
        notes += _noted_commas(table, names if is_class else used)
        encoding = TableEncoding(features)
        target = _learned_target(config, table, training)
    elif facts.table is None:
        raise ValueError(f"the run was not trained on a table, but {path} is one.")
    else:
        encoding, target = facts.table, facts.target
    x, y = encoding.inputs(table), target.encoded(texts, shown, allows_commas=table.allows_commas)
    found = Facts(checksum(table, used), len(training), len(testing), [encoding.width], target, encoding, None)
    return Dataset(x[training], y[training], x[testing], y[testing], found, tuple(notes))


def _noted_commas(table: Table, names: Sequence[str]) -> list[str]:
    found = [name for name in names if table.allows_commas and has_decimal_commas(table.column(name))]
    return [f"Commas in {listed(found)} are decimal commas: 1,5 is read as 1.5."] if found else []


def _counts_rows(table: Table, name: str) -> bool:
    numbers = numbers_of(name, table.column(name), table.shown, allows_commas=table.allows_commas)
    return numbers is not None and len(numbers) > 2 and bool((np.diff(numbers) == 1).all())


def _learned_target(config: RunConfig, table: Table, training: list[int]) -> Target:
    texts = table.column(config.target)
    if config.likelihood == "categorical":
        return learned_classes(config.target, labels_of(texts), table.shown)
    numbers = numbers_of(config.target, texts, table.shown, allows_commas=table.allows_commas)
    if numbers is None:
        raise ValueError(
            f"the target {config.target!r} in {table.shown} holds texts such as {next(filter(None, texts))!r}, and "
            f"--likelihood {config.likelihood} needs numbers; choose categorical."
        )
    return learned_numbers(config.target, numbers[training][:, None], config.likelihood, table.shown)


# --- arrays -----------------------------------------------------------------------------------------------------------


def _load_arrays(config: RunConfig, path: Path, facts: Facts | None) -> Dataset:
    arrays = read_arrays(path)
    shown = str(path)
    (x, y), test = _parts(arrays, shown)
    is_class = config.likelihood == "categorical"
    if test is None:
        labels = array_labels(y, shown) if is_class else None
        training, testing = split_rows(len(x), config.test_fraction, seed=config.split_seed, labels=labels)
        (x, y), test = (x[training], y[training]), (x[testing], y[testing])
    elif x.shape[1:] != test[0].shape[1:]:
        raise ValueError(f"`x_test` in {shown} must have rows of shape {x.shape[1:]}, got {test[0].shape[1:]}.")
    if facts is None:
        keep_whole = config.net != "mlp"
        standardize = config.inputs == "standardized"
        encoding = learned_arrays(x, standardize=standardize, keep_whole=keep_whole, shown=shown)
        if is_class:
            target = learned_classes("y", [*array_labels(y, shown), *array_labels(test[1], shown)], shown)
        else:
            target = learned_numbers("y", numeric_targets(y, shown), config.likelihood, shown)
    elif facts.arrays is None:
        raise ValueError(f"the run was not trained on arrays, but {path} holds some.")
    else:
        encoding, target = facts.arrays, facts.target
    named = (("y", x, y), ("y_test", *test))
    sets = [(encoding.inputs(a, shown), _array_targets(target, b, shown, name)) for name, a, b in named]
    found = Facts(array_checksum(arrays), len(x), len(test[0]), encoding.shape, target, None, encoding)
    return Dataset(*sets[0], *sets[1], found)


Pair = tuple[np.ndarray, np.ndarray]


def _parts(arrays: Mapping[str, np.ndarray], shown: str) -> tuple[Pair, Pair | None]:
    """Training rows, and test rows if there are some."""
    found = []
    for x, y in _pairs(arrays, shown):
        if len(arrays[x]) != len(arrays[y]):
            raise ValueError(
                f"`{x}` and `{y}` in {shown} must have as many rows, got {len(arrays[x])} and {len(arrays[y])}."
            )
        found.append((arrays[x], arrays[y]))
    return found[0], found[1] if len(found) > 1 else None


def _pairs(arrays: Mapping[str, np.ndarray], shown: str) -> list[tuple[str, str]]:
    """Names of the arrays of training rows, and of test rows if there are some."""
    whole, training, testing = ("x", "y"), ("x_train", "y_train"), ("x_test", "y_test")
    if any(name in arrays for name in whole) and any(name in arrays for name in training):
        raise ValueError(
            f"{shown} holds {listed([*arrays])}: the rows to train on are x and y, or x_train and y_train; leave one "
            "pair out."
        )
    names = training if "x_train" in arrays else whole
    if any(name not in arrays for name in names):
        raise ValueError(f"{shown} must hold arrays x and y, or x_train and y_train, but it holds {listed([*arrays])}.")
    given = [name for name in testing if name in arrays]
    if len(given) == 1:
        other = next(name for name in testing if name not in given)
        raise ValueError(f"{shown} holds {given[0]!r} but no {other!r}; add it, or leave {given[0]!r} out.")
    return [names, testing] if given else [names]


def _array_targets(target: Target, y: np.ndarray, shown: str, name: str = "y") -> Tensor:
    if target.is_class:
        return target.encoded([*array_labels(y, shown)], shown) if len(y) else torch.zeros(0, dtype=torch.int64)
    numbers = numeric_targets(y, shown)
    if numbers.shape[1] != target.size:
        expected = "(N,) or (N, 1)" if target.size == 1 else f"(N, {target.size})"
        raise ValueError(
            f"`{name}` in {shown} must have shape {expected}, as in training, got {y.shape}; give every row the "
            f"targets of training, or leave `{name}` out."
        )
    return target.standardized(numbers)


# --- new runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What a first look at a file shows.

    Args:
        likelihood: The likelihood that its targets suggest.
        reason: A sentence that says why.
        num_rows: Number of rows for training and test together, or for training where the file has test rows.
        has_test_rows: Whether the file says which rows are for testing.
    """

    likelihood: str
    reason: str
    num_rows: int
    has_test_rows: bool = False


def first_look(config: RunConfig) -> Look:
    """What a first look at the file of a new run shows.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If something is wrong with it.
    """
    path = Path(config.dataset)
    if config.kind == "table":
        table = read_table(path)
        texts = table.column(config.target)
        return Look(*guessed(config.target, texts, table.shown, allows_commas=table.allows_commas), len(table))
    (x, y), test = _parts(read_arrays(path), str(path))
    if y.dtype.kind == "f":
        reason = "`y` holds floating-point numbers: regression with Gaussian noise, whose size is learned."
        return Look("gaussian", reason, len(x), test is not None)
    reason = f"`y` holds labels ({y.dtype}): classification (for numbers: --likelihood gaussian)."
    return Look("categorical", reason, len(x), test is not None)


# --- new rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """New rows to predict.

    Args:
        x: Inputs, shape (N, ...).
        y: Targets; None if the file has none. They are 0 in rows that lack one.
        has_target: Whether each row has a target, shape (N,); None if all have one, or none has.
        rows: Number of each row in its file, from 1.
        kept: Columns of the file that are copied beside the predictions.
        notes: Sentences for the user on what was done to the rows.
    """

    x: Tensor
    y: Tensor | None
    rows: list[int]
    kept: Mapping[str, list[str]]
    notes: tuple[str, ...] = ()
    has_target: Tensor | None = None

    @property
    def num_scored(self) -> int:
        """Number of rows with a target."""
        if self.y is None:
            return 0
        return len(self.y) if self.has_target is None else int(self.has_target.sum())


def read_sample(
    config: RunConfig,
    facts: Facts,
    path: Path,
    *,
    keep: tuple[str, ...] = (),
    drop_missing: bool = False,
    allow_unseen: bool = False,
) -> Sample:
    """Rows of a file, as the network of a trained run takes them.

    Args:
        config: The run.
        facts: What its folder says of its data.
        path: A table for a run on a table, else arrays: ``x``, or ``x_test``, with ``y`` or ``y_test`` if it is there.
        keep: Columns of a table that are copied beside the predictions.
        drop_missing: Whether rows of a table that lack a value to predict from are left out. A target may be missing.
        allow_unseen: Whether cells may hold categories that training did not have.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the rows do not fit the run.
    """
    if config.kind == "table":
        return _table_sample(config, facts, path, keep, drop_missing, allow_unseen)
    if keep:
        raise ValueError("--keep goes with tables only.")
    return _array_sample(config, facts, path)


def _table_sample(
    config: RunConfig, facts: Facts, path: Path, keep: tuple[str, ...], drop_missing: bool, allow_unseen: bool
) -> Sample:
    assert facts.table is not None
    table = read_table(path)
    table.require([*facts.table.names, *keep])
    rows = complete_rows(table, facts.table.names, drop=drop_missing)
    notes = [] if len(rows) == len(table) else [f"Rows left out because they lack a value: {len(table) - len(rows)}."]
    table = table.rows(rows) if len(rows) < len(table) else table
    unseen = facts.table.unseen(table)
    said = "; ".join(f"column {name!r} holds {listed(found, 3)}" for name, found in unseen.items())
    if unseen and not allow_unseen:
        raise ValueError(
            f"{path} holds categories that training did not have: {said}; mend them, or predict without their effect "
            "by --allow-unseen."
        )
    notes += [f"Categories that training did not have count as none of those it had: {said}."] if unseen else []
    y, has_target, said_of_targets = _known_targets(facts.target, config.target, table)
    names = keep or tuple(name for name in config.ignore if name in table.columns)
    kept = {name: [text or "" for text in table.column(name)] for name in names}
    x, numbers = facts.table.inputs(table), [row + 1 for row in rows]
    return Sample(x, y, numbers, kept, (*notes, *said_of_targets), has_target)


def _known_targets(target: Target, name: str, table: Table) -> tuple[Tensor | None, Tensor | None, list[str]]:
    """The targets of new rows, which of the rows have one, and what is to be said; targets are not needed."""
    if name not in table.columns:
        return None, None, []
    texts = table.column(name)
    known = [row for row, text in enumerate(texts) if text is not None]
    if not known:
        return None, None, [f"No scores: no row of {table.shown} has the target {name!r}."]
    try:
        found = target.encoded([texts[row] for row in known], table.shown, allows_commas=table.allows_commas)
    except ValueError as error:
        return None, None, [f"No scores: {error}"]
    if len(known) == len(texts):
        return found, None, []
    y, has_target = found.new_zeros(len(texts), *found.shape[1:]), torch.zeros(len(texts), dtype=torch.bool)
    y[known], has_target[known] = found, True
    return (
        y,
        has_target,
        [f"Rows without the target {name!r} are predicted, but not scored: {len(texts) - len(known)}."],
    )


def _array_sample(config: RunConfig, facts: Facts, path: Path) -> Sample:
    if path.suffix.lower() != ".npz":
        raise ValueError(f"{path} must be a file of arrays (*.npz), like the run's data.")
    arrays = read_arrays(path)
    shown = str(path)
    name = next((name for name in ("x", "x_test") if name in arrays), None)
    if name is None:
        raise ValueError(f"{shown} must hold an array x (or x_test), got {listed([*arrays])}.")
    target = arrays.get(name.replace("x", "y", 1))
    x = _pixels(arrays[name], facts, shown) if facts.arrays is None else facts.arrays.inputs(arrays[name], shown)
    if target is not None and len(target) != len(x):
        raise ValueError(f"`x` and `y` in {shown} must have as many rows, got {len(x)} and {len(target)}.")
    y = None if target is None else _array_targets(facts.target, target, shown)
    notes = ("Predicted are the rows of `x`, not those of `x_test`.",) if {"x", "x_test"} <= arrays.keys() else ()
    return Sample(x, y, [*range(1, len(x) + 1)], {}, notes)


def _pixels(x: np.ndarray, facts: Facts, shown: str) -> Tensor:
    """Images for a run on an image set, whose pixels lie in [0, 1]; bytes are divided by 255."""
    if [*x.shape[1:]] != facts.input_shape or x.dtype.kind not in "fiu":
        raise ValueError(
            f"`x` in {shown} must hold images of shape (N, {', '.join(map(str, facts.input_shape))}), got {x.dtype} of "
            f"shape {x.shape}."
        )
    x = x / 255 if x.dtype == np.uint8 else x
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError(f"pixels in {shown} must be numbers in [0, 1], or bytes, got {x.min():g} to {x.max():g}.")
    return torch.from_numpy(np.asarray(x, dtype=np.float64)).to(torch.get_default_dtype())
