"""Loads the data of runs: image sets, tables and arrays."""

import shlex
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._core.summary import counted
from ..results.calibration import fewest_rows, set_aside
from . import datasets
from .config import RunConfig
from .datasets import Dataset, Facts, check_same
from .own.amounts import on_lost_unit, said_of
from .own.arrays import (
    array_checksum,
    array_labels,
    input_frame,
    learned_arrays,
    numeric_targets,
    pairs_of,
    pixels,
    read_arrays,
)
from .own.cells import Cells, listed
from .own.columns import describe_columns, start_of_tests
from .own.encoding import has_name_of_identifier, learned_encoding
from .own.reading import WARNING, Table, checksum, complete, feature_names, read_table
from .own.targets import Target, guessed, learned_classes, learned_numbers, target_labels, target_numbers

MOST_CERTAIN = 0.95  # largest level that `pyro-bnn evaluate` measures; --calibrate must hold out enough rows for it
FEWEST_HELD_OUT = fewest_rows(MOST_CERTAIN)
FEWEST_ROWS, FEW_ROWS = 10, 50  # heuristic: with fewer rows, nothing can be learned, or little


def load(
    config: RunConfig, *, root: str | Path | None = None, download: bool = False, facts: Facts | None = None
) -> Dataset:
    """Load the data of a run: images from the folder `root`, or the user's file `root`.

    If `root` is None, load the images from the default folder, or the file that `config` names.
    """
    if config.kind == "images":
        return datasets.load_data(config, root=root, download=download)[0]
    path = _near(config.dataset if root is None else root)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}; pass the file with the run's data (--data FILE).")
    return (_load_table if config.kind == "table" else _load_arrays)(config, path, facts)


