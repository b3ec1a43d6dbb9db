"""The data of a run, and the facts about them that its folder stores."""

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..inference.history import EpochRecord
from .config import RunConfig
from .own.arrays import ArrayEncoding
from .own.encoding import TableEncoding
from .own.targets import Target


@dataclass(frozen=True)
class Facts:
    """The facts about its data that a run's folder stores, to build the network and to encode new rows."""

    sha256: str  # checksum of the rows
    num_train: int  # rows to train on
    num_test: int
    input_shape: list[int]  # of one row of the network's input
    target: Target
    table: TableEncoding | None  # how rows of a table become inputs; None for other data
    arrays: ArrayEncoding | None  # how rows of an array become inputs; None for other data

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


@dataclass(frozen=True)
class Dataset:
    """The rows of a run, encoded for its network."""

    x_train: Tensor  # (N, ...)
    y_train: Tensor  # labels, (N,), or numbers, (N, O)
    x_test: Tensor  # (M, ...)
    y_test: Tensor
    facts: Facts
    notes: tuple[str, ...] = ()  # sentences that tell the user how the rows were processed

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the targets are numbers."""
        return tuple(self.facts.target.classes)

    def nll_of(self, epoch: EpochRecord) -> float:
        """Negative expected log-likelihood of an epoch per training row, in nats, of targets in their own units."""
        unit = sum(math.log(scale) for scale in self.facts.target.scale)
        return -epoch.expected_log_likelihood / len(self.x_train) + unit


def check_same(config: RunConfig, facts: Facts | None, sha256: str, shown: Path) -> None:
    """Raise if the checksum differs from that of the run's rows in `facts`; `shown` names the data or the run."""
    if facts is None or facts.sha256 == sha256:
        return
    if config.kind == "images":
        raise ValueError(
            f"the {config.dataset} images are not those that {shown} was trained on (their checksums differ); pass the "
            "folder of those (--data, or $PYRO_BNN_DATA)."
        )
    raise ValueError(
        f"{shown} is not what the run was trained on: its rows have changed since; pass a copy of the file as it "
        "was (--data FILE), or see new rows by `pyro-bnn predict`."
    )
