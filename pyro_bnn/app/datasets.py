"""The data of a run: functions that read image sets, and facts about the data, which are stored in the run's folder."""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas
import torch
from torch import Tensor

from ..data import Images, load_images
from ..inference.history import History
from .config import RunConfig
from .own.arrays import ArrayEncoding
from .own.columns import Column
from .own.encoding import TableEncoding
from .own.targets import Target


@dataclass(frozen=True)
class Facts:
    """Stored facts about the data of a run, which are needed to build the network again and to encode new rows."""

    sha256: str  # checksum of the rows
    num_train: int  # rows to train on, without those that calibrate
    num_test: int
    input_shape: list[int]  # of one row of the network's input
    target: Target
    table: TableEncoding | None  # how rows of a table become inputs; None for other data
    arrays: ArrayEncoding | None  # how rows of an array become inputs; None for other data
    columns: list[Column]  # of the file, for the report; empty unless it is a table

    def __post_init__(self) -> None:
        if self.num_train < 1 or self.num_test < 0:
            raise ValueError(
                f"`num_train` must be at least 1 and `num_test` at least 0, got {self.num_train} and {self.num_test}."
            )
        encoded = [self.table.width] if self.table else self.arrays.shape if self.arrays else self.input_shape
        if not self.input_shape or min(self.input_shape) < 1 or self.input_shape != encoded:
            raise ValueError(
                f"`input_shape` must be the shape of an encoded row{f', {encoded}' if encoded else ''}, with sizes of "
                f"at least 1, got {self.input_shape}."
            )

    @property
    def shift(self) -> float:
        """The log-density of the standardised training targets minus that of the original targets, in nats."""
        return self.num_train * sum(math.log(scale) for scale in self.target.scale)

    def in_units(self, history: History) -> History:
        """Convert a history's log-densities of standardised targets to log-densities of the original targets."""
        shift = self.shift
        epochs = [
            replace(record, elbo=record.elbo - shift, expected_log_likelihood=record.expected_log_likelihood - shift)
            for record in history.epochs
        ]
        elbo, fitted = (
            [value - shift for value in values] for values in (history.elbo, history.expected_log_likelihood)
        )
        return replace(history, elbo=elbo, expected_log_likelihood=fitted, epochs=epochs)