def _near(path: str | Path) -> Path:
    """Return a short path for messages: relative if the file is in the current folder."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def trained_on(config: RunConfig, data: Dataset) -> str:
    """Describe the training rows in a sentence."""
    if config.kind == "images":
        held_out = f" (classes {', '.join(map(str, config.hold_out))} are held out)" if config.hold_out else ""
        return f"Trained on {len(data.x_train)} images of {len(data.classes)} classes{held_out}."
    shape = " x ".join(map(str, data.facts.input_shape))
    inputs = "1 input" if shape == "1" else f"{shape} inputs"
    classes = f"{len(data.classes)} classes of " if data.classes else ""
    what = f"{classes}{data.facts.target.name!r}"
    table = data.facts.table
    origin = "" if table is None or len(table.features) == table.width else f" from {len(table.features)} columns"
    calibrate = "" if data.held_out is None else f", and {counted(len(data.held_out[0]), 'row')} for calibration"
    return (
        f"Trained on {counted(len(data.x_train), 'row')} of {inputs}{origin} for {what}. Held out: "
        f"{counted(len(data.x_test), 'test row')}{calibrate}."
    )


def split_rows(
    num_rows: int, fraction: float, *, seed: int, labels: Sequence[Hashable] | None = None
) -> tuple[list[int], list[int]]:
    """Divide rows at random, in the same ratio for each class of `labels`. Return sorted training and test indices."""
    _check_enough(num_rows)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).tolist()
    groups: dict[Hashable, list[int]] = {}
    for row in order:
        groups.setdefault(None if labels is None else labels[row], []).append(row)
    test: list[int] = []
    owed = 0.0  # test rows still to take; a fraction of a row is carried over to the next class
    for rows in groups.values():
        owed += fraction * len(rows)
        taken = min(round(owed), len(rows) - 1)
        owed -= taken
        test += rows[:taken]
    chosen = {*test}
    return [row for row in range(num_rows) if row not in chosen], sorted(chosen)


def last_rows(cells: Cells, fraction: float) -> tuple[list[int], list[int]]:
    """Return the indices of the earlier rows (for training) and of the latest rows (for tests), in ascending order."""
    _check_enough(len(cells))
    cells = replace(cells, instead="choose another --split-by")
    values = cells.numbers() or cells.days()
    if values is None or cells.is_missing.any():
        got = cells.first_text if values is None else f"an empty cell in {cells.place(cells.row(cells.is_missing))}"
        raise ValueError(
            f"{cells} must hold a number or a date in each row to split by it, got {got}; choose another --split-by."
        )
    order = np.argsort(values[0], kind="stable")
    num_training = min(max(round((1 - fraction) * len(cells)), 1), len(cells))
    return sorted(order[:num_training].tolist()), sorted(order[num_training:].tolist())


def without_held_out(
    training: Sequence[int], config: RunConfig, cells: Cells | None = None
) -> tuple[list[int], list[int]]:
    """Divide training rows into rows for the fit and rows for calibration: the latest by `cells`, or random ones."""
    if not config.calibrate:
        return [*training], []
    if cells is None:
        fitted, held_out = set_aside("--calibrate", len(training), config.calibrate, config.split_seed)
    else:
        fitted, held_out = last_rows(replace(cells, texts=cells.texts.iloc[[*training]]), config.calibrate)
    if len(held_out) < FEWEST_HELD_OUT:
        remedy = "raise it" if len(training) >= 2 * FEWEST_HELD_OUT else "add rows"
        raise ValueError(
            f"--calibrate {config.calibrate:g} holds out {len(held_out)} of {len(training)} training rows, and "
            f"intervals of {100 * MOST_CERTAIN:.0f} % need {FEWEST_HELD_OUT}; {remedy}, or leave it out."
        )
    return [training[row] for row in fitted], [training[row] for row in held_out]


def _check_enough(num_rows: int) -> None:
    if num_rows < FEWEST_ROWS:
        raise ValueError(f"there are too few rows to learn from: at least {FEWEST_ROWS} are needed, got {num_rows}.")


def _on_few(num_training: int, num_test: int) -> list[str]:
    """Return a warning if a table or arrays have few rows."""
    if num_training + num_test >= FEW_ROWS:
        return []
    rows = f"{counted(num_training, 'row')} to train on and {counted(num_test, 'test row')}"
    return [f"{WARNING} {rows} are very few: neither the predictions nor their scores are reliable."]


def _load_table(config: RunConfig, path: Path, facts: Facts | None) -> Dataset:
    table = read_table(path, header=config.header)
    names = feature_names(table, target=config.target, features=config.features, ignore=config.ignore)
    used = [*names, config.target, *([config.split_by] if config.split_by else [])]
    digest = checksum(table, used)
    check_same(config, facts, digest, path)
    file, table = table, complete(table, [config.target], what="the target")
    if config.drop_missing:
        table = complete(table, used)
    try:
        return _divided(config, file, table, names, digest, facts)
    except ValueError as error:  # the notes may name its cause, such as rows that were left out
        raise ValueError(" ".join([str(error), *table.notes])) from error


def _divided(config: RunConfig, file: Table, table: Table, names: list[str], sha: str, facts: Facts | None) -> Dataset:
    """Divide the rows of `table`, which are all or some rows of `file`, into training, calibration and test rows."""
    notes = [*table.notes]
    cells = table.column(config.target)
    labels = target_labels(cells) if config.likelihood == "categorical" else None
    by = table.column(config.split_by) if config.split_by else None
    if by is not None:
        training, testing = last_rows(by, config.test_fraction)
    else:
        training, testing = split_rows(len(table), config.test_fraction, seed=config.split_seed, labels=labels)
    start = "" if by is None else start_of_tests(by, testing)
    training, held_out = without_held_out(training, config, by)
    if facts is None:
        encoding, said = learned_encoding(table, names, training, wanted=config.features)
        if labels:
            target = learned_classes(config.target, labels, table.shown)
        else:
            numbers, written = target_numbers(cells)
            target = learned_numbers(config.target, numbers[training][:, None], config.likelihood, table.shown)
            target = replace(target, written=written)
        notes += [
            *([f"Test rows: {start}."] if start else []),
            *_on_few(len(training), len(testing)),
            *said,
            *_on_numbers({**encoding.written, target.name: target.written}),
        ]
        if (dates := encoding.columns("date")) and testing and not config.split_by:
            notes.append(
                f"Test rows are chosen at random, though column {dates[0]!r} holds dates; to test on the latest rows, "
                f"pass --split-by {shlex.quote(dates[0])}."
            )
    else:
        assert facts.table is not None
        encoding, target = facts.table, facts.target
    columns = facts.columns if facts else describe_columns(config, file, encoding, target, start)
    notes += [f"{WARNING} {doubt}" for column in columns for doubt in column.doubts if facts is None]
    x, y = encoding.inputs(table), target.encoded(cells)
    found = Facts(sha, len(training), len(testing), [encoding.width], target, encoding, None, columns)
    calibrating = (x[held_out], y[held_out]) if held_out else None
    rows = tuple(table.frame.index[testing].tolist())
    parts = x[training], y[training], x[testing], y[testing], found, tuple(notes), calibrating
    return Dataset(*parts, rows, table.frame[encoding.names].iloc[testing])


def _on_numbers(written: Mapping[str, str]) -> list[str]:
    """Return notes on columns whose numbers are not written as in 1234.5. There is one note for each such format."""
    return [
        said_of(form, listed([name for name in written if written[name] == form]))
        for form in sorted({*written.values()} - {""})
    ]


def _load_arrays(config: RunConfig, path: Path, facts: Facts | None) -> Dataset:
    arrays, shown = read_arrays(path), str(path)
    digest = array_checksum(arrays)
    check_same(config, facts, digest, path)
    is_class = config.likelihood == "categorical"
    (x, y), test = pairs_of(arrays, shown, checks_targets=not is_class)
    testing = [] if test is None else [*range(len(test[0]))]
    if test is None:
        labels = target_labels(array_labels("y", y, shown)) if is_class else None
        training, testing = split_rows(len(x), config.test_fraction, seed=config.split_seed, labels=labels)
        (x, y), test = (x[training], y[training]), (x[testing], y[testing])
    elif x.shape[1:] != test[0].shape[1:]:
        raise ValueError(f"`x_test` in {shown} must have rows of shape {x.shape[1:]}, got {test[0].shape[1:]}.")
    fitted, held_out = without_held_out(range(len(x)), config)
    named = [("y", x[fitted], y[fitted]), ("y_test", *test), *([("y", x[held_out], y[held_out])] if held_out else [])]
    if facts is None:
        x, y = x[fitted], y[fitted]
        standardize = config.inputs == "standardized"
        encoding = learned_arrays(x, standardize=standardize, keep_whole=config.net != "mlp", shown=shown)
        if is_class:
            labels = [label for name, _, part in named for label in target_labels(array_labels(name, part, shown))]
            target = learned_classes("y", labels, shown)
        else:
            target = learned_numbers("y", numeric_targets(y, shown), config.likelihood, shown)
    else:
        assert facts.arrays is not None
        encoding, target = facts.arrays, facts.target
    sets = [(encoding.inputs(a, shown), _array_targets(target, b, shown, name)) for name, a, b in named]
    found = Facts(digest, len(fitted), len(test[0]), encoding.shape, target, None, encoding, [])
    calibrating, rows = sets[2] if held_out else None, tuple(row + 1 for row in testing)
    inputs = input_frame(test[0]) if len(encoding.shape) == 1 else None
    notes = tuple(_on_few(len(fitted), len(test[0])))
    return Dataset(*sets[0], *sets[1], found, notes, calibrating, rows, inputs)


def _array_targets(target: Target, y: np.ndarray, shown: str, name: str = "y") -> Tensor:
    if target.is_class:
        return target.encoded(array_labels(name, y, shown))
    numbers = numeric_targets(y, shown)
    if numbers.shape[1] != target.size:
        expected = "(N,) or (N, 1)" if target.size == 1 else f"(N, {target.size})"
        raise ValueError(
            f"`{name}` in {shown} must have shape {expected}, as in training, got {y.shape}; give every row the "
            f"targets of training, or leave `{name}` out."
        )
    return target.standardized(numbers, shown)


def first_look(config: RunConfig, *, guesses: bool) -> tuple[str, str, int, bool]:
    """Return the likelihood, the reason for it, the number of rows, and whether there are separate test rows."""
    path = _near(config.dataset)
    if config.kind == "table":
        table = read_table(path, header=config.header)
        likelihood, reason = guessed(table.column(config.target)) if guesses else (config.likelihood, "")
        return likelihood, reason, len(table), False
    (x, y), test = pairs_of(read_arrays(path), str(path), checks_targets=False)
    if y.dtype.kind == "f":
        return "gaussian", "`y` holds floating-point numbers: regression.", len(x), test is not None
    reason = f"`y` holds labels ({y.dtype}): classification (for numbers: --likelihood gaussian)."
    return "categorical", reason, len(x), test is not None


@dataclass(frozen=True)
class Sample:
    """New rows to predict."""

    x: Tensor  # (N, ...)
    y: Tensor | None  # targets, 0 in rows that lack one; None if the file has none
    has_target: Tensor  # whether each row has a target, (N,)
    rows: list[int]  # number of each row in its file, from 1
    kept: Mapping[str, list[str]]  # columns of the file to copy beside the predictions
    notes: tuple[str, ...] = ()  # sentences that tell the user how the rows were processed
    outside: Sequence[str] | None = None  # for each row of a table, its columns that are unlike those of training


def read_sample(
    config: RunConfig,
    facts: Facts,
    path: Path,
    *,
    keep: tuple[str, ...] = (),
    drop_missing: bool = False,
    allow_unseen: bool = False,
) -> Sample:
    """Read the rows of a file, and encode them for the network of a trained run."""
    if config.kind != "table":
        if keep:
            raise ValueError("--keep goes with tables only.")
        return _array_sample(facts, path)
    encoding = facts.table
    assert encoding is not None
    table = read_table(path, header=config.header)
    if not config.header:
        encoding.check_places(table, config.target)
    table.require(keep)
    table.require(encoding.names, is_typed=False)
    needed = [feature.name for feature in encoding.features if not feature.has_missing]
    faults = []
    try:
        table = complete(table, needed, drop=drop_missing)
    except ValueError as error:
        faults.append(str(error))
    notes = [*table.notes]
    unseen = encoding.unseen(table)
    said = "; ".join(
        f"column {name!r} holds {listed(sorted({*table.column(name).labels[rows]}), 3)} in {table.places(rows)}"
        for name, rows in unseen.items()
    )
    if unseen and not allow_unseen:
        remedy = "correct them, or pass --allow-unseen to count them as unknown"
        faults.append(f"{path} holds categories that training did not have: {said}; {remedy}.")
    try:
        inputs, otherwise = encoding.inputs(table, are_new=True), encoding.written_otherwise(table)
    except ValueError as error:
        raise ValueError(" Also, ".join([*faults, str(error)])) from error
    if faults:
        raise ValueError(" Also, ".join(faults))
    notes += [f"Categories that training did not have count as unknown: {said}."] if unseen else []
    lost = (on_lost_unit(name, encoding.written[name], form) for name, form in otherwise.items())
    notes += [*_on_numbers(otherwise), *filter(None, lost)]
    y, has_target, on_targets = _known_targets(facts.target, config.target, table)
    unused = [name for name in table.names if name not in (*encoding.names, config.target)]
    known = {*config.ignore, *encoding.identifiers}
    names = keep or tuple(name for name in unused if name in known or has_name_of_identifier(name))
    others = [name for name in unused if name not in names]
    if others and not keep:
        notes.append(f"Not used and not copied: {listed(others)}. To copy columns, name all of them in --keep.")
    copied = {name: table.frame[name].fillna("").tolist() for name in names}
    far, notes_on_far = encoding.far(table, inputs)
    has_target &= ~torch.from_numpy(np.any([np.zeros(len(table), dtype=bool), *far.values()], axis=0))
    unlike = {**unseen, **far}
    outside = ["; ".join(name for name, rows in unlike.items() if rows[row]) for row in range(len(table))]
    notes += [*notes_on_far, *on_targets]
    return Sample(inputs, y, has_target, table.frame.index.tolist(), copied, tuple(notes), outside)


def num_trained_on(config: RunConfig, facts: Facts, sample: Sample) -> int:
    """Count the rows of `sample` that are training rows of the run; return 0 if the run's data file was changed."""
    if sample.y is None or config.kind == "images" or not Path(config.dataset).exists():
        return 0
    try:
        data = load(config, facts=facts)
    except ValueError:
        return 0
    trained = set(_row_bytes(data.x_train, data.y_train))
    return sum(row in trained for row in _row_bytes(sample.x[sample.has_target], sample.y[sample.has_target]))


def _row_bytes(x: Tensor, y: Tensor) -> list[bytes]:
    parts = [part.flatten(1).numpy() if part.dim() > 1 else part[:, None].numpy() for part in (x, y)]
    return [a.tobytes() + b.tobytes() for a, b in zip(*parts, strict=True)]


def _known_targets(target: Target, name: str, table: Table) -> tuple[Tensor | None, Tensor, list[str]]:
    """Return the targets of new rows (None without targets), a mask of the rows with a target, and notes."""
    none = torch.zeros(len(table), dtype=torch.bool)
    if name not in table.names:
        return None, none, []
    cells = table.rows(known := ~table.column(name).is_missing).column(name)
    if not known.any():
        return None, none, [f"No scores: no row of {table.shown} has the target {name!r}."]
    try:
        found = target.encoded(cells)
    except ValueError as error:
        return None, none, [f"No scores: {error}"]
    y = found.new_zeros(len(table), *found.shape[1:])
    y[known] = found
    notes = target.on_unit(cells)
    if not known.all():
        notes.append(f"Rows without the target {name!r} are predicted, but not scored: {(~known).sum()}.")
    return y, torch.from_numpy(known), notes


def _array_sample(facts: Facts, path: Path) -> Sample:
    if path.suffix.lower() != ".npz":
        raise ValueError(f"{path} must be a file of arrays (*.npz), like the run's data.")
    arrays, shown = read_arrays(path), str(path)
    name = next((name for name in ("x", "x_test") if name in arrays), None)
    if name is None:
        raise ValueError(f"{shown} must hold an array x (or x_test), got {listed([*arrays])}.")
    target = arrays.get(name.replace("x", "y", 1))
    found, encoding = arrays[name], facts.arrays
    x = pixels(found, facts.input_shape, shown) if encoding is None else encoding.inputs(found, shown)
    if target is not None and len(target) != len(x):
        raise ValueError(f"`x` and `y` in {shown} must have the same number of rows, got {len(x)} and {len(target)}.")
    y = None if target is None else _array_targets(facts.target, target, shown)
    notes = ("Rows of `x` are predicted, not those of `x_test`.",) if {"x", "x_test"} <= arrays.keys() else ()
    return Sample(x, y, torch.full((len(x),), y is not None), [*range(1, len(x) + 1)], {}, notes)