@dataclass(frozen=True)
class Dataset:
    """The rows of a run, encoded as inputs and targets of its network."""

    x_train: Tensor  # (N, ...)
    y_train: Tensor  # labels, (N,), or numbers, (N, O)
    x_test: Tensor  # (M, ...)
    y_test: Tensor
    facts: Facts
    notes: tuple[str, ...] = ()  # sentences that tell the user how the rows were processed
    held_out: tuple[Tensor, Tensor] | None = None  # inputs and targets of the rows that calibrate, if there are any
    test_rows: tuple[int, ...] = ()  # number of each test row in the file, from 1; empty for image sets
    test_inputs: pandas.DataFrame | None = None  # inputs of the test rows as in the file; None for images

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if the targets are numbers."""
        return tuple(self.facts.target.classes)


def check_same(config: RunConfig, facts: Facts | None, sha256: str, shown: Path) -> None:
    """Raise ValueError if the data do not have the checksum in `facts`. The message contains the path `shown`."""
    if facts is None or facts.sha256 == sha256:
        return
    if config.kind == "images":
        raise ValueError(
            f"the {config.dataset} images are not those that {shown} was trained on (their checksums differ); pass the "
            "folder of the right images (--data, or $PYRO_BNN_DATA)."
        )
    raise ValueError(
        f"{shown} is not what the run was trained on: its rows have changed; pass a copy of the old file "
        "(--data FILE), or predict the new rows by `pyro-bnn predict`."
    )


SIBLINGS = {"fashion-mnist": "mnist", "mnist": "fashion-mnist"}  # unknown images without held-out classes


def known_classes(images: Images, hold_out: tuple[int, ...]) -> tuple[Images, Tensor]:
    """Return the images of the known classes, and the test images of the held-out classes.

    The known classes get the labels 0, 1, ....
    """
    num_classes = len(images.classes)
    kept = [label for label in range(num_classes) if label not in hold_out]
    if len(kept) < 2 or not set(hold_out) <= set(range(num_classes)):
        raise ValueError(f"held-out classes must be among 0, ..., {num_classes - 1} and leave two, got {hold_out}.")
    new_label = torch.full((num_classes,), -1)
    new_label[kept] = torch.arange(len(kept))
    train, test = new_label[images.y_train], new_label[images.y_test]
    known = Images(
        x_train=images.x_train[train >= 0],
        y_train=train[train >= 0],
        x_test=images.x_test[test >= 0],
        y_test=test[test >= 0],
        classes=tuple(images.classes[label] for label in kept),
    )
    return known, images.x_test[test < 0]


def load_data(config: RunConfig, *, root: str | Path | None, download: bool = False) -> tuple[Dataset, Tensor]:
    """Return the images of a run, and the test images of held-out classes.

    If `config.validation` is a number n above 0, n training images replace the test images of the known classes.
    """
    images, unknown = known_classes(load_images(config.dataset, root=root, download=download), config.hold_out)
    if config.validation:
        if config.validation >= len(images.x_train):
            raise ValueError(f"--validation must lie between 1 and {len(images.x_train) - 1}, got {config.validation}.")
        order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(0))
        train, validation = order[: -config.validation], order[-config.validation :]
        images = replace(
            images,
            x_train=images.x_train[train],
            y_train=images.y_train[train],
            x_test=images.x_train[validation],
            y_test=images.y_train[validation],
        )
    digest = hashlib.sha256(images.x_train.float().numpy().tobytes())
    digest.update(images.y_train.long().numpy().tobytes())
    facts = Facts(
        sha256=digest.hexdigest(),
        num_train=len(images.x_train),
        num_test=len(images.x_test),
        input_shape=[*images.x_train.shape[1:]],
        target=Target("class", [*images.classes], [], []),
        table=None,
        arrays=None,
        columns=[],
    )
    return Dataset(images.x_train, images.y_train, images.x_test, images.y_test, facts), unknown


def load_with_unknown(
    config: RunConfig, ood: str | None, *, root: str | Path | None, download: bool = False
) -> tuple[Dataset, Tensor, str]:
    """Return the images of a run, M >= 0 unknown images of shape (M, H, W), and a description of the unknown images."""
    known, unknown = load_data(config, root=root, download=download)
    name = ood if ood is not None or config.hold_out else SIBLINGS.get(config.dataset)
    if name == config.dataset:
        raise ValueError(
            f"--ood must be another data set than {name}, on which the run was trained; leave --ood out, choose "
            "another, or train with held-out classes (--hold-out)."
        )
    if name is not None:
        unknown = load_images(name, root=root, download=download).x_test
        if unknown.shape[1:] != known.x_test.shape[1:]:
            raise ValueError(
                f"{name} images are {tuple(unknown.shape[1:])} but the run's {tuple(known.x_test.shape[1:])}."
            )
    check_unseen("test", known.x_test, known.x_train)
    check_unseen("unknown", unknown, known.x_train)
    return known, unknown, name or f"the held-out classes {', '.join(map(str, config.hold_out))}"


MOST_KNOWN = 0.01  # heuristic: largest share of test images that may be training images; published sets share none


def check_unseen(name: str, x: Tensor, x_train: Tensor) -> None:
    """Raise if too many of the images `x` are also training images. `name` is the word for `x` in the message."""
    trained = {row.tobytes() for row in x_train.float().numpy()}
    seen = sum(row.tobytes() in trained for row in x.float().numpy())
    if seen > MOST_KNOWN * len(x):
        raise ValueError(
            f"{seen} of the {len(x)} {name} images are also training images, and scores on these say nothing about new "
            "images; pass a folder with the published files (--data, or $PYRO_BNN_DATA)."
        )
